"""Laws of the formula, whatever its parameters; and the ring as its plainest case."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srifty.predicting.exchange_formula import Exchanges, log_duration, slopes

logarithm = st.tuples(
    st.floats(-14, -5), st.floats(-2, 1), st.floats(-3, 0.5), st.floats(-5, 0), st.floats(-1, 2)
)
nodes = st.integers(1, 512)
gpus = st.integers(2, 16)
size = st.floats(1, 1e11)
rate = st.floats(1e6, 1e12)
factor = st.floats(1, 100)


def duration(parameters, n, g, b, r, c=1):
    one = Exchanges(*(np.array([float(value)]) for value in (n, g, b, r, c)))
    return float(log_duration(one, np.array([parameters]))[0])


def test_its_plainest_case_is_the_ring():
    ring = [np.log(30e-6), 0.0, np.log(0.8), -50.0, 0.0]
    expected = 2 * 7 * 30e-6 + 2 * 7 / 8 * 1e8 / (0.8 * 1.25e9)
    assert np.exp(duration(ring, 8, 1, 1e8, 1.25e9)) == pytest.approx(expected)
    assert np.exp(duration(ring, 2, 4, 1e8, 1.25e9)) == pytest.approx(expected)


@given(logarithm, nodes, gpus, size, rate, factor)
def test_a_faster_link_is_never_slower(parameters, n, g, b, r, more):
    assert duration(parameters, n, g, b, r * more) <= duration(parameters, n, g, b, r) + 1e-9


@given(logarithm, nodes, gpus, size, rate, factor)
def test_more_bytes_are_never_faster(parameters, n, g, b, r, more):
    assert duration(parameters, n, g, b * more, r) >= duration(parameters, n, g, b, r) - 1e-9


@given(logarithm, nodes, gpus, size, rate, st.integers(0, 100))
def test_more_peers_are_never_faster(parameters, n, g, b, r, more):
    assert duration(parameters, n + 1 + more, g, b, r) >= duration(parameters, n + 1, g, b, r) - 1e-9
    assert duration(parameters, n, g + more, b, r) >= duration(parameters, n, g, b, r) - 1e-9


@given(logarithm, nodes, gpus, size, rate)
def test_two_at_once_take_at_least_as_long_as_one_and_at_most_twice(parameters, n, g, b, r):
    one, two = duration(parameters, n, g, b, r), duration(parameters, n, g, b, r, 2)
    assert one - 1e-9 <= two <= one + np.log(2) + 1e-9


def test_slopes_are_those_of_the_formula():
    one = Exchanges(*(np.array([float(value)]) for value in (4, 2, 1e7, 1e9, 1)))
    at = np.array([[np.log(50e-6), 0.1, -0.3, -2.0, 0.2]])
    step = 1e-3
    for j in range(5):
        up = at.copy()
        up[0, j] += step
        change = float((log_duration(one, up) - log_duration(one, at))[0]) / step
        assert slopes(one, at)[0, j] == pytest.approx(change, abs=2e-3)
