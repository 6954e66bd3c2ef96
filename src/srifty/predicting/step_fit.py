"""fit_steps: learn from measured steps of any jobs on any machines.

Jobs on one kind of machine share what the machine does; each keeps its bytes and its overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from srifty.predicting.least_squares import Belief, Group, fit_groups
from srifty.predicting.step_discrepancy import (
    LAYOUT_SD,
    LOCAL_SD,
    NOISE_SD,
    JobRows,
    Posterior,
    Unexplained,
    band_factor,
    design,
    posterior,
    unexplained,
    unlike,
)
from srifty.predicting.step_physics import (
    BYTES,
    COUNT,
    PAIR,
    PARAMETERS,
    TINY_SD,
    TYPICAL_BYTES,
    Rows,
)
from srifty.predicting.step_shared import (
    as_triangle,
    bytes_sd,
    learned_bytes,
    rows_by,
)
from srifty.records.step_model import JobFit, MachineFit, StepModel
from srifty.records.step_table import Machine, StepGrid, StepTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

FIT_SD = 0.05
"""How far a row may lie from the formula, noise and its faults together (logarithm)."""
CURVE_SLOPE, CURVE_SLOPE_SD = 0.6, 0.35
"""d log compute / d log batch, before any reading."""
CURVE_BEND_SD = 0.2
"""Bends of the compute curve, alike over a doubling of the batch."""
CURVE_JUMP_SD = 0.04
"""Jumps of it from one batch to the next: another kernel."""
CURVE_LEVEL_SD = 3.0
SHRINK_JOBS = 2.0
"""Jobs that a band factor of 1 counts as."""


def fit_steps(table: StepTable) -> StepModel:
    """Learn from measured steps.

    Per kind of machine: the formula (`step_physics`) is fitted to all jobs at once, each job's numbers drawn about
    the machine's; then each job's linear model (`step_discrepancy`) is solved about its best fit. Bytes that no row
    states are learned where the job was measured on several GPUs, and taken over where it was not; but only from
    machines where its exchange outlasts compute somewhere, and that of most jobs whose bytes are stated: what hides
    says nothing of its bytes.

    Args:
        table: measured steps of any jobs on any machines; one row or more
    """
    machines, jobs = [], []
    stated = _gradient_bytes(table.grid)
    parts = {machine: table.rows(rows) for machine, rows in rows_by(table.grid.machine).items()}
    found = {machine: _fit_machine(machine, part, stated, {}) for machine, part in parts.items()}
    learned = learned_bytes([fit for _, of_machine in found.values() for fit in of_machine])
    for machine, (fitted, of_machine) in found.items():
        told = {
            fit.job: learned[fit.job] for fit in of_machine if fit.job in learned and not fit.layout_count
        }
        if told:
            fitted, of_machine = _fit_machine(machine, parts[machine], stated, told)
        machines.append(fitted)
        jobs += of_machine
    return StepModel(machines=tuple(machines), jobs=tuple(jobs), row_count=len(table))


def _fit_machine(
    machine: Machine, table: StepTable, stated: dict[str, float], learned: dict[str, tuple[float, float]]
) -> tuple[MachineFit, list[JobFit]]:
    """Fit all jobs of one kind of machine.

    Args:
        machine: its name
        table: its rows
        stated: gradient bytes of the jobs of which they are
        learned: of other jobs, as told by other machines, with the doubt about them (logarithm)
    """
    names = {job: table.rows(rows) for job, rows in rows_by(table.grid.job).items()}
    layouts = [layout for layout in table.grid.layout if sum(layout) > 1]
    nodes = max((len(layout) for layout in layouts), default=0)
    learners = [
        _Learner(job, rows, stated.get(job), learned.get(job, (None, None))) for job, rows in names.items()
    ]
    mean = np.array([p.mean for p in PARAMETERS])
    machine_sd = np.array([p.machine_sd for p in PARAMETERS])
    if nodes <= 2:  # it would take up other misfit, and spoil the step to three machines
        machine_sd[PAIR] = TINY_SD
    groups = [learner.group(nodes <= 2) for learner in learners]
    shared = fit_groups(groups, mean, machine_sd)
    # The rate is known by the jobs whose bytes are, if most of them show it; bytes are known by the rate.
    outlast = [
        learner.outlasts(theta)
        for learner, theta in zip(learners, shared.theta, strict=True)
        if learner.gradient_bytes is not None and learner.measured.rows.at.several.any()
    ]
    rate_told = 2 * sum(outlast) > len(outlast)
    fits, scores = [], []
    for learner, group, theta, without in zip(learners, groups, shared.theta, shared.without, strict=True):
        apart = Belief(without.mean, without.covariance + np.diag(group.apart_sd**2))
        curve = Belief(group.own_mean, learner.curve_covariance)
        told = unexplained(learner.measured, learner.knots)
        found = posterior(learner.measured, theta, told, apart, curve)
        fits.append(learner.fit(machine, theta, told.anchors, found, rate_told))
        if learner.gradient_bytes is not None and found.layout_count and len(learners) > 1:
            scores.append(learner.unprobed_scores(theta, apart, curve))
    fitted = MachineFit(
        instance_type=machine[0],
        gpu=machine[1],
        mean=tuple(shared.means.mean.tolist()),
        covariance_root=as_triangle(np.linalg.cholesky(shared.means.covariance)),
        node_count=nodes,
        gpu_count=max((sum(layout) for layout in layouts), default=0),
        gpus_per_node=max((max(layout) for layout in layouts), default=0),
        unprobed_band=band_factor([each for each in scores if len(each)], SHRINK_JOBS),
    )
    return fitted, fits


class _Learner:
    """One job on one kind of machine, while it is learned."""

    def __init__(
        self,
        job: str,
        table: StepTable,
        gradient_bytes: float | None,
        learned: tuple[float, float] | tuple[None, None],
    ) -> None:
        self.job = job
        self.gradient_bytes = gradient_bytes
        self.learned_bytes: float | None = learned[0]
        self.learned_bytes_sd: float | None = learned[1]
        self.bytes_sd = bytes_sd(gradient_bytes, self.learned_bytes_sd)
        batch = table.grid.batch_per_gpu
        inner = np.unique(batch).astype(float)
        self.smallest, self.largest = int(inner[0]), int(inner[-1])
        below = [inner[0] / 2] if inner[0] >= 2 else []
        self.knots = np.concatenate([below, inner, [2 * inner[-1]]])
        least = len(below)
        size = np.full(len(table), gradient_bytes or self.learned_bytes or TYPICAL_BYTES)
        rows = Rows.of(self.knots, least, batch, size, list(table.grid.layout))
        local = table.step_s - table.exposed_allreduce_s
        usable = rows.at.several & (np.nan_to_num(local, nan=-1.0) > 0.05 * table.step_s)
        log_local = np.log(np.where(usable, local, 1.0))
        self.measured = JobRows(rows, np.log(table.step_s), np.where(usable, log_local, np.nan))
        self.start = self._start_curve()
        x = np.log2(self.knots)
        apart = np.abs(x[:, None] - x[None])
        centred = (x - x.mean()) * np.log(2)
        self.curve_covariance = (
            CURVE_LEVEL_SD**2
            + CURVE_SLOPE_SD**2 * np.outer(centred, centred)
            + CURVE_BEND_SD**2 * np.exp(-2 * apart**2)
            + CURVE_JUMP_SD**2 * np.eye(len(x))
        )

    def _start_curve(self) -> Floats:
        """The fastest reading of each batch, on one GPU where there is one, along a straight line elsewhere."""
        at, log_step = self.measured.rows.at, self.measured.log_step
        chosen = ~at.several if (~at.several).any() else np.ones(len(log_step), bool)
        nearest = np.argmax(self.measured.rows.weights, axis=1)
        line = CURVE_SLOPE * np.log(self.knots)
        level = float(np.min(log_step[chosen] - line[nearest][chosen]))
        if (~at.several).any():
            level = float(np.mean(log_step[chosen] - line[nearest][chosen]))
        curve = line + level
        for knot in set(nearest[chosen].tolist()):
            curve[knot] = log_step[chosen & (nearest == knot)].min()
        return np.asarray(curve)

    def group(self, pair_fixed: bool) -> Group:
        """The job's readings for the fit of the formula."""
        several = self.measured.rows.at.several
        sd = np.where(several, FIT_SD, NOISE_SD)
        local = np.isfinite(self.measured.log_local)
        log_local = np.where(local, self.measured.log_local, 0.0)
        log_step, rows, count_as = self.measured.log_step, self.measured.rows, self.measured.rows_count_as

        def residuals(theta: Floats) -> Floats:
            parts = rows.parts(theta)
            off = np.where(local, log_local - parts.log_compute, 0.0)
            return np.concatenate([(log_step - parts.log_step) / sd, off / LOCAL_SD])

        def slopes(theta: Floats) -> tuple[Floats, Floats]:
            parts, by_step, by_compute = rows.slopes(theta)
            off = np.where(local, log_local - parts.log_compute, 0.0)
            residual = np.concatenate([(log_step - parts.log_step) / sd, off / LOCAL_SD])
            return residual, np.vstack([by_step / sd[:, None], by_compute * local[:, None] / LOCAL_SD])

        job_sd = np.array([p.job_sd for p in PARAMETERS])
        job_sd[BYTES] = self.bytes_sd
        if pair_fixed:
            job_sd[PAIR] = TINY_SD
        weight = np.concatenate([np.where(several, count_as, 1.0), np.where(local, count_as, 0.0)])
        line = CURVE_SLOPE * np.log(self.knots)
        own_mean = line + float(np.mean(self.start - line))
        start = np.concatenate([[p.mean for p in PARAMETERS], self.start])
        return Group(residuals, slopes, weight, start, job_sd, own_mean, np.linalg.inv(self.curve_covariance))

    def outlasts(self, theta: Floats) -> bool:
        """Whether the exchange of any reading takes longer than its compute."""
        return bool((self.measured.rows.parts(theta).share > 0.5).any())

    def fit(
        self, machine: Machine, theta: Floats, anchors: Floats, found: Posterior, rate_told: bool
    ) -> JobFit:
        """The record of what was learned."""
        learned, learned_sd = self.learned_bytes, self.learned_bytes_sd
        if self.gradient_bytes is None and found.layout_count and rate_told and self.outlasts(theta):
            learned = float(TYPICAL_BYTES * np.exp(theta[BYTES] + found.shift[BYTES]))
            learned_sd = float(np.sqrt(found.covariance[BYTES, BYTES]))
        return JobFit(
            job=self.job,
            instance_type=machine[0],
            gpu=machine[1],
            gradient_bytes=self.gradient_bytes,
            learned_bytes=learned,
            learned_bytes_sd=learned_sd,
            knots=tuple(self.knots.tolist()),
            smallest_batch=self.smallest,
            largest_batch=self.largest,
            best=tuple(theta.tolist()),
            anchors=tuple((a, b, c, d) for a, b, c, d in anchors.tolist()),
            shift=tuple(found.shift.tolist()),
            covariance_root=as_triangle(np.linalg.cholesky(found.covariance)),
            band=found.band,
            layout_count=found.layout_count,
        )

    def unprobed_scores(self, theta: Floats, apart: Belief, curve: Belief) -> Floats:
        """Errors of the rows of several GPUs [sd], told from those of one and from the other jobs."""
        several = self.measured.rows.at.several
        if several.all():
            return np.zeros(0)
        best = np.concatenate([apart.mean, theta[COUNT:]])
        nothing = Unexplained.nothing()
        found = posterior(self.measured.of(np.flatnonzero(~several)), best, nothing, apart, curve)
        asked = self.measured.of(np.flatnonzero(several))
        parts, features = design(asked.rows, best, nothing)
        variance = np.einsum("ij,jk,ik->i", features, found.covariance, features) + NOISE_SD**2 + LAYOUT_SD**2
        variance += unlike(asked.rows, parts, nothing)
        return np.asarray(
            (asked.log_step - parts.log_step - features @ found.shift) / np.sqrt(np.maximum(variance, 1e-8))
        )


def _gradient_bytes(grid: StepGrid) -> dict[str, float]:
    """Of each job that states them, on whatever machine."""
    known = np.flatnonzero(np.isfinite(grid.gradient_bytes))
    return {grid.job[i]: float(grid.gradient_bytes[i]) for i in known[::-1]}
