"""StepModel: what measured steps taught about jobs and kinds of machine, as one file."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from srifty.records.record import Count, Positive, Record

Natural = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(ge=-1e3, le=1e3)]
"""A logarithm, or a root of its covariance: far beyond anything real, so that what is told stays finite."""
Numbers = tuple[Number, ...]
Band = Annotated[float, Field(gt=0, le=1e4)]

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
    unprobed_band: Band
    """What the band of a job not measured on several GPUs is multiplied by, from the other jobs left out in turn."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        _expect("mean", self.mean, FORMULA_NUMBER_COUNT)
        _expect("covariance_root", self.covariance_root, triangle_size(FORMULA_NUMBER_COUNT))
        sizes = (self.node_count, self.gpu_count, self.gpus_per_node)
        if any(sizes) and not max(self.node_count, self.gpus_per_node, 2) <= self.gpu_count <= (
            self.node_count * self.gpus_per_node
        ):
            raise ValueError(
                f"node_count {self.node_count}, gpu_count {self.gpu_count} and gpus_per_node {self.gpus_per_node} "
                f"do not fit together"
            )
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
    anchors: tuple[tuple[Number, Number, Number, Number], ...] = ()
    """Layouts by which what the formula leaves unexplained is told; empty: none of several GPUs was measured."""
    shift: Numbers
    """Posterior mean, about `best`, of parameters, curve and unexplained part."""
    covariance_root: Numbers
    """Lower Cholesky factor of the posterior covariance, row by row without the zeros."""
    band: Band
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
        if bool(self.anchors) != bool(self.layout_count):
            raise ValueError(f"layout_count {self.layout_count} does not fit {len(self.anchors)} anchors")
        return self

    @property
    def shortest_s(self) -> float:
        """The shortest step of one GPU on the learned curve, between the smallest and the largest measured batch."""
        curve = zip(self.best[FORMULA_NUMBER_COUNT:], self.shift[FORMULA_NUMBER_COUNT:], strict=False)
        measured = [
            best + shift
            for knot, (best, shift) in zip(self.knots, curve, strict=True)
            if self.smallest_batch <= knot <= self.largest_batch
        ]
        return math.exp(min(measured, default=0.0))


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
        clusters = {(m.instance_type, m.gpu) for m in self.machines if m.node_count}
        several = {(fit.instance_type, fit.gpu) for fit in self.jobs if fit.layout_count}
        if clusters != several:
            raise ValueError(
                "node_count of a machine does not fit layout_count of its jobs: both or neither are 0"
            )
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
