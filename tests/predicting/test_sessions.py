"""Variation within and between sessions is found again, and told apart."""

from __future__ import annotations

import numpy as np
import pytest

from srifty.predicting.sessions import session_variation


def made(within, between, *, sessions=40, points=30, repeats=4, setups=2, seed=0):
    draw = np.random.default_rng(seed)
    rows = []
    for setup in range(setups):
        for s in range(sessions):
            effect = between * draw.standard_normal()
            for point in range(points):
                for _ in range(repeats):
                    session = setup * sessions + s
                    value = effect + within * draw.standard_normal()
                    rows.append((value, setup, session, session * points + point))
    residual, *labels = zip(*rows, strict=True)
    return session_variation(np.array(residual), *(np.array(label) for label in labels))


@pytest.mark.parametrize(("within", "between"), [(0.05, 0.2), (0.2, 0.05), (0.1, 0.1)])
def test_both_are_found_again(within, between):
    found = made(within, between)
    assert found.within_log_sd == pytest.approx(within, rel=0.05)
    assert found.between_log_sd == pytest.approx(between, rel=0.25)


def test_sessions_that_do_not_differ_have_no_variation_between_them():
    assert made(0.1, 0.0).between_log_sd < 0.02


def test_one_session_says_nothing_of_others():
    assert made(0.1, 0.3, sessions=1).between_log_sd is None


def test_two_sessions_of_unlike_length_are_enough():
    values = np.array([0.3] * 20 + [-0.3] * 5)
    session = np.array([0] * 20 + [1] * 5)
    found = session_variation(values, np.zeros(25, int), session, np.arange(25))
    assert found.between_log_sd == pytest.approx(0.6 / np.sqrt(2), rel=0.01)
    assert found.within_log_sd == 0
