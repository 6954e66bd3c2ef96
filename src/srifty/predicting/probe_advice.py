"""Which clusters to measure next: those whose steps would most narrow what is told of a job on a kind of machine.

A fitted model knows what it does not know, so it can be asked before any machine is rented.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from srifty.predicting.step_discrepancy import LAYOUT_SD, NOISE_SD, unlike
from srifty.predicting.step_model import Known
from srifty.predicting.step_physics import PAIR, PARAMETERS
from srifty.records.step_model import JobFit, MachineFit, ProbeAdvice, StepModel
from srifty.records.step_table import StepGrid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NODES_OF_INTEREST = 4
"""Clusters up to this size are asked about, or up to the largest measured, but none above `MOST_NODES`."""
MOST_NODES = 16
"""Larger clusters cost much to probe, and a layout of them is too long to be read."""
MOST_PROBES = 3
WORTH = 0.1
"""A probe is named if it takes away at least this share of the doubt that is left."""
NEARLY = 0.15
"""Of probes that fall short of the best by at most this share of what it takes away, the smallest is named."""
SURE_SD = 0.04
"""Doubt (logarithm) below which nothing more need be measured: about the noise of a reading."""


def advise(model: StepModel) -> tuple[ProbeAdvice, ...]:
    """The one to three layouts whose measuring would most narrow the estimates, of each job on each machine.

    Each is measured at the smallest and the largest batch known. Of a normal distribution the doubt that is left
    does not depend on what the readings will be:

        S' = S - S F' (F S F' + noise)^-1 F S,     F the features of the probe's rows

    Where no cluster of three machines was measured on a kind of machine, the exchange over more than two is a number
    of its own (on some networks two machines exchange at 1.5 times the time of three, so that probes of one and two
    mislead); that doubt is counted here, and only a probe of three or more takes it away.
    """
    kinds = {(machine.instance_type, machine.gpu): machine for machine in model.machines}
    return tuple(_advise(model, fit, kinds[fit.instance_type, fit.gpu]) for fit in model.jobs)


def _advise(model: StepModel, fit: JobFit, machine: MachineFit) -> ProbeAdvice:
    known = Known.of(model, fit.job, (fit.instance_type, fit.gpu))
    most = max(NODES_OF_INTEREST, min(MOST_NODES, machine.node_count))
    full = max(1, machine.gpus_per_node)
    counts = sorted({1, (full + 1) // 2, full})
    layouts = [(count,) * nodes for nodes in range(1, most + 1) for count in counts if nodes * count > 1]
    asked = _rows(known, layouts)
    rows, parts, features = known.design(asked)
    free = PARAMETERS[PAIR].machine_sd if machine.node_count <= 2 else 0.0
    beyond_two = free * parts.share * (rows.at.nodes > 2)
    root = np.zeros((features.shape[1] + 1, features.shape[1] + 1))
    root[:-1, :-1], root[-1, -1] = known.root, 1.0
    features = np.column_stack([features, beyond_two])
    rest = unlike(rows, parts, known.told)
    doubt = start = _doubt(features @ root, rest)
    chosen: list[tuple[int, ...]] = []
    while len(chosen) < MOST_PROBES and doubt > SURE_SD:
        tried = [_measured(root, features[2 * i : 2 * i + 2]) for i in range(len(layouts))]
        left = [_doubt(features @ each, _less(rest, i)) for i, each in enumerate(tried)]
        enough = min(left) + NEARLY * (doubt - min(left))
        best = min((len(layouts[i]), sum(layouts[i]), i) for i in range(len(layouts)) if left[i] <= enough)[2]
        if left[best] > (1 - WORTH) * doubt or layouts[best] in chosen:
            break
        chosen.append(layouts[best])
        root, rest, doubt = tried[best], _less(rest, best), left[best]
    return ProbeAdvice(
        job=fit.job,
        instance_type=fit.instance_type,
        gpu=fit.gpu,
        layouts=tuple(chosen),
        doubt_now=start,
        doubt_then=doubt,
    )


def _rows(known: Known, layouts: list[tuple[int, ...]]) -> StepGrid:
    """Each layout at the smallest and the largest batch."""
    fit = known.fit
    count = 2 * len(layouts)
    return StepGrid(
        job=(fit.job,) * count,
        machine=((fit.instance_type, fit.gpu),) * count,
        layout=tuple(layout for layout in layouts for _ in range(2)),
        batch_per_gpu=np.array([fit.smallest_batch, fit.largest_batch] * len(layouts), np.int64),
        gradient_bytes=np.full(count, np.nan),
    )


def _doubt(spread: Floats, rest: Floats) -> float:
    return float(np.mean(np.sqrt((spread**2).sum(axis=1) + rest)))


def _less(rest: Floats, probe: int) -> Floats:
    """What no anchor tells, without that of the probed layout itself."""
    left = rest.copy()
    left[2 * probe : 2 * probe + 2] = 0.0
    return left


def _measured(root: Floats, features: Floats) -> Floats:
    """A root of the covariance once these rows were read."""
    seen = features @ root
    noise = NOISE_SD**2 * np.eye(len(features)) + LAYOUT_SD**2
    inner = np.eye(root.shape[1]) - seen.T @ np.linalg.solve(seen @ seen.T + noise, seen)
    return np.asarray(root @ np.linalg.cholesky((inner + inner.T) / 2 + 1e-12 * np.eye(len(inner))))
