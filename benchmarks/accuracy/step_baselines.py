"""What stands beside the step model: simpler ways to tell a step from the same known rows, and nominal rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.accuracy.machines import GBIT, MACHINES
from srifty.predicting.boosted_trees import xgboost_module
from srifty.records.step_table import StepGrid, StepTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Baseline = Callable[[StepTable, StepGrid], Floats]

BACKWARD_SHARE = 0.62
"""Of a step on one GPU: what an exchange can hide behind."""
ROUNDS = 200


def compute_only(known: StepTable, asked: StepGrid) -> Floats:
    """The curve of one GPU, and no exchange."""
    rows = [i for i, layout in enumerate(known.grid.layout) if sum(layout) == 1]
    rows = [i for i in rows if known.grid.job[i] == asked.job[0]]
    batch = known.grid.batch_per_gpu[rows]
    distinct = np.unique(batch)
    curve = np.array([known.step_s[rows][batch == each].mean() for each in distinct])
    return np.asarray(np.exp(np.interp(np.log(asked.batch_per_gpu), np.log(distinct), np.log(curve))))


def nominal(known: StepTable, asked: StepGrid) -> Floats:
    """A ring at the nominal rate of its slowest link, hidden behind the backward pass."""
    return _with_exchange(
        known, asked, lambda between, within, across, inside: _least(between, within, across)
    )


def mean_link(known: StepTable, asked: StepGrid) -> Floats:
    """A ring at the mean of its links' nominal rates."""
    return _with_exchange(
        known,
        asked,
        lambda between, within, across, inside: (between * across + within * inside) / (across + inside),
    )


def seven_parameters(known: StepTable, asked: StepGrid) -> Floats:
    """The throughput model of Pollux (OSDI'21), fitted to the known rows of the job alone.

        step = (grad^g + sync^g)^(1/g);   grad = a + b batch
        sync = 0 at k = 1,  c + d (k - 2) on one node,  e + f (k - 2) on several

    by least squares of the logarithm, from four starts.
    """
    rows = np.array([i for i, job in enumerate(known.grid.job) if job == asked.job[0]])
    own = known.rows(rows)
    start_s = float(own.step_s.min())
    largest = float(own.grid.batch_per_gpu.max())
    best, least = np.zeros(7), np.inf
    for sync in (0.1, 1.0):
        for share in (0.2, 0.8):
            start = np.log(
                [
                    share * start_s,
                    (1 - share) * start_s / largest * 3,
                    sync * start_s,
                    0.01 * sync * start_s,
                    sync * start_s,
                    0.01 * sync * start_s,
                    1.0,
                ]
            )
            found, cost = _least_squares(own, start)
            if cost < least:
                best, least = found, cost
    return np.exp(_pollux(best, asked))


def raw_trees(known: StepTable, asked: StepGrid) -> Floats:
    """Boosted trees on layout, batch, gradient bytes and job as they are, without a formula."""
    xgboost = xgboost_module()
    jobs = sorted(set(known.grid.job))

    def columns(grid: StepGrid) -> Floats:
        return np.array(
            [
                [len(layout), sum(layout), max(layout), min(layout), batch, size, jobs.index(job)]
                for layout, batch, size, job in zip(
                    grid.layout, grid.batch_per_gpu, grid.gradient_bytes, grid.job, strict=True
                )
            ],
            float,
        )

    data = xgboost.DMatrix(columns(known.grid), label=np.log(known.step_s))
    booster = xgboost.train({"max_depth": 4, "eta": 0.1, "nthread": 1}, data, num_boost_round=200)
    return np.asarray(np.exp(booster.predict(xgboost.DMatrix(columns(asked)))))


BASELINES: dict[str, Baseline] = {
    "compute only": compute_only,
    "nominal rate": nominal,
    "mean link": mean_link,
    "seven parameters": seven_parameters,
    "trees on raw features": raw_trees,
}


def _least(between: Floats, within: Floats, across: Floats) -> Floats:
    return np.where(across > 0, np.minimum(between, within), within)


def _with_exchange(
    known: StepTable, asked: StepGrid, rate: Callable[[Floats, Floats, Floats, Floats], Floats]
) -> Floats:
    """Step time with an exchange at a rate told from the links' rates and how many the ring has of each."""
    alone = compute_only(known, asked)
    machine = MACHINES[asked.machine[0][0].rpartition("/")[2]]
    nodes = np.array([len(layout) for layout in asked.layout], float)
    gpus = np.array([sum(layout) for layout in asked.layout], float)
    across = np.where(nodes > 1, nodes, 0.0)
    inside = np.maximum(gpus - across, 0.0) + (gpus == 1)
    between = np.full(len(gpus), machine.network_gbit_per_s * GBIT)
    within = np.full(len(gpus), machine.gpu_link_gbyte_per_s * 1e9)
    size = np.nan_to_num(asked.gradient_bytes)
    exchange = 2 * (gpus - 1) / gpus * size / rate(between, within, across, inside)
    return np.asarray(alone + np.maximum(0.0, exchange - BACKWARD_SHARE * alone))


def _pollux(numbers: Floats, grid: StepGrid) -> Floats:
    """Logarithm of the step [s]."""
    a, b, c, d, e, f, g = np.exp(np.clip(numbers, -30, 10))
    nodes = np.array([len(layout) for layout in grid.layout], float)
    gpus = np.array([sum(layout) for layout in grid.layout], float)
    power = min(max(g, 1.0), 10.0)
    grad = a + b * grid.batch_per_gpu
    more = np.maximum(gpus - 2, 0)
    sync = np.where(gpus == 1, 1e-12, np.where(nodes == 1, c + d * more, e + f * more))
    return np.asarray(np.logaddexp(power * np.log(grad), power * np.log(sync)) / power)


def _least_squares(own: StepTable, start: Floats) -> tuple[Floats, float]:
    log_step = np.log(own.step_s)
    numbers, damping = start, 1e-2
    off = log_step - _pollux(numbers, own.grid)
    cost = float(off @ off)
    for _ in range(ROUNDS):
        here = _pollux(numbers, own.grid)
        slopes = np.column_stack(
            [(_pollux(numbers + 1e-5 * row, own.grid) - here) / 1e-5 for row in np.eye(len(numbers))]
        )
        curvature = slopes.T @ slopes
        move = np.linalg.solve(
            curvature + damping * np.diag(np.diag(curvature)) + 1e-9 * np.eye(len(numbers)), slopes.T @ off
        )
        trial = numbers + np.clip(move, -1, 1)
        trial_off = log_step - _pollux(trial, own.grid)
        trial_cost = float(trial_off @ trial_off)
        if trial_cost < cost:
            done = cost - trial_cost < 1e-6 * cost
            numbers, off, cost, damping = trial, trial_off, trial_cost, damping / 4
            if done:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return numbers, cost
