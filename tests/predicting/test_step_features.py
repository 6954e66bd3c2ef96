"""Layouts and batches as the step model sees them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from srifty.predicting.step_features import LayoutColumns, between_knots, likeness, spread_out

layouts = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=5).map(tuple), min_size=1, max_size=40)


@given(layouts)
def test_a_layout_is_wholly_like_itself_where_it_is_an_anchor(drawn):
    places = LayoutColumns.of(drawn).places
    anchors = spread_out(places, 10)
    np.testing.assert_allclose((likeness(anchors, anchors) ** 2).sum(axis=1), 1, atol=1e-3)
    assert ((likeness(places, anchors) ** 2).sum(axis=1) <= 1 + 1e-6).all()


@given(layouts)
def test_anchors_are_distinct_measured_places(drawn):
    places = LayoutColumns.of(drawn).places
    anchors = spread_out(places, 5)
    assert len(anchors) == min(5, len(np.unique(places, axis=0)))
    assert {tuple(a) for a in anchors.tolist()} <= {tuple(p) for p in places.tolist()}


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=9, unique=True), st.integers(1, 3000))
def test_a_power_law_is_read_exactly_between_knots_and_beyond(batches, batch):
    knots = np.array(sorted(batches), float)
    read = between_knots(knots, np.array([float(batch)])) @ (0.7 * np.log(knots))
    expected = 0.7 * np.log(batch) if len(knots) > 1 else 0.7 * np.log(knots[0])
    np.testing.assert_allclose(read, expected, atol=1e-6)
