"""The wait for the slowest of n ranks, against random draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srifty.predicting.stragglers import largest_of, wait_for_slowest
from srifty.records.spread import Z90


def told(draws, ranks, micro_steps):
    """From the percentiles of many draws, as a profile would hold them."""
    p10, p50, p90 = np.quantile(draws, [0.1, 0.5, 0.9])
    sd = (p90 - p10) / (2 * Z90)
    skew = (p90 + p10 - 2 * p50) / Z90 / sd
    return float(wait_for_slowest(np.array([ranks]), np.array([micro_steps]), np.array([sd]), skew)[0])


@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("micro_steps", [1, 4])
@pytest.mark.parametrize("tail", [0.0, 0.2, 0.5])
def test_the_wait_for_the_slowest_is_what_random_draws_say(ranks, micro_steps, tail):
    rng = np.random.default_rng(1)

    def steps(*shape):
        normal = rng.standard_normal(shape)
        return np.exp(tail * normal) if tail else 1 + 0.1 * normal

    many = steps(200_000)
    drawn = steps(20_000, ranks, micro_steps).sum(axis=2).max(axis=1).mean() - micro_steps * many.mean()
    assert told(many, ranks, micro_steps) == pytest.approx(drawn, rel=0.04)


def test_a_long_tail_makes_the_wait_longer_than_a_normal_of_the_same_width_would():
    lognormal = np.exp(0.5 * np.random.default_rng(2).standard_normal(200_000))
    p10, p90 = np.quantile(lognormal, [0.1, 0.9])
    as_normal = (p90 - p10) / (2 * Z90) * float(largest_of(np.array([32]))[0][0])
    assert told(lognormal, 32, 1) > 1.5 * as_normal


def test_the_moments_of_the_largest_are_those_of_the_tables():
    mean, variance = largest_of(np.array([1, 2, 3, 10]))
    assert mean == pytest.approx([0, 0.56419, 0.84628, 1.53875], abs=1e-4)  # David and Nagaraja, 2003
    assert variance == pytest.approx([1, 0.68169, 0.55947, 0.34434], abs=2e-4)


@given(st.integers(1, 500), st.integers(1, 16), st.floats(0, 10), st.floats(0, 1.9))
def test_one_rank_waits_for_nobody_and_more_ranks_never_wait_less(ranks, micro_steps, sd, skew):
    counts = np.array([1, ranks, ranks + 1])
    waits = wait_for_slowest(counts, np.full(3, micro_steps), np.full(3, sd), skew)
    assert waits[0] == 0
    assert np.all(np.isfinite(waits))
    assert waits[2] >= waits[1] * (1 - 1e-9) >= 0


def test_a_count_beyond_the_table_is_worked_out_alike():
    (of_table,), (beyond, same) = largest_of(np.array([65_000]))[0], largest_of(np.array([66_000, 65_000]))[0]
    assert same == of_table < beyond
    assert [column.tolist() for column in largest_of(np.array([], np.int64))] == [[], []]
