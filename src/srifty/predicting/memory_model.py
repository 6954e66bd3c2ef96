"""Largest batch that fits on a GPU whose memory is not that of the measured one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from srifty.records.job_profile import JobProfile
from srifty.records.offer import Offer

SAME_MEMORY = 1.2
"""Sizes within this factor are one size: drivers report 14.6 GiB for what is sold as 16."""
RUNTIME_BYTES = 2**30
"""Held by the driver and its libraries whatever the batch."""
STATE_BYTES_PER_TRAINABLE_BYTE = 4
"""Weights, gradients and Adam's two moments."""
MEMORY_SHARE = 0.92
"""Share of the memory that is planned with where the batch is derived and not tried."""

FILLED_SHARE = 0.75
"""Of the measured memory: a job that takes it is taken to have been ended by memory."""
FARTHEST = 4
"""Times the largest batch whose memory was measured; a line is not followed beyond."""


def is_same_memory(profile: JobProfile, offer: Offer) -> bool:
    """Whether the offer's GPU has the memory of the one that was measured."""
    if profile.gpu_memory_bytes is None:
        return True
    return 1 / SAME_MEMORY <= offer.gpu_memory_bytes / profile.gpu_memory_bytes <= SAME_MEMORY


def largest_batch(profile: JobProfile, gpu_memory_bytes: int) -> int:
    """Largest batch that is taken to fit [samples]; 0 where none does.

    With the measured memory it is the measured one. With another, where peak memory was measured at two batches
    or more, it is the largest with

        memory_line(batch) + runtime <= share x memory

    With less memory that is never above the largest that is known to fit. With more, it goes beyond only if the
    measured job nearly filled the memory (3/4): else something other than memory may have ended it, such as the
    data set or the user; and never beyond four times the largest batch whose memory was measured.

    Without such measurements, memory is taken to be a fixed part and a part in proportion to the batch. What the
    largest measured batch used is known only to be no more than the whole memory, which makes the slope an upper
    bound and the result a lower one:

        batch <= max_batch x (share x memory - fixed) / (measured memory - fixed)

    with fixed = runtime + 4 x trainable bytes; with more memory it is the measured one.
    """
    measured = profile.gpu_memory_bytes
    if measured is None or 1 / SAME_MEMORY <= gpu_memory_bytes / measured <= SAME_MEMORY:
        return profile.max_batch
    line = MemoryLine.fit(profile)
    if line is not None:
        fitting = line.largest_within(MEMORY_SHARE * gpu_memory_bytes - RUNTIME_BYTES)
        if gpu_memory_bytes < measured:
            return min(profile.max_batch, fitting)
        filled = line.memory_bytes(profile.max_batch) + RUNTIME_BYTES >= FILLED_SHARE * measured
        return max(profile.max_batch, fitting) if filled and line.slope_bytes > 0 else profile.max_batch
    if gpu_memory_bytes >= measured:
        return profile.max_batch
    fixed = RUNTIME_BYTES + STATE_BYTES_PER_TRAINABLE_BYTE * profile.trainable_bytes
    left = MEMORY_SHARE * gpu_memory_bytes - fixed
    if left <= 0 or measured <= fixed:
        return 0
    return min(profile.max_batch, int(profile.max_batch * left / (measured - fixed)))


@dataclass(frozen=True)
class MemoryLine:
    """Peak memory of a step against its batch, from peaks that were measured.

        memory = max(a + b x batch, what was measured at any smaller or equal batch)    up to the largest measured
        memory = the same there + slope x (batch - largest measured)                    beyond

    a and b by least squares; slope is the larger of b and the slope between the last two points, neither below
    zero. Peak memory is the larger of several phases' (the optimizer's, the end of the forward pass), each of
    them a line, so it bends upwards only; a single line would come out too low beyond the last point.

    Attributes:
        batch: that were measured, rising [samples]
        peak_bytes: at each the most up to it
        fixed_bytes: a
        fitted_bytes: b, for each sample
        slope_bytes: for each sample beyond the largest
    """

    batch: tuple[int, ...]
    peak_bytes: tuple[float, ...]
    fixed_bytes: float
    fitted_bytes: float
    slope_bytes: float

    @classmethod
    def fit(cls, profile: JobProfile) -> MemoryLine | None:
        """From the peaks of a profile's timings; None: fewer than two are known."""
        known = [
            (timing.batch, float(timing.peak_memory_bytes))
            for timing in profile.timings
            if timing.peak_memory_bytes is not None
        ]
        if len(known) < 2:
            return None
        batch = np.array([b for b, _ in known], float)
        peak = np.array([p for _, p in known], float)
        fitted = float(
            np.sum((batch - batch.mean()) * (peak - peak.mean())) / np.sum((batch - batch.mean()) ** 2)
        )
        fitted = max(0.0, fitted)
        most = np.maximum.accumulate(peak)
        last = float((most[-1] - most[-2]) / (batch[-1] - batch[-2]))
        return cls(
            batch=tuple(b for b, _ in known),
            peak_bytes=tuple(float(p) for p in most),
            fixed_bytes=float(peak.mean() - fitted * batch.mean()),
            fitted_bytes=fitted,
            slope_bytes=max(fitted, last),
        )

    def memory_bytes(self, batch: int) -> float:
        """Peak memory at a batch [bytes]; rises with it."""
        within = min(batch, self.batch[-1])
        seen = max((p for b, p in zip(self.batch, self.peak_bytes, strict=True) if b <= within), default=0.0)
        on_line = self.fixed_bytes + self.fitted_bytes * within
        return max(seen, on_line) + self.slope_bytes * (batch - within)

    def largest_within(self, memory_bytes: float) -> int:
        """Largest batch whose peak memory is no more than this [samples]; 0: none, at most 4 x the largest measured."""
        low, high = 0, FARTHEST * self.batch[-1]
        if self.memory_bytes(high) <= memory_bytes:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if self.memory_bytes(middle) <= memory_bytes:
                low = middle
            else:
                high = middle
        return low
