"""The event simulator and the schemes written for it: steps worked out by hand."""

from __future__ import annotations

import pytest

from srifty.predicting.exchange_schemes import FsdpUnit, RankStep, ddp_script, fsdp_script, zero1_script
from srifty.predicting.iteration_trace import Exchange, StepScript, Work, no_work_s, simulate_events
from srifty.records.iteration_span import Lane


def ends(spans, lane=None, rank=None):
    """(what, start, end) of the spans of a lane and rank, by their start."""
    chosen = [s for s in spans if (lane is None or s.lane is lane) and (rank is None or s.rank == rank)]
    return [(s.what, round(s.start_s, 9), round(s.end_s, 9)) for s in sorted(chosen, key=lambda s: s.start_s)]


def step_s(spans):
    return max(span.end_s for span in spans)


ONE = RankStep(forward_s=1, backward_s=4, optimizer_s=0.5, ready_at=(0.5, 1.0))


def test_buckets_are_exchanged_beside_the_backward_pass_and_the_optimizer_waits_for_the_last():
    spans = simulate_events(ddp_script([ONE], [3, 1]))
    assert ends(spans, Lane.EXCHANGE) == [("all-reduce of bucket 1", 3, 6), ("all-reduce of bucket 2", 6, 7)]
    assert ends(spans, Lane.COMPUTE)[-1] == ("optimizer", 7, 7.5)
    assert no_work_s(spans) == pytest.approx(2)


def test_with_two_slots_the_second_bucket_does_not_wait_for_the_first():
    spans = simulate_events(ddp_script([ONE], [3, 1]), slot_count=2)
    assert ends(spans, Lane.EXCHANGE) == [("all-reduce of bucket 1", 3, 6), ("all-reduce of bucket 2", 5, 6)]
    assert {span.slot for span in spans if span.lane is Lane.EXCHANGE} == {0, 1}
    assert step_s(spans) == pytest.approx(6.5)


def test_compute_beside_an_exchange_takes_longer_and_so_makes_the_next_bucket_later():
    # From 3 to 4 an exchange is in flight, so half as much is computed: 2 of backward take until 5.5.
    spans = simulate_events(ddp_script([ONE], [1, 1]), slow_down=2)
    assert ends(spans, Lane.EXCHANGE) == [
        ("all-reduce of bucket 1", 3, 4),
        ("all-reduce of bucket 2", 5.5, 6.5),
    ]
    assert step_s(spans) == pytest.approx(7)


def test_a_bucket_waits_for_the_slowest_rank_and_all_go_on_together():
    fast, slow = RankStep(1, 4, 0.5, ready_at=(0.5, 1.0)), RankStep(2, 4, 1.0, ready_at=(0.5, 1.0))
    spans = simulate_events(ddp_script([fast, slow], [1, 1]))
    assert ends(spans, Lane.EXCHANGE) == [("all-reduce of bucket 1", 4, 5), ("all-reduce of bucket 2", 6, 7)]
    assert ends(spans, rank=0)[-1] == ("optimizer", 7, 7.5)
    assert ends(spans, rank=1)[-1] == ("optimizer", 7, 8)


def test_accumulation_exchanges_in_the_last_micro_step_or_in_each():
    last = simulate_events(ddp_script([ONE], [3, 1], micro_steps=3))
    each = simulate_events(ddp_script([ONE], [3, 1], micro_steps=3, exchanges_each=True))
    assert step_s(last) == pytest.approx(2 * 5 + 7 + 0.5)
    assert step_s(each) == pytest.approx(3 * 7 + 0.5)
    assert len(ends(last, Lane.EXCHANGE)) == 2
    assert len(ends(each, Lane.EXCHANGE)) == 6


def test_waiting_for_data_and_for_the_slowest_is_part_of_the_step_and_not_slowed():
    rank = RankStep(1, 4, 0.5, wait_s=0.25, other_s=0.125, ready_at=(1.0,))
    spans = simulate_events(ddp_script([rank], [1], straggler_s=2), slow_down=3)
    assert ends(spans, Lane.COMPUTE)[0] == ("wait for data", 0, 0.25)
    assert step_s(spans) == pytest.approx(0.25 + 5 + 1 + 2 + 0.125 + 0.5)


def test_zero1_updates_a_share_and_gathers_the_parameters_after_it():
    spans = simulate_events(zero1_script([ONE, ONE], [1.5, 0.5], [1.5, 0.5], rank_count=2))
    assert ends(spans, Lane.EXCHANGE) == [
        ("reduce-scatter of bucket 1", 3, 4.5),
        ("reduce-scatter of bucket 2", 5, 5.5),
        ("all-gather of bucket 1", 5.75, 7.25),
        ("all-gather of bucket 2", 7.25, 7.75),
    ]
    assert ends(spans, rank=1)[-1] == ("optimizer", 5.5, 5.75)
    # DDP hides all of the exchange but its last part; ZeRO-1 exposes all gathers.
    assert step_s(spans) > step_s(simulate_events(ddp_script([ONE, ONE], [3, 1])))


TWO_UNITS = [FsdpUnit(gather_s=1, scatter_s=1.5)] * 2
UNIT = RankStep(forward_s=2, backward_s=4, optimizer_s=0.5)


def test_fsdp_gathers_each_unit_ahead_of_its_use_and_scatters_after_it():
    spans = simulate_events(fsdp_script([[UNIT, UNIT]], TWO_UNITS, rank_count=2))
    assert ends(spans, Lane.EXCHANGE) == [
        ("all-gather of unit 1", 0, 1),
        ("all-gather of unit 2", 1, 2),
        ("all-gather of unit 2", 5, 6),
        ("all-gather of unit 1", 6, 7),
        ("reduce-scatter of unit 2", 10, 11.5),
        ("reduce-scatter of unit 1", 14, 15.5),
    ]
    assert ends(spans, Lane.COMPUTE) == [
        ("forward of unit 1", 1, 3),
        ("forward of unit 2", 3, 5),
        ("backward of unit 2", 6, 10),
        ("backward of unit 1", 10, 14),
        ("optimizer", 15.5, 16),
    ]


def test_fsdp_without_prefetch_gathers_only_when_a_unit_is_needed():
    spans = simulate_events(fsdp_script([[UNIT, UNIT]], TWO_UNITS, rank_count=2, prefetch=0))
    # Forward: 1 + 2 + 1 + 2; backward: 1 + 4, scatter 1.5 and gather 1 in one queue, 4; scatter 1.5; optimizer.
    assert step_s(spans) == pytest.approx(6 + 5 + 2.5 + 4 + 1.5 + 0.5)


def test_fsdp_prefetch_is_never_slower_and_its_exchange_is_half_as_long_again_as_that_of_ddp():
    steps = [
        step_s(simulate_events(fsdp_script([[UNIT] * 4], [FsdpUnit(1, 1)] * 4, rank_count=2, prefetch=p)))
        for p in (0, 1, 2)
    ]
    assert steps == sorted(steps, reverse=True)
    spans = simulate_events(fsdp_script([[UNIT] * 4], [FsdpUnit(1, 1)] * 4, rank_count=2))
    exchanged = sum(span.duration_s for span in spans if span.lane is Lane.EXCHANGE)
    assert exchanged == pytest.approx(1.5 * 4 * 2)  # an AllReduce is one scatter and one gather


def test_fsdp_gathers_in_every_micro_step_and_may_scatter_in_the_last_alone():
    def scatters(**options):
        spans = simulate_events(
            fsdp_script([[UNIT, UNIT]], TWO_UNITS, rank_count=2, micro_steps=3, **options)
        )
        return [sum(name in span.what for span in spans) for name in ("scatter", "gather")]

    assert scatters() == [6, 12]
    assert scatters(scatters_each=False) == [2, 12]


def test_one_rank_exchanges_nothing_and_takes_the_sum_of_its_work():
    spans = simulate_events(ddp_script([ONE], []))
    assert ends(spans, Lane.EXCHANGE) == []
    assert step_s(spans) == pytest.approx(5.5)


def test_a_script_that_never_ends_is_refused():
    waits = StepScript(((Work("optimizer", 1, needs=1),),), (Exchange("all-reduce", 1, after=1),))
    with pytest.raises(ValueError, match="for ever"):
        simulate_events(waits)
