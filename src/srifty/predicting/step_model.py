"""predict_steps: tell steps of any jobs on any machines from what was learned of measured ones."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from srifty.errors import InvalidInput, NotMeasured
from srifty.predicting.step_discrepancy import (
    LAYOUT_SD,
    NOISE_SD,
    SHRINK_LAYOUTS,
    Z90,
    Unexplained,
    design,
    unlike,
)
from srifty.predicting.step_features import LayoutColumns
from srifty.predicting.step_physics import (
    BYTES,
    COUNT,
    PARAMETERS,
    TYPICAL_BYTES,
    UNKNOWN_BYTES_SD,
    UNTOLD_BYTES_SD,
    Rows,
    StepParts,
    step_parts,
)
from srifty.predicting.step_shared import (
    as_square,
    as_triangle,
    bytes_sd,
    learned_bytes,
    machine_belief,
    rows_by,
)
from srifty.records.step_model import JobFit, MachineFit, StepModel
from srifty.records.step_table import Machine, StepEstimates, StepGrid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

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
    for (job, machine), rows in rows_by(tuple(zip(grid.job, grid.machine, strict=True))).items():
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
        self.root = as_square(fit.covariance_root, len(self.shift))

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
    learned, learned_sd = learned_bytes(fits).get(lender.job, (None, None))
    believed = machine_belief(kind, bytes_sd(lender.gradient_bytes, learned_sd))
    knots = len(lender.knots)
    shift = np.array(lender.shift)[COUNT : COUNT + knots]
    best = np.concatenate([believed.mean, np.array(lender.best)[COUNT:] + moved])
    root = as_square(lender.covariance_root, len(lender.shift))
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
            "covariance_root": as_triangle(np.linalg.cholesky(covariance + 1e-12 * np.eye(len(covariance)))),
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
