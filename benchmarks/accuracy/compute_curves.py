"""Step time of one GPU against its batch: how well a batch is told that was not measured.

Curves: 12 networks on four GPUs (ddps-lab/profet, medians of nine repeats) and the single-GPU rows of the DDP data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.measured import read_csv, step_timings
from srifty.predicting.compute_model import (
    BEYOND_LOG_SD,
    LEFT_OUT_LOG_SD,
    PRIOR_POINTS,
    chosen_curve,
    left_out_errors,
)

Floats = NDArray[np.float64]
Z90 = 1.2815515655446004


@dataclass(frozen=True)
class MeasuredCurve:
    """Step time of one job on one machine kind at several batches."""

    machine: str
    job: str
    batch: Floats
    seconds: Floats
    noise: float | None
    """Standard deviation of the logarithm between repeats; None: no repeats."""


def curves(folder: Path) -> list[MeasuredCurve]:
    """All curves of two batches or more; yolov3's single-GPU rows jump, and are told apart by their name."""
    readings: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in read_csv(folder / "single_gpu_step_times" / "step_times.csv"):
        batch = int(float(row["batch_per_gpu_samples"]))
        readings[row["gpu"], f"{row['model']} {row['image_side_px']}"][batch].append(
            float(row["step_time_s"])
        )
    for each in step_timings(folder):
        if each.step.gpu_count == 1:
            readings[f"{each.session} (DDP rows)", each.step.job][each.step.batch_per_gpu].append(
                each.step.step_s
            )
    found = []
    for (machine, job), by_batch in sorted(readings.items()):
        batches = sorted(by_batch)
        repeats = [np.std(np.log(by_batch[b])) for b in batches if len(by_batch[b]) > 2]
        found.append(
            MeasuredCurve(
                machine=machine,
                job=job,
                batch=np.array(batches, float),
                seconds=np.array([np.median(by_batch[b]) for b in batches]),
                noise=float(np.median(repeats)) if repeats else None,
            )
        )
    return [curve for curve in found if len(curve.batch) > 1]


def interior_errors(curve: MeasuredCurve) -> Iterator[tuple[float, float]]:
    """(log of predicted over measured, doubt) of each interior batch, told by a model that never saw it."""
    for i in range(1, len(curve.batch) - 1):
        others = np.arange(len(curve.batch)) != i
        batch, seconds = curve.batch[others], curve.seconds[others]
        chosen = chosen_curve(batch, seconds)
        own = left_out_errors(batch, seconds, chosen)
        doubt = np.sqrt((PRIOR_POINTS * LEFT_OUT_LOG_SD**2 + np.sum(own**2)) / (PRIOR_POINTS + len(own)))
        told = chosen(batch, seconds, curve.batch[i : i + 1])[0]
        yield float(np.log(told / curve.seconds[i])), float(doubt)


def doubling_error(curve: MeasuredCurve) -> tuple[float, float] | None:
    """The same for the largest batch, told from those up to half of it; None where there are fewer than two."""
    largest = curve.batch[-1]
    known = curve.batch <= largest / 1.9
    if known.sum() < 2 or largest / curve.batch[known][-1] > 2.2:
        return None
    batch, seconds = curve.batch[known], curve.seconds[known]
    chosen = chosen_curve(batch, seconds)
    own = left_out_errors(batch, seconds, chosen)
    inside = np.sqrt((PRIOR_POINTS * LEFT_OUT_LOG_SD**2 + np.sum(own**2)) / (PRIOR_POINTS + len(own)))
    doubt = np.hypot(inside, BEYOND_LOG_SD * np.sqrt(np.log2(largest / batch[-1])))
    told = chosen(batch, seconds, curve.batch[-1:])[0]
    return float(np.log(told / curve.seconds[-1])), float(doubt)


def three_batch_errors(curve: MeasuredCurve) -> list[float]:
    """|error| of every other batch where only the smallest, the largest and the one nearest to their geometric
    mean are known: what three well-placed probes are worth.
    """
    if len(curve.batch) < 4:
        return []
    middle = int(np.argmin(np.abs(np.log(curve.batch) - np.log(curve.batch[0] * curve.batch[-1]) / 2)))
    known = [0, middle, len(curve.batch) - 1]
    if middle in (known[0], known[2]):
        return []
    batch, seconds = curve.batch[known], curve.seconds[known]
    rest = np.setdiff1d(np.arange(len(curve.batch)), known)
    told = chosen_curve(batch, seconds)(batch, seconds, curve.batch[rest])
    return [float(error) for error in np.abs(told / curve.seconds[rest] - 1)]


def report(folder: Path) -> str:
    """The table, as Markdown."""
    rows: dict[str, list[MeasuredCurve]] = defaultdict(list)
    for curve in curves(folder):
        rows[curve.machine if curve.job != "yolov3" else "yolov3, all machines (reported only)"].append(curve)
    lines = [
        "| machine | batches left out | median | mean | p90 | in 80 % band | one doubling beyond: median "
        "| in 80 % band | three probes: mean | noise of a reading |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [_line(machine, of_machine) for machine, of_machine in sorted(rows.items())]
    lines.append(
        _line("all but yolov3", [c for name, cs in rows.items() if "yolov3" not in name for c in cs])
    )
    return "\n".join(lines)


def _line(machine: str, of_machine: list[MeasuredCurve]) -> str:
    inside = [pair for curve in of_machine for pair in interior_errors(curve)]
    beyond = [pair for curve in of_machine if (pair := doubling_error(curve)) is not None]
    three = [error for curve in of_machine for error in three_batch_errors(curve)]
    noises = [curve.noise for curve in of_machine if curve.noise is not None]
    relative = np.abs(np.expm1([error for error, _ in inside]))
    cells = [machine, str(len(inside))]
    cells += [f"{100 * x:.2f} %" for x in (np.median(relative), relative.mean(), np.quantile(relative, 0.9))]
    cells.append(_covered(inside))
    cells.append(f"{100 * np.median(np.abs(np.expm1([e for e, _ in beyond]))):.1f} %" if beyond else "")
    cells.append(_covered(beyond))
    cells.append(f"{100 * np.mean(three):.1f} %" if three else "")
    cells.append(f"{100 * np.median(noises):.1f} %" if noises else "one reading")
    return f"| {' | '.join(cells)} |"


def _covered(pairs: list[tuple[float, float]]) -> str:
    if not pairs:
        return ""
    return f"{100 * np.mean([abs(error) <= Z90 * doubt for error, doubt in pairs]):.0f} % of {len(pairs)}"
