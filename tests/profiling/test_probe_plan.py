"""What is measured next: the least sure of what counts, within the time that is paid for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srifty.profiling.probe_plan import Point, ProbePlan, candidates, importance, layouts, repeat_count


def seconds(point, rate=1e9):
    k = point.node_count * point.gpus_per_node
    return (2 * (k - 1) * 50e-6 + 2 * (k - 1) / k * point.message_bytes / rate) * point.concurrency


def carried_out(plan, limit_s, rate=1e9):
    """The points of a probe of that length, and the time that they took."""
    spent, points = 0.0, []
    while (point := plan.next_point(limit_s - spent)) is not None:
        expected = plan.expected_s(point) if plan.measured else 0.0
        repeats = repeat_count(expected)
        spent += seconds(point, rate) * (1 + repeats)
        plan.add(point, [seconds(point, rate) * float(np.exp(0.02 * i)) for i in range(repeats)])
        points.append(point)
    return points, spent


@pytest.mark.parametrize("rate", [1e7, 1e9, 1e11])
@pytest.mark.parametrize("limit_s", [1.0, 30.0, 600.0])
def test_it_ends_by_itself_within_the_time(rate, limit_s):
    plan = ProbePlan(candidates(layouts(4, 8), 2**28))
    points, spent = carried_out(plan, limit_s, rate)
    assert points
    assert spent <= limit_s + seconds(points[0], rate) * 9
    assert len(points) == len(set(points))


def test_a_grid_is_not_measured():
    plan = ProbePlan(candidates(layouts(8, 8), 2**28))
    points, _ = carried_out(plan, 1e5)
    assert len(points) < 0.6 * len(plan.candidates)
    assert {(p.node_count, p.gpus_per_node) for p in points} == set(layouts(8, 8))
    assert {p.concurrency for p in points} == {1, 2}


def test_the_first_point_is_the_cheapest():
    plan = ProbePlan(candidates(layouts(2, 1), 2**28))
    assert plan.next_point(1e9) == Point(2, 1, 2**10)


def test_doubt_is_least_where_it_was_measured_and_grows_away_from_there():
    plan = ProbePlan(())
    plan.add(Point(4, 1, 2**20), [0.01, 0.0101, 0.0099])
    doubt = plan.doubt([Point(4, 1, 2**power) for power in (20, 21, 23, 28)])
    assert (np.diff(doubt) > 0).all()
    assert doubt[0] < 0.03


def test_what_varies_is_known_less():
    steady, wild = ProbePlan(()), ProbePlan(())
    steady.add(Point(4, 1, 2**20), [0.01, 0.0101, 0.0099])
    wild.add(Point(4, 1, 2**20), [0.01, 0.02, 0.005])
    assert wild.doubt([Point(4, 1, 2**20)]) > steady.doubt([Point(4, 1, 2**20)])


def test_messages_of_the_size_of_buckets_count_most():
    most = max(2**power for power in range(10, 29) if importance(Point(2, 1, 2**power)) == 1)
    assert most == 2**26
    assert importance(Point(2, 1, 2**20)) == 1
    assert importance(Point(2, 1, 2**10)) < 0.5


@given(st.integers(1, 100), st.integers(1, 16))
@settings(deadline=None)
def test_groups_hold_two_ranks_at_least_and_all_of_them_once(nodes, gpus):
    found = layouts(nodes, gpus)
    assert len(found) <= 12
    assert all(n * g >= 2 and n <= nodes and g <= gpus for n, g in found)
    assert ((nodes, gpus) in found) == (nodes * gpus > 1)
