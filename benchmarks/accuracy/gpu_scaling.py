"""Times on a GPU that was not measured, from another and published peaks; one machine left out at a time."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.compute_curves import MeasuredCurve, curves
from srifty.predicting.gpu_scaling import PEAKS, UNMEASURED_LOG_SD

Floats = NDArray[np.float64]
Z90 = 1.2815515655446004
STUDENT_90 = {2: 1.886, 3: 1.638, 4: 1.533}
"""90th percentile of Student's distribution by degrees of freedom."""

GPUS = {"K80": "K80", "M60": "M60", "T4": "T4", "V100-16GB": "V100"}


def errors(of_machine: dict[str, list[MeasuredCurve]], measured: str, asked: str) -> Floats:
    """log(measured / predicted) on `asked`, told from `measured`, at the batches that both have."""
    ratio = PEAKS[GPUS[measured]].fp32_flop_per_s / PEAKS[GPUS[asked]].fp32_flop_per_s
    found = []
    for curve in of_machine[measured]:
        for other in of_machine[asked]:
            if other.job != curve.job:
                continue
            common, ours, theirs = np.intersect1d(curve.batch, other.batch, return_indices=True)
            if len(common):
                found.append(np.log(other.seconds[theirs] / (curve.seconds[ours] * ratio)))
    return np.concatenate(found)


def half_width(groups: list[Floats]) -> float:
    """Half width that holds 80 % of |errors|, each pair of machines counted alike."""
    values = np.concatenate([np.abs(group) for group in groups])
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in groups])
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(share, 0.8)])


def report(folder: Path) -> str:
    """The table, as Markdown."""
    of_machine: dict[str, list[MeasuredCurve]] = {name: [] for name in GPUS}
    for curve in curves(folder):
        if curve.machine in GPUS:
            of_machine[curve.machine].append(curve)
    lines = [
        "| machine left out | median error | band from the others | holds | shipped band holds |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    every = []
    for out in GPUS:
        known = [errors(of_machine, a, b) for a, b in permutations(GPUS, 2) if out not in (a, b)]
        width = half_width(known) * STUDENT_90[len(GPUS) - 1] / Z90
        asked = [errors(of_machine, a, b) for a, b in permutations(GPUS, 2) if out in (a, b)]
        held = float(np.mean([np.mean(np.abs(e) <= width) for e in asked]))
        shipped = float(np.mean([np.mean(np.abs(e) <= Z90 * UNMEASURED_LOG_SD) for e in asked]))
        every.append((held, shipped))
        size = np.median(np.abs(np.expm1(np.concatenate(asked))))
        lines.append(f"| {out} | {size:.0%} | x/{np.exp(width):.2f} | {held:.0%} | {shipped:.0%} |")
    held, shipped = np.mean(every, axis=0)
    all_pairs = [errors(of_machine, a, b) for a, b in permutations(GPUS, 2)]
    size = np.median(np.abs(np.expm1(np.concatenate(all_pairs))))
    lines.append(
        f"| all | {size:.0%} | {half_width(all_pairs):.2f} in the logarithm | {held:.0%} | {shipped:.0%} |"
    )
    return "\n".join(lines)
