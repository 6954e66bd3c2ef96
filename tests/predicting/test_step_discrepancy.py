"""What the formula leaves unexplained, and how bands are calibrated."""

from __future__ import annotations

import numpy as np
import pytest

from srifty.predicting.least_squares import Belief
from srifty.predicting.step_discrepancy import (
    JobRows,
    Unexplained,
    band_factor,
    design,
    posterior,
    unexplained,
    unlike,
)
from srifty.predicting.step_physics import PARAMETERS, Rows

KNOTS = np.array([8.0, 16.0, 32.0])


def rows_of(layouts):
    batches = [(layout, batch) for layout in layouts for batch in (8, 16, 32)]
    size = np.full(len(batches), 4e8)
    return Rows.of(KNOTS, 0, np.array([b for _, b in batches]), size, [layout for layout, _ in batches])


def theta():
    return np.concatenate([[p.mean for p in PARAMETERS], np.log([0.05, 0.08, 0.14])])


def beliefs(sd):
    best = theta()
    count = len(PARAMETERS)
    return Belief(best[:count], sd**2 * np.eye(count)), Belief(best[count:], sd**2 * np.eye(3))


def test_what_one_layout_takes_beyond_the_formula_is_told_of_its_like_and_not_of_the_unlike():
    rows = rows_of([(1,), (4, 4), (4, 4, 4, 4)])
    extra = np.where(
        np.array([sum(layout) for layout in [(1,)] * 3 + [(4, 4)] * 3 + [(4,) * 4] * 3]) == 8, 0.1, 0
    )
    measured = JobRows(rows, rows.parts(theta()).log_step + extra, np.full(9, np.nan))
    told_by = unexplained(measured, KNOTS)
    found = posterior(measured, theta(), told_by, *beliefs(1e-3))
    told = [
        design(rows_of([layout]), theta(), told_by)[1] @ found.shift
        for layout in [(4, 4), (4, 3), (1, 1, 1, 1)]
    ]
    assert told[0].mean() > 0.05
    assert told[1].mean() > 0.02
    assert abs(told[2].mean()) < 0.5 * told[0].mean()


def test_left_out_errors_widen_a_band_that_is_too_narrow_and_narrow_one_that_is_too_wide():
    random = np.random.default_rng(0)
    assert band_factor([random.normal(0, 2, 50) for _ in range(40)], 8) > 1.5
    assert band_factor([random.normal(0, 0.5, 50) for _ in range(40)], 8) < 0.7
    assert band_factor([], 8) == 1


def test_few_layouts_change_a_band_little():
    wide = [np.full(10, 5.0)]
    assert band_factor(wide, 8) < band_factor(wide * 10, 8)


def test_a_layout_that_was_measured_is_told_with_less_doubt():
    rows = rows_of([(1,), (2, 2), (4, 4), (4, 4, 4)])
    random = np.random.default_rng(2)
    measured = JobRows(rows, rows.parts(theta()).log_step + random.normal(0, 0.05, 12), np.full(12, np.nan))
    told_by = unexplained(measured, KNOTS)
    whole = posterior(measured, theta(), told_by, *beliefs(0.1))
    without = posterior(measured.of(np.arange(9)), theta(), told_by, *beliefs(0.1))
    features = design(rows_of([(4, 4, 4)]), theta(), told_by)[1]
    doubt = np.sqrt(np.einsum("ij,jk,ik->i", features, without.covariance, features))
    known = np.sqrt(np.einsum("ij,jk,ik->i", features, whole.covariance, features))
    assert (known < doubt).all()
    assert whole.layout_count == 3
    assert without.layout_count == 2


def test_far_from_every_anchor_the_unexplained_part_is_all_doubt():
    near, far = rows_of([(4, 4)]), rows_of([(8,) * 60])
    told = Unexplained.of(near.at.places[:1], KNOTS, 1)
    assert unlike(near, near.parts(theta()), told) == pytest.approx(0, abs=1e-6)
    assert (unlike(far, far.parts(theta()), told) > 0.03**2).all()
