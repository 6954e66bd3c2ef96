"""Readings left out of a fit: which to leave out, how they were told, and how wide bands must be to hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from srifty.predicting.exchange_readings import Readings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]

FOLD_COUNT = 8
BAND = 0.9
"""Share of readings left out below p90, and above p10."""
LEAST_STRETCH = 0.25
FEWEST_SCORES = 10
"""Below this many, all sizes of message calibrate together."""


@dataclass(frozen=True)
class Scores:
    """Readings left out: error (measured - told) and half bands in the logarithm, and the weight of each."""

    error: Floats
    below: Floats
    above: Floats
    weight: Floats
    is_large: Bools

    def of(self, rows: Bools) -> Scores:
        """Some of them; all where those are too few to calibrate by."""
        rows = rows if rows.sum() >= FEWEST_SCORES else np.ones(len(rows), bool)
        return Scores(
            self.error[rows], self.below[rows], self.above[rows], self.weight[rows], self.is_large[rows]
        )

    @property
    def loss(self) -> float:
        """Mean absolute error."""
        return float((self.weight * np.abs(self.error)).sum() / max(self.weight.sum(), 1e-9))


def together(scores: Sequence[Scores]) -> Scores:
    nothing = Scores(*(np.zeros(0),) * 4, np.zeros(0, bool))
    names = ("error", "below", "above", "weight", "is_large")
    return Scores(*(np.concatenate([getattr(one, name) for one in (nothing, *scores)]) for name in names))


def folds(readings: Readings) -> list[Bools]:
    """Parts to leave out: whole sizes of cluster, as they are asked for later; else whole sizes of message."""
    e = readings.exchanges
    layouts = np.stack([readings.setup, e.node_count, e.gpus_per_node], axis=1)
    kinds, layout = np.unique(layouts, axis=0, return_inverse=True)
    layout = layout.reshape(-1)
    of_setup = np.bincount(kinds[:, 0].astype(int), minlength=len(readings.setups))
    if (of_setup > 1).any():
        # One layout of each setup at a time, so that the others of its setup are there to tell it.
        turn = np.array([int((kinds[:i, 0] == kinds[i, 0]).sum()) for i in range(len(kinds))])
        usable = of_setup[kinds[:, 0].astype(int)] > 1
        group = np.where(usable, turn % FOLD_COUNT, -1)[layout]
    else:
        sizes, size = np.unique(e.message_bytes, return_inverse=True)
        if len(sizes) < 3:
            return []
        group = size.reshape(-1) % min(FOLD_COUNT, len(sizes))
    return [group == g for g in range(int(group.max()) + 1)]


def stretch(scores: Scores) -> tuple[float, float]:
    """Factors for the half bands below and above, so that both hold what they say of readings left out."""
    if not len(scores.error):
        return 1.0, 1.0
    share = min(1.0, BAND * (1 + 1 / len(scores.error)))
    return (
        max(LEAST_STRETCH, _quantile(-scores.error / scores.below, scores.weight, share)),
        max(LEAST_STRETCH, _quantile(scores.error / scores.above, scores.weight, share)),
    )


def _quantile(values: Floats, weight: Floats, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) >= share * weight.sum() * (1 - 1e-12)
    return float(values[order][reached.argmax()])
