"""StepTiming: one measured (cluster layout, batch) -> step time, from a run or a file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from srifty.records.record import Count, Record


class StepTiming(Record):
    """How long a step took on real machines: what models learn from and are checked against."""

    job: str
    gpu: str
    instance_type: str
    layout: Annotated[tuple[Count, ...], Field(min_length=1)]
    """GPUs used on each node: (4, 4, 2)."""
    batch_per_gpu: Count
    step_s: Annotated[float, Field(gt=0)]
    exposed_allreduce_s: Annotated[float, Field(ge=0)] | None = None
    """From the last local gradient to the end of the exchange, waiting for stragglers included."""
    gradient_bytes: Count | None = None

    @property
    def gpu_count(self) -> int:
        """GPUs over all nodes."""
        return sum(self.layout)
