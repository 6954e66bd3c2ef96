"""What learning from steps and telling them share: beliefs about machines and bytes, and how they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from srifty.predicting.least_squares import Belief
from srifty.predicting.step_physics import (
    BYTES,
    COUNT,
    PARAMETERS,
    UNKNOWN_BYTES_SD,
)
from srifty.records.step_model import JobFit, MachineFit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

Key = TypeVar("Key", str, tuple[str, str], tuple[str, tuple[str, str]])

LEARNED_BYTES_SD = 0.75
"""Doubt about bytes that were learned on another kind of machine, at least: logarithm. Those of jobs that do not state
them differ by 0.6 from one machine to another (root mean square of four pairs)."""


def machine_belief(kind: MachineFit | None, bytes_sd: float) -> Belief:
    """What is believed of a job's parameters on a machine it was not measured on."""
    job_sd = np.array([p.job_sd for p in PARAMETERS])
    job_sd[BYTES] = bytes_sd
    if kind is None:
        machine_sd = np.array([p.machine_sd for p in PARAMETERS])
        return Belief(np.array([p.mean for p in PARAMETERS]), np.diag(machine_sd**2 + job_sd**2))
    root = as_square(kind.covariance_root, COUNT)
    return Belief(np.array(kind.mean), root @ root.T + np.diag(job_sd**2))


def learned_bytes(fits: list[JobFit]) -> dict[str, tuple[float, float]]:
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


def bytes_sd(stated: float | None, learned_sd: float | None) -> float:
    """Doubt about a job's gradient bytes before its own steps (logarithm)."""
    return PARAMETERS[BYTES].job_sd if stated is not None else learned_sd or UNKNOWN_BYTES_SD


def rows_by(keys: tuple[Key, ...]) -> dict[Key, Ints]:
    """Rows of each key, keys in order."""
    rows: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return {key: np.array(rows[key], np.int64) for key in sorted(rows)}


def as_triangle(lower: NDArray[np.floating[Any]]) -> tuple[float, ...]:
    """A lower triangle, row by row, to five figures: a factor, so rounding cannot make a variance negative."""
    flat = lower[np.tril_indices(len(lower))]
    return tuple(float(f"{each:.5g}") for each in flat.tolist())


def as_square(flat: tuple[float, ...], size: int) -> Floats:
    """The matrix of a triangle."""
    lower = np.zeros((size, size))
    lower[np.tril_indices(size)] = flat
    return lower
