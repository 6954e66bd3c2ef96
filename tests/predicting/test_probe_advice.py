"""What to measure next."""

from __future__ import annotations

from tests.predicting.step_kit import LAYOUTS, grid, table

from srifty.predicting.probe_advice import MOST_NODES, SURE_SD, advise
from srifty.predicting.step_fit import fit_steps


def test_where_two_machines_were_measured_at_most_three_or_more_are_asked_for():
    two = tuple(layout for layout in LAYOUTS if len(layout) <= 2)
    for each in advise(fit_steps(table(grid(layouts=two)))):
        assert max(len(layout) for layout in each.layouts) >= 3


def test_from_one_gpu_a_cluster_is_asked_for_and_narrows_the_estimates_much():
    for each in advise(fit_steps(table(grid(layouts=((1,),))))):
        assert 1 <= len(each.layouts) <= 3
        assert each.doubt_then < 0.5 * each.doubt_now


def test_where_all_was_measured_nothing_is_asked_for():
    for each in advise(fit_steps(table(grid()))):
        assert each.layouts == ()
        assert each.doubt_now == each.doubt_then < SURE_SD


def test_a_probe_that_was_made_is_not_asked_for_again():
    two = tuple(layout for layout in LAYOUTS if len(layout) <= 2)
    before = advise(fit_steps(table(grid(layouts=two))))[0]
    after = advise(fit_steps(table(grid(layouts=(*two, *before.layouts)))))[0]
    assert not set(after.layouts) & set(before.layouts)
    assert after.doubt_now < before.doubt_now


def test_after_clusters_of_ten_thousand_nodes_no_probe_has_more_than_sixteen():
    nodes = (1, 2, 100, 10_000)
    known = fit_steps(table(grid(jobs=("small",), layouts=tuple((1,) * count for count in nodes))))
    (advice,) = advise(known)
    assert max((len(layout) for layout in advice.layouts), default=0) <= MOST_NODES
