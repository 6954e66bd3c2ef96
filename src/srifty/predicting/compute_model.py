"""ComputeModel: step time on one GPU against its batch, from a handful of measured batches.

A GPU that is full takes time in proportion to its batch plus a constant; one that is not takes about the same time
for any small batch; and a kernel may change on the way. So straight pieces between the measured points are the
rule, and a smooth curve with one knee takes their place where it clearly tells a measured batch from the others
better. Bends are found by the data, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from srifty.records.job_profile import BatchTiming, JobProfile
from srifty.records.spread import Z90, Spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Curve = Callable[[Floats, Floats, Floats], Floats]

CLEARLY_BETTER = 0.7
"""A knee curve takes the place of the pieces where its left-out error is below this share of theirs."""
SHARPNESS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Exponents of knee curves: 1 is a line, 10 close to a corner."""
SWITCHED = 1.02
"""A time a sample that rises by more than this factor from one batch to the next shows a slower kernel."""
LEFT_OUT_LOG_SD = 0.026
"""Doubt about a batch between measured ones: of 12 networks on 4 GPUs (benchmarks/accuracy) 80 % lie within 1.28
times this. A curve's own left-out errors are few, so they are averaged with it."""
PRIOR_POINTS = 3
BEYOND_LOG_SD = 0.045
"""Doubt about a batch of twice the largest measured; from the same data. Its square grows with the doublings."""
BELOW_LOG_SD = 0.15
"""The same for half the smallest: a GPU that runs empty may gain nothing from a smaller batch, or all of it."""


@dataclass(frozen=True)
class ComputeModel:
    """Phases of a step on one GPU as functions of its batch; time rises with the batch or is level."""

    batch: Floats
    """Measured batches [samples]."""
    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    data_wait_s: Floats
    other_s: Floats
    curve: Curve
    """What tells forward and backward between the measured batches."""
    noise: float
    """Standard deviation from step to step, as a share of forward and backward."""
    noise_skew: float
    """What that deviation is more above the median than below, as a share of itself."""
    reading_log_sd: float
    """Doubt about a measured batch itself. Steps of one session vary together, since what slows one slows its
    neighbours, so n of them count as sqrt(n)."""
    log_sd: float
    """Doubt about the mean step between measured batches: standard deviation of its logarithm."""
    smallest_batch: int
    max_batch: int

    @classmethod
    def fit(cls, profile: JobProfile) -> ComputeModel:
        """Fit the curves of a profile; forward and backward share their shape."""
        timings = profile.timings
        batch = np.array([timing.batch for timing in timings], float)
        forward = np.array([_typical(timing.forward_s) for timing in timings])
        backward = np.array([_typical(timing.backward_s) for timing in timings])
        curve = chosen_curve(batch, forward + backward)
        errors = left_out_errors(batch, forward + backward, curve)
        noises = np.array([_step_noise(timing) for timing in timings])
        noise = float(np.median(noises[:, 0]))
        readings = min(timing.forward_s.sample_count for timing in timings)
        return cls(
            batch=batch,
            forward_s=forward,
            backward_s=backward,
            optimizer_s=np.array([timing.optimizer_s.p50 for timing in timings]),
            data_wait_s=_means(timing.data_wait_s for timing in timings),
            other_s=_means(timing.other_s for timing in timings),
            curve=curve,
            noise=noise,
            noise_skew=float(np.median(noises[:, 1])),
            reading_log_sd=float(np.log1p(noise) / readings**0.25),
            log_sd=float(
                np.sqrt(
                    (PRIOR_POINTS * LEFT_OUT_LOG_SD**2 + np.sum(errors**2)) / (PRIOR_POINTS + len(errors))
                )
            ),
            smallest_batch=int(batch[0]),
            max_batch=profile.max_batch,
        )

    def phases(self, batch: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """Forward, backward, optimizer, data wait and other work [s] at each batch [samples]."""
        return (
            self.curve(self.batch, self.forward_s, batch),
            self.curve(self.batch, self.backward_s, batch),
            pieces(self.batch, self.optimizer_s, batch),
            pieces(self.batch, self.data_wait_s, batch),
            pieces(self.batch, self.other_s, batch),
        )

    def doubt(self, batch: Floats) -> Floats:
        """Standard deviation of the logarithm of the mean step at each batch; least where it was measured."""
        batch = np.maximum(batch, 1)
        outside = np.maximum(np.log2(batch / self.batch[-1]), 0) * BEYOND_LOG_SD**2
        outside += np.maximum(np.log2(self.batch[0] / batch), 0) * BELOW_LOG_SD**2
        total = self.forward_s + self.backward_s
        is_met = np.isclose(self.curve(self.batch, total, self.batch), total, rtol=0.01)
        told = np.where(np.isin(batch, self.batch[is_met]), 0.0, self.log_sd**2 + outside)
        return np.sqrt(told + self.reading_log_sd**2)


def chosen_curve(batch: Floats, seconds: Floats) -> Curve:
    """The curve that better tells each interior batch from the others; pieces unless a knee is clearly better.

    With fewer than four batches too little is left over to trust a curve that misses the points.
    """
    if len(batch) < 4:
        return pieces
    of_pieces, of_knee = (_rms(left_out_errors(batch, seconds, curve)) for curve in (pieces, knee))
    return knee if of_knee < CLEARLY_BETTER * of_pieces else pieces


def knee(batch: Floats, seconds: Floats, at: Floats) -> Floats:
    """A smooth curve that is level at first and then in proportion to the batch.

        time = (a^p + (c batch)^p)^(1/p),   a, c >= 0,   p from 1 (a line) to 10 (close to a corner)

    For each p, a^p and c^p follow from least squares of the relative error, which is linear in them; the p with
    the least error of the logarithm is taken, with a slight preference for the smoother of equals.
    """
    if len(batch) == 1 or not np.all(seconds > 0):
        return pieces(batch, seconds, at)
    best, least = None, np.inf
    for p in SHARPNESS:
        level, slope = _least_squares(batch**p, seconds**p)
        told = (level + slope * batch**p) ** (1 / p)
        error = float(np.sum(np.log(told / seconds) ** 2)) / max(1, len(batch) - 2) + 5e-4 * np.log(p)
        if error < least:
            best, least = (level, slope, p), error
    if best is None:
        return pieces(batch, seconds, at)
    level, slope, p = best
    curve: Floats = (level + slope * np.asarray(at, float) ** p) ** (1 / p)
    return curve


def pieces(batch: Floats, seconds: Floats, at: Floats) -> Floats:
    """Straight pieces between the points, made to rise.

    Where the time *a sample* rises from one point to the next, a slower kernel took over somewhere between, as a
    rule when memory for the faster one grew short, so near the upper point: up to there the old trend goes on.

        time = min(chord, sqrt(trend x in proportion)),   trend: the slope of the piece before goes on

    Below the first point time falls with the first slope or the mean slope, whichever is less, and never more than
    in proportion, since a GPU is no better used by a smaller batch; above the last it rises with the last slope.
    With one point, time has half a constant part and half one in proportion to the batch: the middle of what is
    possible.
    """
    at = np.asarray(at, float)
    seconds = rising(seconds)
    if len(batch) == 1:
        one: Floats = seconds[0] * (0.5 + 0.5 * at / batch[0])
        return one
    slopes = np.diff(seconds) / np.diff(batch)
    mean_slope = (seconds[-1] - seconds[0]) / (batch[-1] - batch[0])
    below = np.maximum(seconds[0] - min(slopes[0], mean_slope) * (batch[0] - at), seconds[0] * at / batch[0])
    above = seconds[-1] + slopes[-1] * (at - batch[-1])
    inside = np.interp(at, batch, seconds)

    lower = np.clip(np.searchsorted(batch, at, side="right") - 1, 0, len(batch) - 2)
    proportional = seconds[lower] * at / batch[lower]
    before = slopes[np.maximum(lower - 1, 0)]
    trend = np.where(lower > 0, seconds[lower] + before * (at - batch[lower]), proportional)
    rises = seconds[lower + 1] / batch[lower + 1] > SWITCHED * seconds[lower] / batch[lower]
    with np.errstate(invalid="ignore"):
        old_kernel = np.minimum(inside, np.sqrt(np.maximum(trend, 0) * np.maximum(proportional, 0)))
    inside = np.where(rises & (at < batch[lower + 1]), np.maximum(old_kernel, seconds[lower]), inside)
    curve: Floats = np.where(at < batch[0], below, np.where(at > batch[-1], above, inside))
    return curve


def rising(values: Floats) -> Floats:
    """Nearest sequence, in least squares, that never falls: pool adjacent violators."""
    level: list[float] = []
    size: list[int] = []
    for value in values:
        level.append(float(value))
        size.append(1)
        while len(level) > 1 and level[-2] > level[-1]:
            size_of_both = size[-2] + size[-1]
            level[-2] = (level[-2] * size[-2] + level[-1] * size[-1]) / size_of_both
            size[-2] = size_of_both
            level.pop(), size.pop()
    return np.repeat(level, size)


def left_out_errors(batch: Floats, seconds: Floats, curve: Curve) -> Floats:
    """Logarithm of predicted over measured at each interior point, told from all the others."""
    errors = []
    for i in range(1, len(batch) - 1):
        others = np.arange(len(batch)) != i
        told = curve(batch[others], seconds[others], batch[i : i + 1])[0]
        errors.append(np.log(told / seconds[i]))
    return np.array(errors)


def next_batch(profile: JobProfile, *, at_most: int) -> int | None:
    """Which batch to measure next: where the curve is least sure.

    Args:
        profile: what was measured so far
        at_most: the largest batch that may be tried [samples]

    Returns:
        the ends of the range first; then the middle (in the logarithm) of the interval whose chord and whose
        level-then-proportional corner differ most, hence where a knee could hide most; None where no whole batch
        is left between the measured ones

    Three batches placed so reach a mean error of about 4 % over the range (benchmarks/accuracy).
    """
    batch = np.array([timing.batch for timing in profile.timings], float)
    if batch[-1] < at_most:
        return at_most
    if batch[0] > profile.min_batch:
        return profile.min_batch
    seconds = rising(np.array([timing.forward_s.p50 + timing.backward_s.p50 for timing in profile.timings]))
    middle = np.sqrt(batch[:-1] * batch[1:])
    chord = np.interp(middle, batch, seconds)
    corner = np.maximum(seconds[:-1], seconds[1:] * middle / batch[1:])
    hidden = np.log(chord / corner)
    for i in np.argsort(-hidden, kind="stable"):
        candidate = round(float(middle[i]))
        if batch[i] < candidate < batch[i + 1]:
            return candidate
    return None


def _least_squares(column: Floats, values: Floats) -> tuple[float, float]:
    """Constant and slope >= 0 with least sum of ((constant + slope x column) / values - 1)^2."""
    columns = np.stack([np.ones_like(column), column], axis=1) / values[:, None]
    constant, slope = np.linalg.lstsq(columns, np.ones_like(column), rcond=None)[0]
    if constant < 0:
        return 0.0, float(columns[:, 1].sum() / (columns[:, 1] ** 2).sum())
    if slope < 0:
        return float(columns[:, 0].sum() / (columns[:, 0] ** 2).sum()), 0.0
    return float(constant), float(slope)


def _means(spreads: Iterable[Spread | None]) -> Floats:
    """Of what comes in bursts the mean counts: with four workers every fourth step waits for all of them."""
    return np.array([0.0 if spread is None else spread.mean for spread in spreads])


def _typical(spread: Spread) -> float:
    """What a long run takes a step: the median, and what a longer tail above than below adds to it.

    The plain mean would let one disturbed step of a short measurement speak for the whole job.
    """
    skew = ((spread.p90 - spread.p50) - (spread.p50 - spread.p10)) / Z90 / np.sqrt(2 * np.pi)
    return float(spread.p50 + max(0.0, min(skew, spread.mean - spread.p50)))


def _step_noise(timing: BatchTiming) -> tuple[float, float]:
    """Standard deviation as a share of the step, and what it is more above the median than below as a share of itself.

    Of a sum of two that vary independently variance and third moment add; a tail that the mean does not show is
    none (`_typical`).
    """
    phases = (timing.forward_s, timing.backward_s)
    total = sum(phase.p50 for phase in phases)
    sd = np.array([(phase.p90 - phase.p10) / (2 * Z90) for phase in phases])
    skew = np.array([(_typical(phase) - phase.p50) * np.sqrt(2 * np.pi) for phase in phases])
    variance = float(np.sum(sd**2))
    if variance == 0:
        return 0.0, 0.0
    return float(np.sqrt(variance)) / total, float(np.sum(skew * sd**2) / variance**1.5)


def _rms(errors: Floats) -> float:
    return float(np.sqrt(np.mean(errors**2))) if errors.size else float("inf")
