"""Fit the ring formula to measured exchanges: one set of parameters a setup, drawn towards those of its kind.

A setup is a kind of machine with one backend in one version, in one node or over several. Few setups are measured
at many sizes, so each takes from the others of its kind what its own measurements do not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from srifty.predicting.exchange_formula import PARAMETERS, Exchanges, log_duration, slopes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

KIND_MEAN = np.log([30e-6, 1.0, 0.7, 0.03, 1.0])
KIND_SD = np.array([1.5, 0.5, 0.5, 0.7, 0.4])
"""What is believed of a kind before anything is measured: a ring of 30 us a hop that gets 70 % of the rate and
loses 2 % with each doubling of its nodes."""
SETUP_SD = np.array([0.8, 0.3, 0.35, 1.2, 0.3])
"""How far a setup lies from its kind, as the standard deviation of each logarithm. The loss with more
nodes differs most: none to 20 % with a doubling were seen (70 % of the rate at 8 machines, 60 % at 16 in
aws-ofi-nccl issue 19)."""
LEAST_LOG_SD = 0.01
ITERATIONS = 60
OUTLIER = 2.0
"""Residuals beyond this many standard deviations pull with constant force (Huber, 1964)."""


@dataclass(frozen=True)
class RingFit:
    """Fitted parameters of each setup.

    Attributes:
        parameters: logarithms, [setup, parameter]
        covariance: of the logarithms, [setup, parameter, parameter]
        misfit_log_sd: standard deviation of what the formula leaves of a point
    """

    parameters: Floats
    covariance: Floats
    misfit_log_sd: float


def fit_ring(
    exchanges: Exchanges, log_s: Floats, noise_log_sd: Floats, setup: Ints, kind_of: Ints
) -> RingFit:
    """Most likely parameters under the priors above, and how sure they are (Laplace's approximation).

    Args:
        exchanges: the measured points
        log_s: logarithm of each point's time [log s]
        noise_log_sd: standard deviation of that logarithm by the point's own repeats
        setup: index of each point's setup
        kind_of: kind of each setup; setups of a kind are drawn towards each other

    Levenberg-Marquardt on the logarithms. A setup's parameters are its kind's plus its own deviation.
    """
    kinds, setups, width = int(kind_of.max()) + 1, len(kind_of), len(PARAMETERS)
    weight = importance(exchanges.message_bytes)
    misfit = 0.10
    state = np.concatenate([np.tile(KIND_MEAN, kinds), np.zeros(setups * width)])
    prior_mean = state.copy()
    precision = 1 / np.concatenate([np.tile(KIND_SD, kinds), np.tile(SETUP_SD, setups)]) ** 2
    kind_columns = kind_of[setup][:, None] * width + np.arange(width)
    own_columns = kinds * width + setup[:, None] * width + np.arange(width)
    rows = np.arange(len(exchanges))[:, None]

    def parameters(at: Floats) -> Floats:
        return np.asarray(at[kind_columns] + at[own_columns])

    def normal(at: Floats, residual: Floats, scale: Floats) -> tuple[Floats, Floats]:
        jacobian = np.zeros((len(exchanges), len(at)))
        slope = slopes(exchanges, parameters(at))
        jacobian[rows, kind_columns] = slope
        jacobian[rows, own_columns] = slope
        weighted = jacobian * scale[:, None]
        return weighted.T @ jacobian + np.diag(precision), weighted.T @ residual - precision * (
            at - prior_mean
        )

    def loss(at: Floats, sd: Floats) -> float:
        pull = np.abs(log_s - log_duration(exchanges, parameters(at))) / sd
        huber = np.where(pull < OUTLIER, pull**2, 2 * OUTLIER * pull - OUTLIER**2)
        return float((weight * huber).sum() + (precision * (at - prior_mean) ** 2).sum())

    matrix = np.eye(len(state))
    for _ in range(4):  # the misfit sets how strongly the priors pull, and follows from the fit
        sd = np.sqrt(misfit**2 + noise_log_sd**2)
        damping, least = 1e-2, loss(state, sd)
        for _ in range(ITERATIONS):
            residual = log_s - log_duration(exchanges, parameters(state))
            pull = np.abs(residual) / sd
            scale = weight / sd**2 * np.where(pull < OUTLIER, 1.0, OUTLIER / np.maximum(pull, OUTLIER))
            matrix, gradient = normal(state, residual, scale)
            step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), gradient)
            tried = state + np.clip(step, -1, 1)
            now = loss(tried, sd)
            if now <= least:
                improvement, state, least, damping = least - now, tried, now, damping / 3
                if improvement < 1e-6 * (1 + least):
                    break
            else:
                damping *= 5
                if damping > 1e8:
                    break
        residual = log_s - log_duration(exchanges, parameters(state))
        misfit = max(LEAST_LOG_SD, _robust_sd(residual, weight))
    inverse = np.linalg.inv(matrix)
    fitted = np.empty((setups, width))
    covariance = np.empty((setups, width, width))
    for s in range(setups):
        kind = slice(kind_of[s] * width, (kind_of[s] + 1) * width)
        own = slice((kinds + s) * width, (kinds + s + 1) * width)
        fitted[s] = state[kind] + state[own]
        covariance[s] = inverse[kind, kind] + inverse[own, own] + inverse[kind, own] + inverse[own, kind]
    return RingFit(fitted, covariance, misfit)


def importance(message_bytes: Floats) -> Floats:
    """How much a point counts: training exchanges buckets of 1 to 25 MiB, and hardly ever kilobytes."""
    return np.asarray(np.clip((message_bytes / 2**20) ** 0.25, 0.2, 1.0))


def _robust_sd(residual: Floats, weight: Floats) -> float:
    """Standard deviation by the weighted median of absolute residuals, which outliers do not move."""
    order = np.argsort(np.abs(residual))
    heavy = np.cumsum(weight[order]) >= 0.5 * weight.sum()
    return float(1.4826 * np.abs(residual)[order][heavy.argmax()])
