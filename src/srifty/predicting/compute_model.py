"""ComputeModel: step time on one GPU against its batch, from a handful of measured batches.

A GPU that is full takes time in proportion to its batch plus a constant; one that is not takes about the
same time for any small batch. So a line is tried, and a piecewise line through the measured points, and the
data say which: the one that better tells a measured batch from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from srifty.records.job_profile import BatchTiming, JobProfile
from srifty.records.spread import Z90, Spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Curve = Callable[[Floats, Floats, Floats], Floats]

FEW_BATCHES_LOG_SD = 0.10
"""Doubt about a batch between measured ones where at most two were measured, so that none can be left out."""


@dataclass(frozen=True)
class ComputeModel:
    """Phases of a step on one GPU as functions of its batch.

    Each curve is piecewise linear through its knots and rises or is level; beyond its last knot it goes on
    with the last slope. The knots of a line are its two ends.
    """

    batch: Floats
    """Knots [samples]."""
    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    data_wait_s: Floats
    noise: float
    """Standard deviation from step to step, as a share of forward and backward."""
    log_sd: float
    """Doubt about the mean step at a batch that was not measured: standard deviation of its logarithm."""
    smallest_batch: int
    max_batch: int

    @classmethod
    def fit(cls, profile: JobProfile) -> ComputeModel:
        """Fit the curves of a profile; forward and backward share their knots."""
        timings = profile.timings
        batch = np.array([timing.batch for timing in timings], float)
        forward = np.array([timing.forward_s.p50 for timing in timings])
        backward = np.array([timing.backward_s.p50 for timing in timings])
        optimizer = np.array([timing.optimizer_s.p50 for timing in timings])
        waits = [timing.data_wait_s for timing in timings]
        data_wait = np.array([0.0 if wait is None else wait.p50 for wait in waits])
        total = forward + backward

        line_error = left_out_errors(batch, total, straight_line)
        piece_error = left_out_errors(batch, total, piecewise_line)
        # With fewer than four batches there is too little left over to trust a line that misses them.
        if len(batch) >= 4 and _rms(line_error) <= _rms(piece_error):
            curve, errors = straight_line, line_error
        else:
            curve, errors = piecewise_line, piece_error
        return cls(
            batch=batch,
            forward_s=curve(batch, forward, batch),
            backward_s=curve(batch, backward, batch),
            optimizer_s=rising(optimizer, np.ones_like(optimizer)),
            data_wait_s=rising(data_wait, np.ones_like(data_wait)),
            noise=float(np.median([_step_noise(timing) for timing in timings])),
            log_sd=_rms(errors) if len(errors) else FEW_BATCHES_LOG_SD,
            smallest_batch=int(batch[0]),
            max_batch=profile.max_batch,
        )

    def phases(self, batch: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Forward, backward, optimizer and data wait [s] at each batch [samples]."""
        return (
            piecewise_line(self.batch, self.forward_s, batch),
            piecewise_line(self.batch, self.backward_s, batch),
            piecewise_line(self.batch, self.optimizer_s, batch),
            piecewise_line(self.batch, self.data_wait_s, batch),
        )


def straight_line(batch: Floats, seconds: Floats, at: Floats) -> Floats:
    """Least squares of the relative error: sum over the points of ((a + b batch) / seconds - 1)^2.

    A negative constant or slope is set to 0 and the other fitted alone, so that time is never negative and
    never falls with the batch.
    """
    if len(batch) == 1 or not np.all(seconds > 0):
        return piecewise_line(batch, seconds, at)
    columns = np.stack([np.ones_like(batch), batch], axis=1) / seconds[:, None]
    constant, slope = np.linalg.lstsq(columns, np.ones_like(batch), rcond=None)[0]
    if constant < 0:
        constant, slope = 0.0, float((columns[:, 1]).sum() / (columns[:, 1] ** 2).sum())
    elif slope < 0:
        constant, slope = float((columns[:, 0]).sum() / (columns[:, 0] ** 2).sum()), 0.0
    line: Floats = constant + slope * at
    return line


def piecewise_line(batch: Floats, seconds: Floats, at: Floats) -> Floats:
    """Straight pieces between the points, made to rise.

    Below the first point time falls with the first slope or the mean slope, whichever is less, since a GPU is
    no better used by a smaller batch; above the last it rises with the last slope or the mean, whichever is
    more. With one point, time has half a constant part and half one in proportion to the batch: the middle of
    what is possible.
    """
    seconds = rising(seconds, np.ones_like(seconds))
    if len(batch) == 1:
        one: Floats = seconds[0] * (0.5 + 0.5 * at / batch[0])
        return one
    inside = np.interp(at, batch, seconds)
    slopes = np.diff(seconds) / np.diff(batch)
    mean_slope = (seconds[-1] - seconds[0]) / (batch[-1] - batch[0])
    below = seconds[0] - min(slopes[0], mean_slope) * (batch[0] - at)
    above = seconds[-1] + max(slopes[-1], mean_slope) * (at - batch[-1])
    curve: Floats = np.where(at < batch[0], below, np.where(at > batch[-1], above, inside))
    return curve


def rising(values: Floats, weights: Floats) -> Floats:
    """Nearest sequence, in weighted least squares, that never falls: pool adjacent violators."""
    level: list[float] = []
    weight: list[float] = []
    size: list[int] = []
    for value, mass in zip(values, weights, strict=True):
        level.append(float(value))
        weight.append(float(mass))
        size.append(1)
        while len(level) > 1 and level[-2] > level[-1]:
            mass_of_both = weight[-2] + weight[-1]
            level[-2] = (level[-2] * weight[-2] + level[-1] * weight[-1]) / mass_of_both
            weight[-2] = mass_of_both
            size[-2] += size[-1]
            level.pop(), weight.pop(), size.pop()
    return np.repeat(level, size)


def left_out_errors(batch: Floats, seconds: Floats, curve: Curve) -> Floats:
    """Logarithm of predicted over measured at each interior point, told from all the others."""
    errors = []
    for i in range(1, len(batch) - 1):
        others = np.arange(len(batch)) != i
        told = curve(batch[others], seconds[others], batch[i : i + 1])[0]
        errors.append(np.log(told / seconds[i]))
    return np.array(errors)


def _step_noise(timing: BatchTiming) -> float:
    def sd(spread: Spread) -> float:
        return (spread.p90 - spread.p10) / (2 * Z90)

    total = timing.forward_s.p50 + timing.backward_s.p50
    return float(np.hypot(sd(timing.forward_s), sd(timing.backward_s)) / total)


def _rms(errors: Sequence[float] | Floats) -> float:
    values = np.asarray(errors, float)
    return float(np.sqrt(np.mean(values**2))) if values.size else float("inf")
