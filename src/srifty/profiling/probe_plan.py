"""Which exchange to measure next: the one that is least sure and counts most, as long as time is left.

Machines are paid for while they are measured, so a grid of every size on every group is a waste: neighbours tell
most of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SMALLEST_BYTES = 2**10
SIGNAL_LOG_SD = 0.5
"""How far a size may lie from what its neighbours say, before it is measured."""
NEAR_OCTAVES = (3.0, 1.5, 1.5, 1.5)
"""Distance in message, nodes, GPUs a node and exchanges at once over which one point tells of another (doublings)."""
NOISE_LOG_SD = 0.03
SURE_ENOUGH = 0.03
"""Doubt times importance below which no point is worth its time."""
LARGEST_STEP = 16
"""A group's next message is at most so many times its largest yet, so that no exchange takes unforeseen minutes."""
SHARE_OF_REST = 0.25
"""Of the time that is left, what one point may take."""
LONGEST_POINT_S = 20.0
MOST_POINTS = 150
MOST_LAYOUTS = 12


@dataclass(frozen=True)
class Point:
    """An exchange to measure: which ranks, how large, how many at once."""

    node_count: int
    gpus_per_node: int
    message_bytes: int
    concurrency: int = 1

    @property
    def place(self) -> tuple[float, float, float, float]:
        """Where it lies, in doublings."""
        sizes = (self.message_bytes, self.node_count, self.gpus_per_node, self.concurrency)
        return tuple(math.log2(size) for size in sizes)  # type: ignore[return-value]


@dataclass
class ProbePlan:
    """What was measured so far, and what is worth measuring next.

    A Gaussian process tells the doubt about each candidate: one for points far from all measured ones, none at a
    measured one but the noise of its repeats (Rasmussen and Williams, "Gaussian Processes for Machine Learning",
    2006, 2.2).
    """

    candidates: Sequence[Point]
    measured: list[tuple[Point, float, float]] = field(default_factory=list)
    """Each with the median of its repeats [s], and the standard deviation of its logarithm."""

    def add(self, point: Point, repeats_s: Sequence[float]) -> None:
        """Take note of a measured point."""
        logs = np.log(repeats_s)
        noise = max(NOISE_LOG_SD, float(np.std(logs))) / math.sqrt(len(repeats_s))
        self.measured.append((point, float(np.median(repeats_s)), noise))

    def next_point(self, left_s: float) -> Point | None:
        """The point with the most doubt times importance of those that fit in the time left; None: enough.

        Args:
            left_s: time left for measuring [s]
        """
        if not self.measured:
            return min(self.candidates, key=lambda point: (point.message_bytes, -point.node_count))
        if len(self.measured) >= MOST_POINTS:
            return None
        limit = min(SHARE_OF_REST * left_s, LONGEST_POINT_S)
        done = {point for point, _, _ in self.measured}
        largest: dict[tuple[int, int], int] = {}
        for point in done:
            key = (point.node_count, point.gpus_per_node)
            largest[key] = max(largest.get(key, 0), point.message_bytes)
        near = [
            point
            for point in self.candidates
            if point not in done
            and point.message_bytes
            <= LARGEST_STEP * largest.get((point.node_count, point.gpus_per_node), SMALLEST_BYTES)
        ]
        open_points = [
            point
            for point, expected in zip(near, self._expected_s(near), strict=True)
            if expected * (1 + repeat_count(expected)) < limit
        ]
        if not open_points:
            return None
        worth = self.doubt(open_points) * np.array([importance(point) for point in open_points])
        best = int(worth.argmax())
        return open_points[best] if worth[best] > SURE_ENOUGH else None

    def doubt(self, points: Sequence[Point]) -> Floats:
        """Standard deviation of the logarithm of each point's time, given what was measured."""
        seen = np.array([point.place for point, _, _ in self.measured])
        asked = np.array([point.place for point in points])
        between = _kernel(seen, seen) + np.diag([noise**2 for _, _, noise in self.measured])
        across = _kernel(asked, seen)
        told = np.einsum("ij,ji->i", across, np.linalg.solve(between, across.T))
        return np.asarray(np.sqrt(np.maximum(SIGNAL_LOG_SD**2 - told, 0.0)))

    def expected_s(self, point: Point) -> float:
        """About how long one exchange takes: that of the nearest measured one, in proportion to bytes if larger [s]."""
        return self._expected_s([point])[0]

    def _expected_s(self, points: Sequence[Point]) -> list[float]:
        if not points:
            return []
        seen = np.array([point.place for point, _, _ in self.measured])
        asked = np.array([point.place for point in points])
        more = asked[:, None, :] - seen[None, :, :]
        nearest = (np.abs(more) / np.array(NEAR_OCTAVES)).sum(axis=2).argmin(axis=1)
        octaves = more[np.arange(len(points)), nearest]
        bytes_more, peers_more = octaves[:, 0] + octaves[:, 3], octaves[:, 1] + octaves[:, 2]
        seconds = np.array([seconds for _, seconds, _ in self.measured])[nearest]
        longer: list[float] = (
            seconds * 2 ** np.maximum(bytes_more, 0) * 2 ** np.maximum(peers_more, 0)
        ).tolist()
        return longer


def candidates(layouts: Sequence[tuple[int, int]], max_message_bytes: int) -> tuple[Point, ...]:
    """Every point that may be asked for: each layout with messages from 1 KiB, one at a time and two.

    Two at once only between 1 and 64 MiB, where DDP's buckets are.
    """
    top = int(math.log2(max_message_bytes))
    sizes = [2**power for power in range(int(math.log2(SMALLEST_BYTES)), top + 1)]
    return tuple(
        Point(nodes, gpus, size, concurrency)
        for nodes, gpus in layouts
        for size in sizes
        for concurrency in ((1, 2) if 2**20 <= size <= 2**26 else (1,))
    )


def layouts(node_count: int, gpus_per_node: int) -> tuple[tuple[int, int], ...]:
    """Groups of ranks to measure, (nodes, GPUs on each): doublings up to all, two ranks at least."""
    pairs = [(n, g) for n in _doublings(node_count) for g in _doublings(gpus_per_node) if n * g > 1]
    # Whole nodes first, then one GPU of each, then what lies between.
    pairs.sort(
        key=lambda pair: (pair[1] != gpus_per_node, pair[0] not in (1, node_count), -pair[0] * pair[1])
    )
    return tuple(pairs[:MOST_LAYOUTS])


def importance(point: Point) -> float:
    """How much an exchange counts: DDP's buckets have 1 to 25 MiB, several models send all at once."""
    octaves = math.log2(point.message_bytes)
    below, above = max(0.0, 20 - octaves), max(0.0, octaves - 26)
    return max(0.25, 1 - 0.08 * below) * (1 - 0.15 * above) * (0.5 if point.concurrency > 1 else 1.0)


def repeat_count(expected_s: float) -> int:
    """Repeats of an exchange that takes about so long [s]: more where they cost nothing."""
    return 8 if expected_s < 0.01 else 5 if expected_s < 0.2 else 3


def _doublings(most: int) -> list[int]:
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def _kernel(one: Floats, other: Floats) -> Floats:
    apart = (one[:, None, :] - other[None, :, :]) / np.array(NEAR_OCTAVES)
    return np.asarray(SIGNAL_LOG_SD**2 * np.exp(-0.5 * (apart**2).sum(axis=2)))
