"""Job: what is to be trained, in the user's words."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from srifty.records.record import Count, Record

LARGEST_BATCH = 2**31
LARGEST_COUNT = 10**15
"""Samples beyond this are a slip of the hand, and would not be counted exactly."""


class Job(Record):
    """A training job: the code that makes a step, and how much is to be trained.

    `job.toml` holds these fields by the same names.
    """

    name: Annotated[str, Field(min_length=1)]
    workload: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")] | None = None
    """`module:function`; the function returns model, optimizer, batch maker and loss."""
    command: tuple[str, ...] = ()
    """The training command as an argument list, for an unchanged script."""
    batches: tuple[Count, ...] = ()
    """Batches to measure [samples on one GPU]; empty: chosen by the profiler."""
    global_batch: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] | None = None
    """Samples that one step of the optimizer sees, over all GPUs and accumulations."""
    sample_count: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] | None = None
    """Samples to train on in all: data set times epochs."""
    step_count: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] | None = None
    """Steps of the optimizer to train for, where that is what is asked instead of `sample_count`."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.sample_count is not None and self.step_count is not None:
            raise ValueError("give sample_count or step_count, not both: one follows from the other")
        return self
