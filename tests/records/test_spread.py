"""A spread tells how a quantity varies, and never says less than it was given."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srifty.records import Spread


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_percentiles_lie_in_order_within_the_readings(values):
    spread = Spread.of(values)
    assert min(values) <= spread.p10 <= spread.p50 <= spread.p90 <= max(values)
    assert spread.sample_count == len(values)


def test_percentiles_interpolate_between_readings():
    spread = Spread.of(range(11))
    assert (spread.p10, spread.p50, spread.p90, spread.mean) == (1, 5, 9, 5)


def test_a_quantile_passes_through_the_percentiles():
    spread = Spread(p10=5, p50=10, p90=30, mean=13, sample_count=5)
    assert spread.quantile(0.5) == pytest.approx(10)
    assert spread.quantile(0.9) == pytest.approx(30)
    assert spread.quantile(0.1) == pytest.approx(5)


def test_no_readings_make_no_spread():
    with pytest.raises(ValueError, match="at least one reading"):
        Spread.of([])


def test_the_median_is_the_usual_one():
    assert Spread.of([3, 1, 2, 10]).p50 == statistics.median([3, 1, 2, 10])
