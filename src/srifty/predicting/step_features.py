"""What of a layout and a batch the step model looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

SCALES = np.array([1.0, 1.5, 1.5, 0.5])
"""Distance that counts as one: a doubling of nodes, 1.5 doublings of GPUs, 0.5 of the logarithm of imbalance."""
LENGTH = 1.7
"""Distance over which layouts resemble one another."""
BASIS_COUNT = 16
"""Layouts, spread over those measured, whose likeness to a layout stands for it."""


@dataclass(frozen=True)
class LayoutColumns:
    """GPUs on each node, as the formulas need them, row for row; the order of the nodes does not matter."""

    nodes: Floats
    gpus: Floats
    most: Floats
    """GPUs on the node that has most."""

    @classmethod
    def of(cls, layouts: Sequence[tuple[int, ...]]) -> LayoutColumns:
        """Columns of the layouts."""
        return cls(
            np.array([len(layout) for layout in layouts], float),
            np.array([sum(layout) for layout in layouts], float),
            np.array([max(layout) for layout in layouts], float),
        )

    @property
    def several(self) -> Bools:
        """Whether gradients are exchanged at all."""
        return np.asarray(self.gpus > 1)

    @property
    def imbalance(self) -> Floats:
        """log(most / mean GPUs a node); 0 where all nodes have as many."""
        return np.asarray(np.log(self.most * self.nodes / self.gpus))

    @property
    def places(self) -> Floats:
        """Where each layout stands: nodes, most GPUs on one, GPUs, imbalance; [row, 4], in units of `SCALES`."""
        columns = (np.log2(self.nodes), np.log2(self.most), np.log2(self.gpus), self.imbalance)
        return np.asarray(np.round(np.column_stack(columns) / SCALES, 6))


def spread_out(places: Floats, count: int = BASIS_COUNT) -> Floats:
    """At most `count` of the places, each the farthest from those chosen before."""
    distinct = np.unique(places, axis=0)
    if len(distinct) <= count:
        return distinct
    chosen = [0]
    nearest = np.full(len(distinct), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, ((distinct - distinct[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(np.argmax(nearest)))
    return distinct[chosen]


def likeness(places: Floats, anchors: Floats) -> Floats:
    """Features whose inner product is the Gaussian kernel exp(-distance^2 / (2 LENGTH^2)), [row, anchor].

    Nystroem's approximation: exact at the anchors, the kernel's projection on them elsewhere; far from all
    anchors the features vanish, and with them what was learned.
    """

    def kernel(a: Floats, b: Floats) -> Floats:
        distance = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
        return np.asarray(np.exp(-0.5 * distance / LENGTH**2))

    lower = np.linalg.cholesky(kernel(anchors, anchors) + 1e-6 * np.eye(len(anchors)))
    return np.asarray(np.linalg.solve(lower, kernel(anchors, places)).T)


def between_knots(knots: Floats, batch: Floats) -> Floats:
    """Weights [row, knot] that read a curve at each batch, straight between the knots in log-log, and beyond."""
    if len(knots) == 1:
        return np.ones((len(batch), 1))
    x, at = np.log(knots), np.log(batch)
    left = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
    part = (at - x[left]) / (x[left + 1] - x[left])
    weights = np.zeros((len(at), len(x)))
    row = np.arange(len(at))
    weights[row, left], weights[row, left + 1] = 1 - part, part
    return weights
