"""BatchTiming, GradientBucket, JobProfile: a job measured on one kind of GPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import AwareDatetime, Field, model_validator

from srifty.records.job import Job
from srifty.records.record import Record
from srifty.records.spread import Spread

Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[int, Field(ge=0)]


class BatchTiming(Record):
    """Phases of one step on one GPU at one batch, exchange and accumulation apart."""

    batch: Count
    forward_s: Spread
    backward_s: Spread
    optimizer_s: Spread
    data_wait_s: Spread | None = None
    """Wait for the loader; None: not measured."""
    peak_memory_bytes: Bytes | None = None

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if min(self.forward_s.p10, self.backward_s.p10, self.optimizer_s.p10) < 0:
            raise ValueError("a phase cannot take less than 0 s")
        if self.forward_s.p50 + self.backward_s.p50 <= 0:
            raise ValueError("forward and backward together must take more than 0 s")
        return self


class GradientBucket(Record):
    """Gradients that DDP exchanges in one AllReduce."""

    gradient_bytes: Count
    ready_at: Annotated[float, Field(ge=0, le=1)]
    """When it is ready, as a share of the backward pass."""


class JobProfile(Record):
    """A job on one kind of GPU: compute time against batch, and what it will exchange."""

    job: Job
    gpu: str
    """The chip, by the name that offers use; "cpu" where there was none."""
    gpu_memory_bytes: Count | None = None
    """Memory of the GPU that was measured on."""
    max_batch: Count
    """The largest batch known to fit [samples]."""
    min_batch: Count = 1
    """The smallest batch that trains; 2 where there is batch normalisation."""
    timings: Annotated[tuple[BatchTiming, ...], Field(min_length=1)]
    """By rising batch."""
    buckets: tuple[GradientBucket, ...]
    """In the order of their exchange; empty where nothing is exchanged."""
    trainable_bytes: Bytes
    """Size of the parameters that are trained."""
    total_bytes: Bytes | None = None
    """Size of all parameters."""
    checkpoint_bytes: Bytes | None = None
    assumptions: tuple[str, ...] = ()
    """What was not measured and had to be assumed; every plan repeats it."""
    versions: dict[str, str] = Field(default_factory=dict)
    hardware: str = ""
    taken_at: AwareDatetime

    @model_validator(mode="after")
    def _rising(self) -> Self:
        batches = [timing.batch for timing in self.timings]
        if any(later <= earlier for earlier, later in pairwise(batches)):
            raise ValueError(f"timings must be by rising batch, one each; got {batches}")
        if self.max_batch < batches[-1]:
            raise ValueError(f"max_batch {self.max_batch} is below a batch that was measured, {batches[-1]}")
        if self.min_batch > self.max_batch:
            raise ValueError(f"min_batch {self.min_batch} is above max_batch {self.max_batch}")
        return self
