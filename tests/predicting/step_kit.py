"""Steps made from known numbers, so that a fit can be held against them."""

from __future__ import annotations

import numpy as np

from srifty.predicting.step_features import LayoutColumns
from srifty.predicting.step_physics import NAMES, PARAMETERS, step_parts
from srifty.records.step_table import StepGrid, StepTable

TRUE = {"between": -20.8, "within": -22.0, "crowding": 0.1, "pair": 0.3, "overlap": 0.1, "contention": 0.2}
JOBS = {"small": 5e7, "middle": 1e8, "large": 4e8}
BATCHES = (8, 16, 32, 64)
LAYOUTS = (
    (1,), (2,), (4,), (1, 1), (2, 2), (4, 4), (4, 2), (1, 1, 1), (2, 2, 2), (4, 4, 4), (4, 2, 1), (3, 3, 3),
    (1, 1, 1, 1), (2, 2, 2, 2), (4, 4, 4, 4),
)  # fmt: skip


def numbers(**true: float) -> np.ndarray:
    """Parameters of the formula: the priors' means where nothing is given."""
    return np.array([true.get(p.name, p.mean) for p in PARAMETERS])


def alone_s(job: str, batch: np.ndarray) -> np.ndarray:
    """The 1-GPU curve."""
    return 0.04 + 0.004 * batch * (1 + 0.2 * sorted(JOBS).index(job))


def grid(jobs=tuple(JOBS), layouts=LAYOUTS, batches=BATCHES, machine=("box", "T4"), known_bytes=True):
    """Every job at every layout and batch."""
    rows = [(j, layout, b) for j in jobs for layout in layouts for b in batches]
    return StepGrid(
        job=tuple(row[0] for row in rows),
        machine=(machine,) * len(rows),
        layout=tuple(row[1] for row in rows),
        batch_per_gpu=np.array([row[2] for row in rows], np.int64),
        gradient_bytes=np.array([JOBS[row[0]] if known_bytes else np.nan for row in rows]),
    )


def true_step_s(asked: StepGrid, true=TRUE) -> np.ndarray:
    """What a step really takes [s]."""
    assert set(true) <= set(NAMES)
    at = LayoutColumns.of(asked.layout)
    found = np.zeros(len(asked))
    for job in set(asked.job):
        own = np.array([each == job for each in asked.job])
        curve = np.log(alone_s(job, asked.batch_per_gpu))
        least = float(np.log(alone_s(job, np.array([min(BATCHES)])))[0])
        size = np.full(len(asked), JOBS[job])
        found[own] = np.exp(step_parts(numbers(**true), curve, least, size, at).log_step)[own]
    return found


def table(asked: StepGrid, true=TRUE, noise=0.01, seed=0) -> StepTable:
    """Readings of these steps."""
    spread = np.random.default_rng(seed).normal(0, noise, len(asked))
    return StepTable(asked, true_step_s(asked, true) * np.exp(spread), np.full(len(asked), np.nan))
