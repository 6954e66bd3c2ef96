"""EmulatedJob: a job by its times, for a device that sleeps in place of computing."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Annotated, Self

from pydantic import Field, model_validator

from srifty.records.job_profile import JobProfile
from srifty.records.record import Count, Record

_LAYER_BYTES = 2 * 2**20
_MOST_LAYERS_A_BUCKET = 8

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class EmulatedLayer(Record):
    """One layer: its share of the forward and of the backward pass, and its parameters."""

    parameter_bytes: Count
    forward_share: Annotated[float, Field(ge=0, le=1)]
    backward_share: Annotated[float, Field(ge=0, le=1)]


class EmulatedJob(Record):
    """Layers in the order of the forward pass, and times of the passes by rising batch."""

    name: str
    layers: Annotated[tuple[EmulatedLayer, ...], Field(min_length=1)]
    batch: Annotated[tuple[Count, ...], Field(min_length=1)]
    forward_s: tuple[Seconds, ...]
    backward_s: tuple[Seconds, ...]
    optimizer_s: Seconds = 0.0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not len(self.batch) == len(self.forward_s) == len(self.backward_s):
            raise ValueError("each batch has one forward and one backward time")
        if any(later <= earlier for earlier, later in pairwise(self.batch)):
            raise ValueError(f"batches must rise; got {list(self.batch)}")
        return self

    @classmethod
    def of(cls, profile: JobProfile, *, scale: float = 1.0) -> Self:
        """The job of a profile: a layer or some for each bucket, which ends its backward pass when that is ready.

        Args:
            profile: whose buckets and times to take
            scale: of both bytes and times, so that a step on slower links has the same proportions
        """
        total_bytes = sum(bucket.gradient_bytes for bucket in profile.buckets)
        backwards: list[EmulatedLayer] = []
        before = 0.0
        for bucket in profile.buckets:
            size = max(4, scale * bucket.gradient_bytes)
            count = min(_MOST_LAYERS_A_BUCKET, max(1, round(size / _LAYER_BYTES)))
            layer = EmulatedLayer(
                parameter_bytes=4 * ceil(size / count / 4),
                forward_share=bucket.gradient_bytes / total_bytes / count,
                backward_share=max(0.0, bucket.ready_at - before) / count,
            )
            backwards += [layer] * count
            before = max(before, bucket.ready_at)
        return cls(
            name=profile.job.name,
            layers=tuple(reversed(backwards)),
            batch=tuple(timing.batch for timing in profile.timings),
            forward_s=tuple(scale * timing.forward_s.p50 for timing in profile.timings),
            backward_s=tuple(scale * timing.backward_s.p50 for timing in profile.timings),
            optimizer_s=scale * profile.timings[-1].optimizer_s.p50,
        )
