"""Stragglers: how much longer the slowest of n ranks takes than each of them on average."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from srifty.records.spread import Z90

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LONGEST_TAIL = 6.0
"""Tail above over tail below at most: three percentiles cannot tell a longer one from a single stall."""
LARGEST_TABLE = 65536
"""Rank counts below this are looked up."""
NEARLY_NORMAL = 1e-5
"""The least b: below it the exponentials are lost in rounding."""


def wait_for_slowest(rank_count: Ints, draws: Ints, sd: Floats, skew: Floats | float) -> Floats:
    """Expected time by which the slowest of n ranks outlasts a rank's mean [s].

    A draw is lognormal but for its place, so that 10th, 50th and 90th percentile are met:

        draw = median + a (exp(b Z) - 1),   exp(b z90) = (p90 - p50) / (p50 - p10),   a (exp(b z90) - 1) = p90 - p50

    which is normal where both sides are alike. With E and V the mean and variance of the largest of n standard normal
    draws, the largest of n such draws lies above their mean by

        a (exp(b E + b^2 V / 2) - exp(b^2 / 2)),   which is  sd E  for b = 0 and 0 for n = 1

    Of a sum of m independent draws the variance is m times that of one and the skewness its 1 / sqrt(m): so b becomes
    b / sqrt(m), and a what meets the variance, a^2 exp(b^2) (exp(b^2) - 1).

    Args:
        rank_count: n
        draws: m, the micro-steps from one meeting of the ranks to the next
        sd: standard deviation of a micro-step [s], (p90 - p10) / (2 z90)
        skew: what it is more above the median than below, as a share of sd, from 0 to below 2

    Ranks are taken to vary independently. E and V are integrals of the largest's distribution (David and Nagaraja,
    "Order Statistics", 2003); the shape is our own choice, since step times have their tail above. Rare stalls beyond
    the 90th percentile are not in three percentiles, and not told.
    """
    mean, variance = largest_of(rank_count)
    b = np.log(np.clip((2 + skew) / np.maximum(2 - np.asarray(skew), 1e-9), 1, LONGEST_TAIL)) / Z90
    b = np.maximum(b, NEARLY_NORMAL)
    # The sides' mean is sd: a (exp(b z90) - exp(-b z90)) / (2 z90).
    a = sd * Z90 / np.sinh(b * Z90)
    square = b**2 / draws
    of_sum = a * np.sqrt(draws * _lognormal_variance(b**2) / _lognormal_variance(square))
    wait: Floats = of_sum * (np.exp(np.sqrt(square) * mean + square * variance / 2) - np.exp(square / 2))
    return wait


def _lognormal_variance(square: Floats | float) -> Floats:
    """Variance of exp(b Z), from b^2."""
    variance: Floats = np.exp(square) * np.expm1(square)
    return variance


def largest_of(rank_count: Ints) -> tuple[Floats, Floats]:
    """Mean and variance of the largest of n draws from a standard normal distribution."""
    # A cluster table holds few different counts, so each is worked out once; a table to look them up needs no sorting.
    if len(rank_count) and rank_count.max() < LARGEST_TABLE:
        counts, where = np.flatnonzero(np.bincount(rank_count)), rank_count
        mean, variance = np.zeros((2, int(rank_count.max()) + 1))
        mean[counts], variance[counts] = np.array([_moments(n) for n in counts.tolist()]).T
    else:
        counts, where = np.unique(rank_count, return_inverse=True)
        mean, variance = np.array([_moments(n) for n in counts.tolist()]).reshape(-1, 2).T
    return mean[where], variance[where]


@lru_cache(maxsize=4096)
def _moments(n: int) -> tuple[float, float]:
    """From P(largest > t) and P(largest < -t), integrated over t > 0 by trapezia."""
    if n == 1:
        return 0.0, 1.0
    points, share = _normal()
    above, below = 1 - share**n, (1 - share) ** n
    width = points[1]
    mean = width * ((above - below).sum() - (above[0] - below[0]) / 2)
    square = 2 * width * (points * (above + below)).sum()
    return float(mean), float(square - mean**2)


@lru_cache(maxsize=1)
def _normal() -> tuple[Floats, Floats]:
    """Points t >= 0, and the chance that a standard normal draw lies below each."""
    points = np.linspace(0, 9, 361)
    return points, np.array([0.5 * math.erfc(-t / math.sqrt(2)) for t in points])
