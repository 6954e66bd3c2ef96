"""Robust least squares over groups that resemble one another: each has numbers of its own, drawn about shared means.

Numpy alone, since the groups' blocks make a matrix that no general solver would know to be nearly empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TAIL = 5.0
"""Degrees of freedom of Student's t: outliers count less the further out they are."""
MOST_ROUNDS = 80
SMALL_GAIN = 1e-4


@dataclass(frozen=True)
class Group:
    """Readings that share numbers theta = (those about the shared means, its own)."""

    residuals: Callable[[Floats], Floats]
    """(reading - formula) / sd at theta"""
    slopes: Callable[[Floats], tuple[Floats, Floats]]
    """the residuals, and the derivatives of formula / sd by theta"""
    weight: Floats
    """How much each reading counts; 1: as an independent one."""
    start: Floats
    apart_sd: Floats
    """How far this group's numbers may lie from the shared means."""
    own_mean: Floats
    own_precision: Floats


@dataclass(frozen=True)
class Belief:
    """A normal distribution."""

    mean: Floats
    covariance: Floats


@dataclass(frozen=True)
class Shared:
    """What was found: the most probable numbers, and what the groups say of the shared means."""

    theta: tuple[Floats, ...]
    means: Belief
    without: tuple[Belief, ...]
    """The shared means by all groups but this one."""


def fit_groups(groups: Sequence[Group], mean: Floats, sd: Floats) -> Shared:
    """Most probable numbers of all groups and of the shared means mu.

    Minimises, with residuals r, weights w and t's tail nu,

        sum_groups [ sum w (nu + 1)/2 log(1 + r^2 / nu) + |theta - mu|^2 / (2 apart_sd^2)
                     + (own - own_mean)' own_precision (own - own_mean) / 2 ] + |mu - mean|^2 / (2 sd^2)

    by damped Gauss-Newton steps (Levenberg-Marquardt) with weights renewed at each (iteratively reweighted least
    squares). Each group's block is eliminated first (Schur complement), so the cost grows with the number of groups
    and not with its cube.

    Args:
        groups: the readings
        mean, sd: what is believed of the shared means before any reading
    """
    count = len(mean)
    shared = mean.copy()
    thetas = [group.start.copy() for group in groups]
    damping = 1e-3
    cost = _cost(groups, thetas, shared, mean, sd)
    for _ in range(MOST_ROUNDS):
        schur, right = np.diag(1 / sd**2), (mean - shared) / sd**2
        steps = []
        for group, theta in zip(groups, thetas, strict=True):
            curvature, pull = _normal(group, theta)
            _add_own_prior(group, theta, curvature, pull)
            tie = np.diag(1 / group.apart_sd**2)
            away = tie @ (theta[:count] - shared)
            curvature[:count, :count] += tie
            pull[:count] -= away
            curvature += damping * np.diag(np.diag(curvature))
            coupled = np.zeros((len(theta), count))
            coupled[:count] = tie
            solved = np.linalg.solve(curvature, np.column_stack([coupled, pull]))
            schur = schur + tie - coupled.T @ solved[:, :count]
            right = right + away + coupled.T @ solved[:, count]
            steps.append(solved)
        move = np.linalg.solve(schur + damping * np.diag(np.diag(schur)), right)
        trial = [
            theta + solved[:, count] + solved[:, :count] @ move
            for theta, solved in zip(thetas, steps, strict=True)
        ]
        trial_cost = _cost(groups, trial, shared + move, mean, sd)
        if trial_cost <= cost:
            gain, cost = cost - trial_cost, trial_cost
            shared, thetas = shared + move, trial
            damping = max(damping / 5, 1e-7)
            if gain < SMALL_GAIN:
                break
        else:
            damping *= 5
            if damping > 1e8:
                break
    return _shared(groups, thetas, shared, mean, sd)


def _shared(
    groups: Sequence[Group], thetas: list[Floats], shared: Floats, mean: Floats, sd: Floats
) -> Shared:
    """Add up what each group says of the shared means, all but one at a time.

    A group that knows its numbers with precision Q (its own ones marginalised) knows the means with (T + Q^-1)^-1,
    T the variance of groups about them.
    """
    count = len(mean)
    said = []
    for group, theta in zip(groups, thetas, strict=True):
        curvature, pull = _normal(group, theta)
        _add_own_prior(group, theta, curvature, pull)
        inner, cross = curvature[count:, count:], curvature[count:, :count]
        solved = np.linalg.solve(inner, np.column_stack([cross, pull[count:]]))
        known = curvature[:count, :count] - cross.T @ solved[:, :count]
        toward = known @ theta[:count] + pull[:count] - cross.T @ solved[:, count]
        softened = np.linalg.inv(np.eye(count) + known * group.apart_sd**2)
        precision = softened @ known
        said.append(((precision + precision.T) / 2, softened @ toward))
    precision = np.diag(1 / sd**2) + sum(each for each, _ in said)
    toward = mean / sd**2 + sum(each for _, each in said)

    def belief(of: Floats, at: Floats) -> Belief:
        covariance = np.linalg.inv(of)
        return Belief(covariance @ at, (covariance + covariance.T) / 2)

    without = tuple(belief(precision - of, toward - at) for of, at in said)
    return Shared(tuple(thetas), belief(precision, toward), without)


def robust(residual: Floats) -> Floats:
    """Weight of each residual [sd] in the next round."""
    return np.asarray((TAIL + 1) / (TAIL + residual**2))


def _normal(group: Group, theta: Floats) -> tuple[Floats, Floats]:
    residual, slope = group.slopes(theta)
    weighted = slope * (group.weight * robust(residual))[:, None]
    return weighted.T @ slope, weighted.T @ residual


def _add_own_prior(group: Group, theta: Floats, curvature: Floats, pull: Floats) -> None:
    count = len(group.apart_sd)
    curvature[count:, count:] += group.own_precision
    pull[count:] -= group.own_precision @ (theta[count:] - group.own_mean)


def _cost(groups: Sequence[Group], thetas: list[Floats], shared: Floats, mean: Floats, sd: Floats) -> float:
    count = len(mean)
    total = float(np.sum(((shared - mean) / sd) ** 2)) / 2
    for group, theta in zip(groups, thetas, strict=True):
        misfit = (TAIL + 1) / 2 * np.log1p(group.residuals(theta) ** 2 / TAIL)
        own = theta[count:] - group.own_mean
        apart = (theta[:count] - shared) / group.apart_sd
        total += float(group.weight @ misfit + (own @ group.own_precision @ own + apart @ apart) / 2)
    return total
