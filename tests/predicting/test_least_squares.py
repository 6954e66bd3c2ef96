"""Groups that share means: held against plain linear algebra."""

from __future__ import annotations

import numpy as np

from srifty.predicting.least_squares import Group, fit_groups


def linear_group(matrix, reading, sd, apart_sd, own_mean, own_precision):
    def residuals(theta):
        return (reading - matrix @ theta) / sd

    def slopes(theta):
        return residuals(theta), matrix / sd

    count = matrix.shape[1]
    return Group(residuals, slopes, np.ones(len(reading)), np.zeros(count), apart_sd, own_mean, own_precision)


def made(seed=0, groups=4, noise=1e-3):
    random = np.random.default_rng(seed)
    mean = np.array([1.0, -2.0])
    found, truths = [], []
    for _ in range(groups):
        theta = np.concatenate([mean + random.normal(0, 0.3, 2), random.normal(0, 1, 1)])
        matrix = random.normal(0, 1, (12, 3))
        reading = matrix @ theta + random.normal(0, noise, 12)
        found.append(linear_group(matrix, reading, noise, np.full(2, 0.3), np.zeros(1), np.eye(1)))
        truths.append(theta)
    return found, truths


def test_each_group_s_numbers_are_recovered():
    groups, truths = made()
    shared = fit_groups(groups, np.zeros(2), np.full(2, 5.0))
    for theta, truth in zip(shared.theta, truths, strict=True):
        np.testing.assert_allclose(theta, truth, atol=0.01)
    np.testing.assert_allclose(shared.means.mean, np.mean([t[:2] for t in truths], axis=0), atol=0.02)


def test_without_a_group_the_others_speak_alone():
    groups, _ = made()
    shared = fit_groups(groups, np.zeros(2), np.full(2, 5.0))
    others = fit_groups(groups[1:], np.zeros(2), np.full(2, 5.0))
    np.testing.assert_allclose(shared.without[0].mean, others.means.mean, atol=0.01)
    np.testing.assert_allclose(shared.without[0].covariance, others.means.covariance, rtol=0.05, atol=1e-6)


def test_a_group_without_readings_takes_the_shared_means():
    groups, _ = made()
    silent = linear_group(np.zeros((1, 3)), np.zeros(1), 1.0, np.full(2, 0.3), np.array([7.0]), np.eye(1))
    shared = fit_groups([*groups, silent], np.zeros(2), np.full(2, 5.0))
    np.testing.assert_allclose(shared.theta[-1], [*shared.means.mean, 7.0], atol=0.05)


def test_an_outlier_moves_little():
    groups, truths = made(groups=1, noise=0.05)
    matrix = np.random.default_rng(1).normal(0, 1, (40, 3))
    reading = matrix @ truths[0]
    reading[5] += 50
    group = linear_group(matrix, reading, 0.05, np.full(2, 5.0), np.zeros(1), 0.01 * np.eye(1))
    np.testing.assert_allclose(
        fit_groups([group], np.zeros(2), np.full(2, 5.0)).theta[0], truths[0], atol=0.1
    )
