"""StepModel: what measured steps taught about jobs and kinds of machine, as one file."""

from __future__ import annotations

import itertools
from typing import Annotated, Self

from pydantic import Field, model_validator

from srifty.records.record import Count, Positive, Record

Natural = Annotated[int, Field(ge=0)]
Numbers = tuple[float, ...]

FORMULA_NUMBER_COUNT = 13
"""Parameters of the step formula; another formula is another version of the format."""
BATCH_ANCHOR_COUNT = 12
"""Batches, at most, by which what the formula leaves unexplained is told."""
BOTH_ANCHOR_COUNT = 5
"""Those of them, at most, by which it is told for each layout on its own."""


def triangle_size(count: int) -> int:
    """Numbers of a lower triangle."""
    return count * (count + 1) // 2


class MachineFit(Record):
    """A kind of machine: what its jobs have in common."""

    instance_type: str
    gpu: str
    mean: Numbers
    """Parameters of the step formula, in its order; see docs/models.md."""
    covariance_root: Numbers
    """Lower Cholesky factor of their covariance, row by row without the zeros."""
    node_count: Natural
    """Most nodes of a measured cluster; 0: nothing was measured on several GPUs."""
    gpu_count: Natural
    """Most GPUs of a measured cluster."""
    gpus_per_node: Natural
    """Most GPUs used on one node."""
    unprobed_band: Positive
    """What the band of a job not measured on several GPUs is multiplied by, from the other jobs left out in turn."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _expect("mean", self.mean, FORMULA_NUMBER_COUNT)
        _expect("covariance_root", self.covariance_root, triangle_size(FORMULA_NUMBER_COUNT))
        return self


class JobFit(Record):
    """A job on a kind of machine: a linear model about the best parameters, with its doubt."""

    job: str
    instance_type: str
    gpu: str
    gradient_bytes: Positive | None = None
    """As stated; None: no row states them."""
    learned_bytes: Positive | None = None
    """Where no row states them, as the steps of several GPUs tell them: these, or where there are none those on other
    machines; None: they do not tell."""
    learned_bytes_sd: Positive | None = None
    """Doubt about the learned ones (logarithm)."""
    knots: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Batches between which the compute curve is straight [samples]."""
    smallest_batch: Count
    largest_batch: Count
    best: Numbers
    """The formula's parameters, then the logarithm of the curve at the knots [s]."""
    anchors: tuple[tuple[float, float, float, float], ...] = ()
    """Layouts by which what the formula leaves unexplained is told; empty: none of several GPUs was measured."""
    shift: Numbers
    """Posterior mean, about `best`, of parameters, curve and unexplained part."""
    covariance_root: Numbers
    """Lower Cholesky factor of the posterior covariance, row by row without the zeros."""
    band: Positive
    """What the band is multiplied by, from layouts left out in turn."""
    layout_count: Natural
    """Layouts of several GPUs measured."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if any(low >= high for low, high in itertools.pairwise(self.knots)):
            raise ValueError("knots must rise")
        if self.smallest_batch > self.largest_batch:
            raise ValueError("the smallest batch is larger than the largest")
        if (self.learned_bytes is None) != (self.learned_bytes_sd is None):
            raise ValueError("learned bytes and the doubt about them come together")
        if self.gradient_bytes is not None and self.learned_bytes is not None:
            raise ValueError("bytes are stated or learned, not both")
        numbers = FORMULA_NUMBER_COUNT + len(self.knots)
        _expect("best", self.best, numbers)
        batches, both = (min(len(self.knots), most) for most in (BATCH_ANCHOR_COUNT, BOTH_ANCHOR_COUNT))
        told = (2 + both) * len(self.anchors) + batches if self.anchors else 0
        _expect("shift", self.shift, numbers + told)
        _expect("covariance_root", self.covariance_root, triangle_size(len(self.shift)))
        return self


class StepModel(Record):
    """Learned from measured steps by `srifty fit`; `srifty predict --model` tells steps from it."""

    machines: Annotated[tuple[MachineFit, ...], Field(min_length=1)]
    jobs: Annotated[tuple[JobFit, ...], Field(min_length=1)]
    row_count: Count
    """Measured steps that it was learned from."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        machines = {(machine.instance_type, machine.gpu) for machine in self.machines}
        fits = {(fit.job, fit.instance_type, fit.gpu) for fit in self.jobs}
        if len(machines) < len(self.machines) or len(fits) < len(self.jobs):
            raise ValueError("a machine, or a job on a machine, stands there twice")
        if not {fit[1:] for fit in fits} <= machines:
            raise ValueError("a job is on a machine that is not among the machines")
        return self


class ProbeAdvice(Record):
    """What to measure next of a job on a kind of machine."""

    job: str
    instance_type: str
    gpu: str
    layouts: tuple[tuple[Count, ...], ...]
    """GPUs on each node, in order of use, each at the smallest and the largest batch; empty: nothing is worth it."""
    doubt_now: Annotated[float, Field(ge=0)]
    """Standard deviation of the logarithm of a step, mean over clusters of interest."""
    doubt_then: Annotated[float, Field(ge=0)]
    """The same once these were measured."""


def _expect(name: str, numbers: Numbers, count: int) -> None:
    if len(numbers) != count:
        raise ValueError(f"{name} holds {len(numbers)} numbers; expected are {count}")
