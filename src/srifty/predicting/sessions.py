"""How much exchanges vary within a measuring session, and from one session to the next.

A band made from one afternoon is too narrow for the next day on other machines of the same kind: the two variations
are told apart wherever a setup was measured in two sessions or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Sessions:
    """Standard deviations of the logarithm of time; `between_log_sd` is None where one session was measured."""

    within_log_sd: float
    between_log_sd: float | None


def session_variation(residual: Floats, setup: Ints, session: Ints, point: Ints) -> Sessions:
    """Variance components of residuals in a random-effects model with one effect a session of a setup.

        residual = effect of the session + noise
        within^2  = mean square of repeats around their point
        between^2 = max(0, (mean square of sessions - mean square inside) / n0)

    The method of moments with unequal counts (Searle, Casella and McCulloch, "Variance Components", 1992, 3.6):
    n0 = (N - sum n_i^2 / N) / (groups - 1), pooled over setups by their degrees of freedom. Points, not repeats,
    are the observations between sessions, since the repeats of one point share what the formula leaves of it.

    Args:
        residual: what model and formula leave of the logarithm of each reading
        setup, session: of each reading
        point: readings with the same are repeats of one exchange
    """
    repeats = _within_groups(residual, point)
    _, first, where = np.unique(point, return_index=True, return_inverse=True)
    mean = np.bincount(where, residual) / np.bincount(where)
    squares, freedom, inner, inner_freedom, scale = 0.0, 0, 0.0, 0, 0.0
    for s in np.unique(setup):
        rows = setup[first] == s
        _, group = np.unique(session[first][rows], return_inverse=True)
        values, count = mean[rows], np.bincount(group)
        if len(count) < 2:
            continue
        centre = np.bincount(group, values) / count
        squares += float((count * (centre - values.mean()) ** 2).sum())
        inner += float(((values - centre[group]) ** 2).sum())
        freedom += len(count) - 1
        inner_freedom += len(values) - len(count)
        scale += len(values) - float((count**2).sum()) / len(values)
    if freedom == 0:
        return Sessions(repeats, None)
    inner_square = inner / inner_freedom if inner_freedom else repeats**2
    between = max(0.0, (squares / freedom - inner_square) / (scale / freedom))
    return Sessions(repeats, float(np.sqrt(between)))


def _within_groups(values: Floats, group: Ints) -> float:
    _, where, count = np.unique(group, return_inverse=True, return_counts=True)
    centre = np.bincount(where, values) / count
    freedom = len(values) - len(count)
    return float(np.sqrt(((values - centre[where]) ** 2).sum() / freedom)) if freedom else 0.0
