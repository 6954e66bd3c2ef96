"""fit_steps and predict_steps: learn from measured steps of any jobs on any machines, and tell others.

The door of this room for steps: a table of measured steps goes in, a StepModel comes out; with a grid of steps it
gives estimates. Jobs on one kind of machine share what the machine does; each keeps its bytes and its overlap.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from srifty.errors import InvalidInput, NotMeasured
from srifty.predicting.least_squares import Belief, Group, fit_groups
from srifty.predicting.step_discrepancy import (
    LAYOUT_SD,
    LOCAL_SD,
    NOISE_SD,
    SHRINK_LAYOUTS,
    Z90,
    JobRows,
    Posterior,
    Unexplained,
    band_factor,
    design,
    posterior,
    unexplained,
    unlike,
)
from srifty.predicting.step_features import LayoutColumns
from srifty.predicting.step_physics import (
    BYTES,
    COUNT,
    PAIR,
    PARAMETERS,
    TINY_SD,
    TYPICAL_BYTES,
    UNKNOWN_BYTES_SD,
    UNTOLD_BYTES_SD,
    Rows,
    StepParts,
    step_parts,
)
from srifty.records.step_model import JobFit, MachineFit, StepModel
from srifty.records.step_table import Machine, StepEstimates, StepGrid, StepTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

Key = TypeVar("Key", str, tuple[str, str], tuple[str, tuple[str, str]])

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
LEARNED_BYTES_SD = 0.75
"""Doubt about bytes that were learned on another kind of machine, at least: logarithm. Those of jobs that do not state
them differ by 0.6 from one machine to another (root mean square of four pairs)."""
MORE_THAN_TWO_SD = 0.05
"""Doubt about the exchange over three machines and more where two were measured at most."""
RISES = (0.5, 1.0, 2.0, 3.0)
"""Doublings of the batch over which a compute curve is looked at for how it goes on rising."""
LARGEST_LOG = 500.0
"""Of a step and its band [log s]: beyond it no number is written."""
OTHER_MACHINE_SD = 0.1
"""Doubt about compute on a GPU of the same kind in another machine, whose host, cooling and clock differ: logarithm."""
OTHER_GPU_SD = 1.0
"""Doubt about compute on a GPU that no step tells anything of (logarithm): K80, M60, T4, V100, A100 are as far apart,
in the mean over pairs."""
OTHER_JOBS_SD = 0.45
"""Doubt about it where another job was measured on both GPUs: jobs differ by this in what a GPU gains (logarithm)."""


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
    parts = {machine: table.rows(rows) for machine, rows in _by(table.grid.machine).items()}
    found = {machine: _fit_machine(machine, part, stated, {}) for machine, part in parts.items()}
    learned = _learned_bytes([fit for _, of_machine in found.values() for fit in of_machine])
    for machine, (fitted, of_machine) in found.items():
        told = {
            fit.job: learned[fit.job] for fit in of_machine if fit.job in learned and not fit.layout_count
        }
        if told:
            fitted, of_machine = _fit_machine(machine, parts[machine], stated, told)
        machines.append(fitted)
        jobs += of_machine
    return StepModel(machines=tuple(machines), jobs=tuple(jobs), row_count=len(table))


def predict_steps(model: StepModel, grid: StepGrid) -> StepEstimates:
    """Tell the steps of a grid, row for row.

    The logarithm of a step is normal about the linear model, its variance that of the numbers and of a reading:
    p10 and p90 are its percentiles, `mean_s` = p50 exp(variance / 2).

    Raises:
        NotMeasured: a job of which no step was measured
        InvalidInput: the model tells a step or a band beyond all numbers
    """
    log_step, sd = np.zeros(len(grid)), np.zeros(len(grid))
    said = [""] * len(grid)
    for (job, machine), rows in _by(tuple(zip(grid.job, grid.machine, strict=True))).items():
        known = Known.of(model, job, machine)
        asked = grid.rows(rows)
        log_step[rows], sd[rows] = known.tell(asked)
        if not (np.abs(log_step[rows]) + Z90 * sd[rows] < LARGEST_LOG).all():
            raise InvalidInput(
                f"the model tells no finite step of job {job!r} on {machine[0]} ({machine[1]}), so a number in its "
                f"file must be wrong; make it again with 'srifty fit --steps'"
            )
        for row, text in zip(rows, known.extrapolated(asked), strict=True):
            said[row] = text
    p50 = np.exp(log_step)
    return StepEstimates(
        mean_s=p50 * np.exp(np.minimum(sd, 2.0) ** 2 / 2),
        p10_s=p50 * np.exp(-Z90 * sd),
        p50_s=p50,
        p90_s=p50 * np.exp(Z90 * sd),
        extrapolated=tuple(said),
    )


class Known:
    """What a model knows of a job on a kind of machine, ready to be asked."""

    def __init__(
        self, fit: JobFit, machine: MachineFit | None, notes: tuple[str, ...], extra_sd: float
    ) -> None:
        self.fit = fit
        self.machine = machine
        self.notes = notes
        """What holds for every row: not measured on this machine, ..."""
        self.extra_sd = extra_sd
        self.best = np.array(fit.best)
        anchors = np.array(fit.anchors).reshape(-1, 4)
        self.told = (
            Unexplained.of(anchors, np.array(fit.knots), fit.layout_count)
            if len(anchors)
            else Unexplained.nothing()
        )
        self.shift = np.array(fit.shift)
        self.root = _square(fit.covariance_root, len(self.shift))

    @classmethod
    def of(cls, model: StepModel, job: str, machine: Machine) -> Known:
        """Of this job on this machine, borrowed from others where it was not measured there.

        Raises:
            NotMeasured: the job was not measured at all
        """
        kind = next((m for m in model.machines if (m.instance_type, m.gpu) == machine), None)
        fits = [fit for fit in model.jobs if fit.job == job]
        if not fits:
            names = sorted({fit.job for fit in model.jobs})
            near = difflib.get_close_matches(job, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise NotMeasured(
                f"no step of job {job!r} was measured ({hint}measured: {', '.join(names)}); measure it on one GPU "
                f"(layout 1) at a few batches and fit again"
            )
        own = next((fit for fit in fits if (fit.instance_type, fit.gpu) == machine), None)
        if own is not None:
            several = () if own.layout_count else ("job not measured on several GPUs of this machine",)
            return cls(own, kind, several, 0.0)
        return cls(*_borrowed(model, fits, kind, machine))

    def design(self, asked: StepGrid) -> tuple[Rows, StepParts, Floats]:
        """Rows, what the formula tells of them, and the features of the linear model."""
        rows = Rows.of(
            np.array(self.fit.knots),
            self._least,
            np.maximum(asked.batch_per_gpu, 1),
            self._bytes(asked),
            list(asked.layout),
        )
        parts, features = design(rows, self.best, self.told)
        if self.fit.gradient_bytes is None and not self.fit.layout_count:
            # The doubt about bytes is what the grid leaves of it, if it says the bytes that the measured rows did not.
            # Else it is wide, and more bytes may be what ends the hiding, which no tangent tells: a secant upwards.
            untold_sd = self.fit.learned_bytes_sd or UNTOLD_BYTES_SD
            more = self.best + untold_sd * (np.arange(len(self.best)) == BYTES)
            secant = rows.parts(more).log_step - parts.log_step
            tangent = features[:, BYTES] * PARAMETERS[BYTES].job_sd
            move = np.where(self._bytes_from_grid(asked), tangent, secant)
            features[:, BYTES] = move / (self.fit.learned_bytes_sd or UNKNOWN_BYTES_SD)
        return rows, parts, features

    def tell(self, asked: StepGrid) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log step [s] of each row.

        Beyond the largest measured batch: the step there, and what the formula adds on a compute curve that goes on
        rising (`_rise`), so that a step never falls with the batch where nothing was measured.
        """
        log_step, sd = self._tell(asked)
        beyond = np.flatnonzero(asked.batch_per_gpu > self.fit.largest_batch)
        if len(beyond):
            there = asked.rows(beyond)
            edge = replace(there, batch_per_gpu=np.full(len(beyond), self.fit.largest_batch, np.int64))
            log_edge, edge_sd = self._tell(edge)
            log_step[beyond] = log_edge + self._rise(there)
            sd[beyond] = np.maximum(sd[beyond], edge_sd)
        return log_step, sd

    def _rise(self, asked: StepGrid) -> Floats:
        """Logarithm of step / step at the largest measured batch, by the formula.

            log C(b) = log C(largest) + slope log(b / largest)

        The slope is the curve's own beyond, or that to the largest batch from `RISES` doublings below it, in proportion
        to the batch at most; the steepest of them, for a curve of few readings may fall in between; never below 0.
        """
        theta = self.best + self.shift[: len(self.best)]
        x, curve, end = np.log(self.fit.knots), theta[COUNT:], np.log(self.fit.largest_batch)
        at_end = float(np.interp(end, x, curve))
        slope = 0.0 if len(x) == 1 else max(0.0, float((curve[-1] - curve[-2]) / (x[-1] - x[-2])))
        for doublings in RISES:
            start = max(end - doublings * np.log(2), np.log(self.fit.smallest_batch))
            if end > start:
                slope = max(slope, min(1.0, (at_end - float(np.interp(start, x, curve))) / (end - start)))
        at, size, least = LayoutColumns.of(asked.layout), self._bytes(asked), float(curve[self._least])
        edge = np.full(len(asked), at_end)
        log_there = edge + slope * (np.log(asked.batch_per_gpu) - end)
        there = step_parts(theta[:COUNT], log_there, least, size, at)
        return np.maximum(there.log_step - step_parts(theta[:COUNT], edge, least, size, at).log_step, 0.0)

    def _tell(self, asked: StepGrid) -> tuple[Floats, Floats]:
        """As `tell`, by the linear model alone."""
        rows, parts, features = self.design(asked)
        spread = features @ self.root
        variance = (spread**2).sum(axis=1) + self.extra_sd**2 + unlike(rows, parts, self.told)
        variance += NOISE_SD**2 + np.where(rows.at.several, LAYOUT_SD**2, 0.0)
        if self.machine is None or self.machine.node_count <= 2:
            variance += np.where(rows.at.nodes > 2, MORE_THAN_TWO_SD * parts.share, 0.0) ** 2
        return parts.log_step + features @ self.shift, np.sqrt(variance) * self._band(asked, rows.at.several)

    def _band(self, asked: StepGrid, several: Bools) -> Floats:
        """What the band of each row is multiplied by.

        Of a job measured on several GPUs by its own layouts left out, and the less there are of them the more by
        the other jobs left out; the latter had known bytes, so where these are not known no band is narrowed.
        """
        of_others = self.machine.unprobed_band if self.machine else 1.0
        if self.fit.layout_count:
            few = SHRINK_LAYOUTS / (SHRINK_LAYOUTS + self.fit.layout_count)
            return np.where(several, self.fit.band * min(of_others, 1.0) ** few, 1.0)
        return np.where(several, np.where(self._bytes_known(asked), of_others, max(of_others, 1.0)), 1.0)

    def extrapolated(self, asked: StepGrid) -> list[str]:
        """In what each row lies outside the measured range."""
        fit, found = self.fit, []
        measured = self.machine
        known = self._bytes_known(asked).tolist()
        for i, (layout, batch) in enumerate(zip(asked.layout, asked.batch_per_gpu.tolist(), strict=True)):
            nodes, gpus, most = len(layout), sum(layout), max(layout)
            notes = list(self.notes) if gpus > 1 or self.extra_sd > 0 else []
            if gpus > 1 and not fit.layout_count and not known[i]:
                learned = fit.learned_bytes is not None
                notes.append(f"gradient bytes {'learned from other machines' if learned else 'not known'}")
            if measured is not None and measured.node_count and gpus > 1:
                if nodes > measured.node_count:
                    notes.append(f"{nodes} nodes, measured up to {measured.node_count}")
                if most > measured.gpus_per_node:
                    notes.append(f"{most} GPUs on a node, measured up to {measured.gpus_per_node}")
                if (
                    gpus > measured.gpu_count
                    and nodes <= measured.node_count
                    and most <= measured.gpus_per_node
                ):
                    notes.append(f"{gpus} GPUs, measured up to {measured.gpu_count}")
            if batch > fit.largest_batch:
                notes.append(f"batch {batch}, measured up to {fit.largest_batch}")
            if batch < fit.smallest_batch:
                notes.append(f"batch {batch}, measured from {fit.smallest_batch}")
            found.append("; ".join(notes))
        return found

    @property
    def _least(self) -> int:
        return int(np.argmin(np.abs(np.array(self.fit.knots) - self.fit.smallest_batch)))

    def _bytes_from_grid(self, asked: StepGrid) -> Bools:
        unknown = self.fit.gradient_bytes is None and self.fit.layout_count == 0
        return np.isfinite(asked.gradient_bytes) & unknown

    def _bytes_known(self, asked: StepGrid) -> Bools:
        return self._bytes_from_grid(asked) | (self.fit.gradient_bytes is not None)

    def _bytes(self, asked: StepGrid) -> Floats:
        # Where the job was measured on several GPUs, its own numbers hold how far it lies from the typical ones.
        learned = None if self.fit.layout_count else self.fit.learned_bytes
        own = self.fit.gradient_bytes or learned or TYPICAL_BYTES
        return np.where(self._bytes_from_grid(asked), asked.gradient_bytes, own)


def _borrowed(
    model: StepModel, fits: list[JobFit], kind: MachineFit | None, machine: Machine
) -> tuple[JobFit, MachineFit | None, tuple[str, ...], float]:
    """A job on a machine it was not measured on: its curve from elsewhere, the exchange from the machine.

    On the same GPU the curve is the same but for what machines differ by. On another GPU it moves by the median ratio
    of the jobs measured on both; without any it stays, with a doubt of a factor of several.
    """
    lender = max(fits, key=lambda fit: (fit.gpu == machine[1], fit.instance_type))
    ratios = [] if lender.gpu == machine[1] else _speed_ratios(model, lender, machine)
    moved = float(np.median(ratios)) if ratios else 0.0
    same_gpu = lender.gpu == machine[1]
    extra = OTHER_JOBS_SD * np.sqrt(1 + 1 / len(ratios)) if ratios else OTHER_GPU_SD
    learned, learned_sd = _learned_bytes(fits).get(lender.job, (None, None))
    believed = _machine_belief(kind, _bytes_sd(lender.gradient_bytes, learned_sd))
    knots = len(lender.knots)
    shift = np.array(lender.shift)[COUNT : COUNT + knots]
    best = np.concatenate([believed.mean, np.array(lender.best)[COUNT:] + moved])
    root = _square(lender.covariance_root, len(lender.shift))
    covariance = np.zeros((COUNT + knots, COUNT + knots))
    covariance[:COUNT, :COUNT] = believed.covariance
    own = (root @ root.T)[COUNT : COUNT + knots, COUNT : COUNT + knots]
    covariance[COUNT:, COUNT:] = own
    fit = lender.model_copy(
        update={
            "learned_bytes": learned,
            "learned_bytes_sd": learned_sd,
            "best": tuple(best.tolist()),
            "anchors": (),
            "shift": tuple(np.concatenate([np.zeros(COUNT), shift]).tolist()),
            "covariance_root": _triangle(np.linalg.cholesky(covariance + 1e-12 * np.eye(len(covariance)))),
            "layout_count": 0,
        }
    )
    notes = ["machine not measured" if kind is None else "job not measured on this machine"]
    if not same_gpu:
        notes.append(f"GPU {machine[1]} not measured for job {lender.job}")
    return fit, kind, tuple(notes), OTHER_MACHINE_SD if same_gpu else float(extra)


def _speed_ratios(model: StepModel, lender: JobFit, machine: Machine) -> list[float]:
    """Logarithm of compute there / log compute on the lender's machine, of each job measured on both (one GPU)."""

    def level(fit: JobFit) -> float:
        curve = np.array(fit.best)[COUNT:] + np.array(fit.shift)[COUNT : COUNT + len(fit.knots)]
        middle = np.log(np.sqrt(fit.smallest_batch * fit.largest_batch))
        return float(np.interp(middle, np.log(fit.knots), curve))

    here = {fit.job: fit for fit in model.jobs if (fit.instance_type, fit.gpu) == machine}
    there = {
        fit.job: fit
        for fit in model.jobs
        if (fit.instance_type, fit.gpu) == (lender.instance_type, lender.gpu)
    }
    return [level(here[job]) - level(there[job]) for job in sorted(here.keys() & there.keys())]


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
    names = {job: table.rows(rows) for job, rows in _by(table.grid.job).items()}
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
        covariance_root=_triangle(np.linalg.cholesky(shared.means.covariance)),
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
        self.bytes_sd = _bytes_sd(gradient_bytes, self.learned_bytes_sd)
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
            covariance_root=_triangle(np.linalg.cholesky(found.covariance)),
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


def _machine_belief(kind: MachineFit | None, bytes_sd: float) -> Belief:
    """What is believed of a job's parameters on a machine it was not measured on."""
    job_sd = np.array([p.job_sd for p in PARAMETERS])
    job_sd[BYTES] = bytes_sd
    if kind is None:
        machine_sd = np.array([p.machine_sd for p in PARAMETERS])
        return Belief(np.array([p.mean for p in PARAMETERS]), np.diag(machine_sd**2 + job_sd**2))
    root = _square(kind.covariance_root, COUNT)
    return Belief(np.array(kind.mean), root @ root.T + np.diag(job_sd**2))


def _learned_bytes(fits: list[JobFit]) -> dict[str, tuple[float, float]]:
    """Of each job whose steps on several GPUs tell them: median over machines, and the doubt.

    The doubt is their spread, where that is more than `LEARNED_BYTES_SD`.
    """
    found: dict[str, list[float]] = {}
    for fit in fits:
        if fit.learned_bytes is not None and fit.layout_count:
            found.setdefault(fit.job, []).append(float(np.log(fit.learned_bytes)))
    return {
        job: (float(np.exp(np.median(logs))), max(LEARNED_BYTES_SD, float(np.std(logs))))
        for job, logs in found.items()
    }


def _bytes_sd(stated: float | None, learned_sd: float | None) -> float:
    """Doubt about a job's gradient bytes before its own steps (logarithm)."""
    return PARAMETERS[BYTES].job_sd if stated is not None else learned_sd or UNKNOWN_BYTES_SD


def _gradient_bytes(grid: StepGrid) -> dict[str, float]:
    """Of each job that states them, on whatever machine."""
    known = np.flatnonzero(np.isfinite(grid.gradient_bytes))
    return {grid.job[i]: float(grid.gradient_bytes[i]) for i in known[::-1]}


def _by(keys: tuple[Key, ...]) -> dict[Key, Ints]:
    """Rows of each key, keys in order."""
    rows: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return {key: np.array(rows[key], np.int64) for key in sorted(rows)}


def _triangle(lower: NDArray[np.floating[Any]]) -> tuple[float, ...]:
    """A lower triangle, row by row, to five figures: a factor, so rounding cannot make a variance negative."""
    flat = lower[np.tril_indices(len(lower))]
    return tuple(float(f"{each:.5g}") for each in flat.tolist())


def _square(flat: tuple[float, ...], size: int) -> Floats:
    """The matrix of a triangle."""
    lower = np.zeros((size, size))
    lower[np.tril_indices(size)] = flat
    return lower
