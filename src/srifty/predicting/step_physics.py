"""What a step takes by physics: compute against batch, a ring over all GPUs, and how much of it hides.

Thirteen numbers a job on a kind of machine and its compute curve; everything else of the step model is doubt about
them, and what they leave unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from srifty.predicting.step_features import LayoutColumns, between_knots
from srifty.records.step_model import FORMULA_NUMBER_COUNT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

TYPICAL_BYTES = 1e8
"""Gradient bytes assumed where they are not known."""
UNKNOWN_BYTES_SD = 1.5
"""Doubt about that (logarithm), while steps of several GPUs are there to learn them from."""
UNTOLD_BYTES_SD = 2.0
"""Doubt where no step of several GPUs tells anything of them."""
TINY_SD = 1e-3
"""Stands for "fixed"."""
STEP = 1e-5
"""Of numerical derivatives."""


@dataclass(frozen=True)
class Parameter:
    """A number of the formula: what is believed before any reading."""

    name: str
    mean: float
    machine_sd: float
    """How far kinds of machine lie apart."""
    job_sd: float
    """How far jobs lie apart on one kind of machine."""


PARAMETERS = (
    Parameter("between", -20.5, 1.2, 0.05),
    Parameter("within", -20.5, 1.2, 0.08),
    Parameter("bytes", 0.0, TINY_SD, 0.3),
    Parameter("crowding", 0.03, 0.15, 0.07),
    Parameter("within_growth", 0.15, 0.2, 0.1),
    Parameter("pair", 0.0, 0.4, 0.1),
    Parameter("spread", 0.06, 0.07, 0.04),
    Parameter("latency", -10.5, 1.0, 0.3),
    Parameter("overlap", 0.2, 0.4, 0.7),
    Parameter("alone", 0.07, 0.06, 0.05),
    Parameter("growth", 0.02, 0.05, 0.03),
    Parameter("contention", 0.1, 0.2, 0.4),
    Parameter("uneven", 0.0, 0.15, 0.08),
)
"""Meanings in `step_parts`. The priors are wide where a figure is a property of the machine (rates: a factor of 3)
and narrow where it is a correction; one set for all machines and jobs."""
NAMES = tuple(parameter.name for parameter in PARAMETERS)
COUNT = len(PARAMETERS)
assert COUNT == FORMULA_NUMBER_COUNT, "another formula is another version of StepModel's format"  # noqa: S101
BYTES, PAIR = NAMES.index("bytes"), NAMES.index("pair")


@dataclass(frozen=True)
class StepParts:
    """What the formula tells of each row."""

    log_step: Floats
    log_compute: Floats
    share: Floats
    """d log step / d log exchange, from 0 (hidden) to 1 (the step is all exchange)."""


def step_parts(
    numbers: Floats, log_alone: Floats, log_least: float, gradient_bytes: Floats, at: LayoutColumns
) -> StepParts:
    """Logarithm of the length of a step on k GPUs of n nodes, at most m on one [s].

        step     = (compute^g + exchange^g)^(1/g),     g = 1 + exp(overlap)
        compute  = C (1 - alone r) (1 + growth log2(k) / 3 + contention (1 - 1/m) r),     r = C_least / C
        exchange = 2 (k-1)/k bytes exp(bytes_error + rate) + (k - 1) exp(latency)
        rate     = between + crowding log(m) + pair [n = 2] + spread log(n/2) + uneven log(m n / k)   if n > 1
                   within + within_growth log(k/2)                                                  if n = 1

    Args:
        numbers: `PARAMETERS`: rates as log(s/byte), latency as log(s), all others pure numbers
        log_alone: log of the 1-GPU compute curve C at each row's batch [s]
        log_least: log of C at the smallest measured batch, C_least [s]
        gradient_bytes: [bytes]
        at: the layouts

    g = 1 is no overlap at all, a large g a perfect one (Pollux, OSDI'21, has the same norm). The ring passes every
    GPU, so its volume follows GPUs and not machines (Patarasuk and Yuan, 2009). A trainer may do work on one GPU
    that it does not do on several (`alone`), and GPUs of one host contend for it (`contention`), both of them most
    where a step is short. `pair`: two machines may exchange slower than three. At k = 1 the step is C.

    Assumes equal batches and one kind of machine. The form of compute and rate is our own, found on the steps that
    docs/accuracy.md names.
    """
    p = dict(zip(NAMES, numbers.tolist(), strict=True))
    k, n, m = at.gpus, at.nodes, at.most
    alone = np.exp(np.clip(log_alone, -60, 60))
    ratio = np.minimum(np.exp(min(max(log_least, -60.0), 60.0)) / alone, 1.0)
    host = 1 + p["growth"] * np.log2(k) / 3 + p["contention"] * (1 - 1 / m) * ratio
    changed = (1 - np.clip(p["alone"], -0.5, 0.8) * ratio) * np.maximum(host, 0.3)
    compute = alone * np.where(at.several, changed, 1.0)
    across = p["between"] + p["crowding"] * np.log(m) + p["pair"] * (n == 2) + p["spread"] * np.log(n / 2)
    across = across + p["uneven"] * at.imbalance
    inside = p["within"] + p["within_growth"] * np.log(np.maximum(k, 2) / 2)
    rate = np.clip(np.where(n > 1, across, inside) + p["bytes"], -60, 20)
    exchange = gradient_bytes * 2 * (k - 1) / k * np.exp(rate) + (k - 1) * np.exp(min(p["latency"], 20.0))
    exchange = np.where(at.several, exchange, 1e-9 * compute)
    g = 1 + np.exp(min(max(p["overlap"], -4.0), 3.0))
    log_compute, log_exchange = np.log(compute), np.log(exchange)
    log_step = np.logaddexp(g * log_compute, g * log_exchange) / g
    return StepParts(log_step, log_compute, np.exp(g * (log_exchange - log_step)))


@dataclass(frozen=True)
class Rows:
    """Rows of one job on one kind of machine, as the formula needs them."""

    weights: Floats
    """Reads the curve at each row's batch, [row, knot]."""
    least: int
    """The knot of the smallest measured batch."""
    gradient_bytes: Floats
    at: LayoutColumns
    log2_batch: Floats

    @classmethod
    def of(
        cls, knots: Floats, least: int, batch: Ints, gradient_bytes: Floats, layouts: list[tuple[int, ...]]
    ) -> Rows:
        """Rows at these batches and layouts."""
        weights = between_knots(knots, batch.astype(float))
        return cls(weights, least, gradient_bytes, LayoutColumns.of(layouts), np.log2(batch.astype(float)))

    def parts(self, theta: Floats) -> StepParts:
        """The formula at theta: the parameters, then the log of the curve at its knots [s]."""
        curve = theta[COUNT:]
        return step_parts(
            theta[:COUNT], self.weights @ curve, float(curve[self.least]), self.gradient_bytes, self.at
        )

    def slopes(self, theta: Floats) -> tuple[StepParts, Floats, Floats]:
        """The formula, and the derivatives of log step and log compute by theta, [row, number]."""
        curve = theta[COUNT:]
        read, least = self.weights @ curve, float(curve[self.least])
        here = step_parts(theta[:COUNT], read, least, self.gradient_bytes, self.at)
        step, compute = np.zeros((2, len(read), len(theta)))

        def slope(numbers: Floats, log_alone: Floats, log_least: float) -> tuple[Floats, Floats]:
            there = step_parts(numbers, log_alone, log_least, self.gradient_bytes, self.at)
            return (there.log_step - here.log_step) / STEP, (there.log_compute - here.log_compute) / STEP

        for i in range(COUNT):
            moved = theta[:COUNT].copy()
            moved[i] += STEP
            step[:, i], compute[:, i] = slope(moved, read, least)
        by_curve, compute_by_curve = slope(theta[:COUNT], read + STEP, least)
        by_least, compute_by_least = slope(theta[:COUNT], read, least + STEP)
        step[:, COUNT:] = self.weights * by_curve[:, None]
        compute[:, COUNT:] = self.weights * compute_by_curve[:, None]
        step[:, COUNT + self.least] += by_least
        compute[:, COUNT + self.least] += compute_by_least
        return here, step, compute
