"""The step formula keeps the laws that its docstring claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srifty.predicting.step_features import LayoutColumns
from srifty.predicting.step_physics import COUNT, NAMES, PARAMETERS, Rows, step_parts

layouts = st.lists(st.integers(1, 8), min_size=1, max_size=6).map(tuple)
draws = st.lists(st.floats(-2, 2), min_size=COUNT, max_size=COUNT).map(
    lambda scores: np.array([p.mean + z * p.job_sd for p, z in zip(PARAMETERS, scores, strict=True)])
)


def log_step(numbers, layout, size=1e8, alone_s=0.1, least_s=0.05):
    at = LayoutColumns.of([layout])
    parts = step_parts(numbers, np.log([alone_s]), np.log(least_s), np.array([size]), at)
    return float(parts.log_step[0])


@given(draws, layouts, st.floats(1e5, 1e10), st.floats(1, 100))
def test_more_bytes_never_make_a_step_faster(numbers, layout, size, factor):
    assert log_step(numbers, layout, size) <= log_step(numbers, layout, size * factor) + 1e-12


@given(draws, layouts, st.sampled_from(["between", "within"]), st.floats(0, 5))
def test_a_faster_link_never_makes_a_step_slower(numbers, layout, link, faster):
    quicker = numbers.copy()
    quicker[NAMES.index(link)] -= faster
    assert log_step(quicker, layout) <= log_step(numbers, layout) + 1e-12


@given(draws, layouts, st.floats(1e5, 1e10))
def test_a_step_lies_between_the_longer_of_its_parts_and_their_sum(numbers, layout, size):
    at = LayoutColumns.of([layout])
    parts = step_parts(numbers, np.log([0.1]), np.log(0.05), np.array([size]), at)
    step, compute = np.exp(parts.log_step[0]), np.exp(parts.log_compute[0])
    g = 1 + np.exp(numbers[NAMES.index("overlap")])
    exchange = step * parts.share[0] ** (1 / g)
    assert max(compute, exchange) <= step * (1 + 1e-9)
    assert step <= (compute + exchange) * (1 + 1e-9)


@given(draws)
def test_one_gpu_exchanges_nothing(numbers):
    assert log_step(numbers, (1,)) == pytest.approx(np.log(0.1), abs=1e-6)


@given(draws, layouts)
def test_the_order_of_the_nodes_does_not_matter(numbers, layout):
    assert log_step(numbers, layout) == log_step(numbers, layout[::-1])


def test_slopes_are_those_of_the_formula():
    knots = np.array([8.0, 16.0, 32.0])
    rows = Rows.of(knots, 0, np.array([8, 20, 32, 40]), np.full(4, 1e8), [(1,), (2, 1), (4, 4), (2, 2, 2)])
    theta = np.concatenate([[p.mean for p in PARAMETERS], np.log([0.1, 0.15, 0.3])])
    _, step, compute = rows.slopes(theta)
    for i in range(len(theta)):
        moved = [theta.copy(), theta.copy()]
        moved[0][i] -= 1e-4
        moved[1][i] += 1e-4
        low, high = (rows.parts(each) for each in moved)
        np.testing.assert_allclose(step[:, i], (high.log_step - low.log_step) / 2e-4, atol=1e-4)
        np.testing.assert_allclose(compute[:, i], (high.log_compute - low.log_compute) / 2e-4, atol=1e-4)
