"""The overlap recurrence: laws that hold for every case, and a second, slower way to the same answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srifty.predicting.iteration_simulator import exposed_allreduce_s, longest_of

cases = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10**9)), min_size=1, max_size=12).map(
    lambda buckets: sorted(buckets)
)
rates = st.tuples(st.floats(0, 0.01), st.floats(0, 1e-8), st.floats(0.001, 10))


def exposed(buckets, latency_s, seconds_per_byte, backward_s):
    ready = np.array([[share * backward_s for share, _ in buckets]])
    sizes = np.array([float(size) for _, size in buckets])
    arguments = (np.array([latency_s]), np.array([seconds_per_byte]), sizes, np.array([backward_s]))
    return float(exposed_allreduce_s(ready, *arguments)[0])


def one_by_one(buckets, latency_s, seconds_per_byte, backward_s):
    end = 0.0
    for share, size in buckets:
        end = max(share * backward_s, end) + latency_s + seconds_per_byte * size
    return max(0.0, end - backward_s)


@settings(max_examples=500)
@given(cases, rates)
def test_the_unrolled_form_is_the_recurrence(buckets, rates):
    assert exposed(buckets, *rates) == pytest.approx(one_by_one(buckets, *rates), rel=1e-9, abs=1e-12)


@settings(max_examples=500)
@given(cases, rates)
def test_a_step_lies_between_the_larger_of_compute_and_exchange_and_their_sum(buckets, rates):
    latency_s, seconds_per_byte, backward_s = rates
    exchange = sum(latency_s + seconds_per_byte * size for _, size in buckets)
    step = backward_s + exposed(buckets, *rates)
    assert max(backward_s, exchange) <= step * (1 + 1e-9)
    assert step <= (backward_s + exchange) * (1 + 1e-9)


@settings(max_examples=200)
@given(cases, rates, st.floats(1, 10))
def test_a_faster_network_never_slows_an_iteration(buckets, rates, factor):
    latency_s, seconds_per_byte, backward_s = rates
    faster = exposed(buckets, latency_s, seconds_per_byte / factor, backward_s)
    assert faster <= exposed(buckets, *rates) * (1 + 1e-12)


def test_nothing_to_exchange_exposes_nothing():
    nothing = np.zeros((2, 0)), np.zeros(2), np.zeros(2), np.zeros(0), np.ones(2)
    assert exposed_allreduce_s(*nothing).tolist() == [0, 0]


def test_the_slowest_of_n_is_what_random_draws_say():
    draws = np.random.default_rng(1).standard_normal((20_000, 64))
    for n in (1, 2, 3, 8, 64):
        assert longest_of(np.array([n]))[0] == pytest.approx(draws[:, :n].max(axis=1).mean(), abs=0.04)
