"""What the formula leaves unexplained, and how sure a job's numbers are: one linear model about the best fit.

Parameters, compute curve and unexplained part are solved together, so that none takes what belongs to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from srifty.predicting.least_squares import Belief, robust
from srifty.predicting.step_features import LENGTH, likeness, spread_out
from srifty.predicting.step_physics import COUNT, Rows, StepParts
from srifty.records.step_model import BATCH_ANCHOR_COUNT, BOTH_ANCHOR_COUNT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

EXCHANGE_SD = 0.12
"""Unexplained part of an exchange that nothing hides (logarithm)."""
COMPUTE_SD = 0.05
"""Unexplained part of compute on several GPUs."""
BATCH_SD = 0.06
"""Unexplained part of an exchange that goes with the batch and is common to all layouts, where very many are known."""
BOTH_SD = 0.08
"""Unexplained part of a step that goes with layout and batch together, where very many layouts are known."""
MANY_LAYOUTS = 20.0
"""Layouts known at which half of what goes with the batch is allowed: few cannot tell it from what goes with them."""
NOISE_SD = 0.035
"""A reading of a step."""
LAYOUT_SD = 0.03
"""What all readings of one layout have in common: one run, one placement."""
LOCAL_SD = 0.12
"""Compute as told by step - exposed exchange: what straggles and contends is in it."""
EFFECTIVE_ROWS = 60.0
"""Many rows of one job share the formula's faults, so they count as this many in the fit of its parameters."""
REWEIGHTED = 3
SHRINK_LAYOUTS = 8.0
"""Layouts that a band's factor of 1 counts as."""
Z90 = 1.2815515655446004
LEAST_SD = 1e-4


@dataclass(frozen=True)
class JobRows:
    """Measured rows of one job on one kind of machine."""

    rows: Rows
    log_step: Floats
    log_local: Floats
    """log(step - exposed exchange) [s]; NaN: not measured, or of one GPU."""

    @property
    def rows_count_as(self) -> float:
        """Weight of each row of several GPUs in the fit of parameters."""
        return min(1.0, EFFECTIVE_ROWS / max(1.0, float(self.rows.at.several.sum())))

    def of(self, chosen: Ints) -> JobRows:
        """These rows alone."""
        at = self.rows.at
        layouts = type(at)(at.nodes[chosen], at.gpus[chosen], at.most[chosen])
        own = self.rows
        rows = Rows(
            own.weights[chosen], own.least, own.gradient_bytes[chosen], layouts, own.log2_batch[chosen]
        )
        return JobRows(rows, self.log_step[chosen], self.log_local[chosen])


@dataclass(frozen=True)
class Posterior:
    """Numbers of the linear model: shift of parameters and curve about the best fit, then the unexplained part."""

    shift: Floats
    covariance: Floats
    band: float
    layout_count: int


@dataclass(frozen=True)
class Unexplained:
    """By what the unexplained part is told."""

    anchors: Floats
    """Layouts, [anchor, 4]; none: no layout of several GPUs is known."""
    batches: Floats
    """log2 of batches, [anchor, 1], in units of likeness."""
    few_batches: Floats
    """Those of them that go with a layout."""
    allowed: float
    """Share of `BATCH_SD` and `BOTH_SD` that so many layouts allow."""

    @classmethod
    def of(cls, anchors: Floats, knots: Floats, layout_count: int) -> Unexplained:
        """From the layouts and batches known, and how many layouts that is."""
        places = LENGTH * np.log2(knots)[:, None]
        batches, few = spread_out(places, BATCH_ANCHOR_COUNT), spread_out(places, BOTH_ANCHOR_COUNT)
        return cls(anchors, batches, few, layout_count / (layout_count + MANY_LAYOUTS))

    @classmethod
    def nothing(cls) -> Unexplained:
        """No layout of several GPUs is known."""
        return cls(np.zeros((0, 4)), np.zeros((0, 1)), np.zeros((0, 1)), 0.0)


def design(rows: Rows, best: Floats, told: Unexplained) -> tuple[StepParts, Floats]:
    """The formula at the best fit, and the derivative of log step by each number of the linear model.

        log step = formula(best) + slopes (theta - best)
                   + [k > 1] (share (0.12 u(layout) + 0.06 a w(batch)) + (1 - share) 0.05 v(layout)
                              + 0.08 a z(layout, batch))
        a        = L / (L + 20),     L layouts known

    u, v, w and z are Gaussian processes of unit variance (`likeness`; of z the product of both). Each but z is scaled
    by its share of the step: where the exchange hides, its faults do too.
    """
    parts, slopes, _ = rows.slopes(best)
    if not len(told.anchors):
        return parts, slopes
    several, share = rows.at.several[:, None], parts.share[:, None]
    like = likeness(rows.at.places, told.anchors) * several
    batch = LENGTH * rows.log2_batch[:, None]
    both = like[:, :, None] * likeness(batch, told.few_batches)[:, None, :]
    return parts, np.hstack(
        [
            slopes,
            EXCHANGE_SD * share * like,
            COMPUTE_SD * (1 - share) * like,
            BATCH_SD * told.allowed * share * likeness(batch, told.batches) * several,
            BOTH_SD * told.allowed * both.reshape(len(both), -1),
        ]
    )


def unlike(rows: Rows, parts: StepParts, told: Unexplained) -> Floats:
    """Variance of the unexplained part that no anchor tells anything about; all of it far from every anchor."""
    known = np.zeros(len(parts.share))
    if len(told.anchors):
        known = (likeness(rows.at.places, told.anchors) ** 2).sum(axis=1)
    free = np.clip(1 - known, 0, 1) * rows.at.several
    variance = (EXCHANGE_SD * parts.share) ** 2 + (COMPUTE_SD * (1 - parts.share)) ** 2
    return np.asarray(free * (variance + (BOTH_SD * told.allowed) ** 2))


def unexplained(measured: JobRows, knots: Floats) -> Unexplained:
    """What the unexplained part of these readings is told by."""
    at = measured.rows.at
    if not at.several.any():
        return Unexplained.nothing()
    places = at.places[at.several]
    return Unexplained.of(spread_out(places), knots, len(np.unique(places, axis=0)))


def posterior(
    measured: JobRows, best: Floats, told: Unexplained, parameters: Belief, curve: Belief
) -> Posterior:
    """Solve the linear model of a job.

    Args:
        measured: the readings
        best: where the formula is linearised
        told: by what the unexplained part is told
        parameters: what machine and other jobs say of the job's parameters
        curve: what is believed of the log of its compute curve

    The normal equations with weights renewed for Student's t. Readings of one layout share a disturbance; its
    covariance s^2 1 1' + D is inverted by Sherman and Morrison, layout by layout, which also lets each layout be
    left out again at the cost of one small matrix. Those left-out errors calibrate the band.
    """
    parts, features = design(measured.rows, best, told)
    count, several = features.shape[1], measured.rows.at.several
    precision = np.eye(count)
    precision[:COUNT, :COUNT] = np.linalg.inv(parameters.covariance)
    precision[COUNT : len(best), COUNT : len(best)] = np.linalg.inv(curve.covariance)
    before = np.zeros(count)
    before[:COUNT] = parameters.mean - best[:COUNT]
    before[COUNT : len(best)] = curve.mean - best[COUNT:]
    local_precision, local_pull = _local(measured, best, count)
    precision_0, pull_0 = precision + local_precision, precision @ before + local_pull

    left = measured.log_step - parts.log_step
    noise = np.full(len(left), NOISE_SD**2)
    common = np.where(several, LAYOUT_SD**2, 0.0)
    groups = _by_layout(measured.rows)
    weight = np.ones(len(left))
    for _ in range(REWEIGHTED):
        said = [_said(features[g], left[g], noise[g] / weight[g], float(common[g[0]])) for g in groups]
        total = precision_0 + sum(each for each, _ in said)
        pull = pull_0 + sum(each for _, each in said)
        covariance = np.linalg.inv(total)
        shift = covariance @ pull
        off = (left - features @ shift) / np.sqrt(noise + common)
        weight = np.minimum(robust(off), 1.0)
    scores = [
        _left_out(features[g], left[g], noise[g] + common[g], total - of, pull - at)
        for g, (of, at) in zip(groups, said, strict=True)
        if several[g[0]]
    ]
    covariance = (covariance + covariance.T) / 2
    return Posterior(shift, covariance, band_factor(scores, SHRINK_LAYOUTS), len(scores))


def band_factor(scores: list[Floats], prior_count: float) -> float:
    """What to multiply a band by so that it holds 80 % of the left-out errors, shrunk to 1 by their number.

        log factor = n / (n + prior_count) log(q80(|error / sd|) / z90)

    Args:
        scores: error / sd of the readings of each thing left out
        prior_count: how many of those things the factor 1 counts as
    """
    if not scores:
        return 1.0
    held = float(np.quantile(np.abs(np.concatenate(scores)), 0.8)) / Z90
    count = len(scores)
    return float(np.exp(np.log(max(held, 0.2)) * count / (count + prior_count)))


def _local(measured: JobRows, best: Floats, count: int) -> tuple[Floats, Floats]:
    """What the readings of compute on several GPUs (step - exposed exchange) add to the normal equations."""
    known = np.isfinite(measured.log_local)
    if not known.any():
        return np.zeros((count, count)), np.zeros(count)
    parts, _, slopes = measured.rows.slopes(best)
    off = (measured.log_local - parts.log_compute)[known]
    weight = measured.rows_count_as / LOCAL_SD**2 * robust(off / LOCAL_SD)
    wide = np.zeros((len(off), count))
    wide[:, : len(best)] = slopes[known]
    weighted = wide * weight[:, None]
    return weighted.T @ wide, weighted.T @ off


def _by_layout(rows: Rows) -> list[Ints]:
    _, group = np.unique(rows.at.places, axis=0, return_inverse=True)
    group = group.reshape(-1)
    return [np.flatnonzero(group == each) for each in range(int(group.max()) + 1)]


def _said(features: Floats, left: Floats, noise: Floats, common: float) -> tuple[Floats, Floats]:
    """Precision and pull of the readings of one layout."""
    scaled = features / noise[:, None]
    summed = scaled.sum(axis=0)
    shared = common / (1 + common * float(np.sum(1 / noise)))
    precision = features.T @ scaled - shared * np.outer(summed, summed)
    return precision, scaled.T @ left - shared * summed * float(np.sum(left / noise))


def _left_out(features: Floats, left: Floats, noise: Floats, precision: Floats, pull: Floats) -> Floats:
    """Errors of the readings of one layout [sd], told without them."""
    covariance = np.linalg.inv(precision)
    variance = np.einsum("ij,jk,ik->i", features, covariance, features) + noise
    return np.asarray((left - features @ (covariance @ pull)) / np.sqrt(np.maximum(variance, LEAST_SD**2)))
