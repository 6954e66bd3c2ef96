"""Iterations on columns: the event simulator as a second opinion, laws, and steps worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from srifty.predicting.exchange_schemes import RankStep, ddp_script
from srifty.predicting.iteration_simulator import ExchangeCost, GroupWork, fitted_slow_down, simulate
from srifty.predicting.iteration_trace import no_work_s, simulate_events
from srifty.predicting.scenarios import SLOW_DOWN

WHAT = ("wait_s", "forward_s", "backward_s", "other_s", "optimizer_s")


@dataclass(frozen=True)
class Case:
    """One step, for either simulator."""

    ranks: tuple[RankStep, ...]
    bucket_bytes: tuple[int, ...]
    latency_s: float = 0.0
    seconds_per_byte: float = 1e-9
    slot_count: int = 1
    slow_down: float = 1.0
    micro_steps: int = 1
    exchanges_each: bool = False

    @property
    def bucket_s(self):
        return [self.latency_s + self.seconds_per_byte * size for size in self.bucket_bytes]

    @property
    def cost(self):
        return ExchangeCost(
            np.array([self.latency_s]),
            np.array([self.seconds_per_byte]),
            np.array(self.bucket_bytes, float),
            self.slow_down,
            self.slot_count,
        )


def on_columns(*cases):
    """The cases, alike but for their numbers in each row, in one call."""
    first = cases[0]
    groups = [
        GroupWork(
            **{what: np.array([getattr(case.ranks[g], what) for case in cases]) for what in WHAT},
            ready_at=np.array(rank.ready_at),
        )
        for g, rank in enumerate(first.ranks)
    ]
    cost = replace(
        first.cost,
        latency_s=np.array([case.latency_s for case in cases]),
        seconds_per_byte=np.array([case.seconds_per_byte for case in cases]),
    )
    micro_steps = np.array([case.micro_steps for case in cases])
    return simulate(groups, cost, micro_steps, exchanges_each=first.exchanges_each)


def step(case):
    return float(on_columns(case).step_s[0])


def by_events(case):
    script = ddp_script(
        case.ranks, case.bucket_s, micro_steps=case.micro_steps, exchanges_each=case.exchanges_each
    )
    return simulate_events(script, slot_count=case.slot_count, slow_down=case.slow_down)


times = st.floats(0.001, 10)
sizes = st.one_of(st.integers(1, 10**9), st.sampled_from([10**8, 10**9]))
small = st.one_of(st.just(0.0), st.floats(0, 3))


@st.composite
def cases(draw):
    count = draw(st.integers(0, 12))
    early = draw(st.sampled_from([1.0, 1.0, 0.05]))  # with all ready early, exchanges queue for a slot
    ranks = tuple(
        RankStep(
            forward_s=draw(times),
            backward_s=draw(times),
            optimizer_s=draw(small),
            wait_s=draw(small),
            other_s=draw(small),
            ready_at=tuple(sorted(draw(st.lists(st.floats(0, early), min_size=count, max_size=count)))),
        )
        for _ in range(draw(st.integers(1, 3)))
    )
    return Case(
        ranks=ranks,
        bucket_bytes=tuple(draw(st.lists(sizes, min_size=count, max_size=count))),
        latency_s=draw(st.floats(0, 0.3)),
        seconds_per_byte=draw(st.floats(0, 5e-9)),
        slot_count=draw(st.integers(1, 4)),
        slow_down=draw(st.sampled_from([1.0, 1.0, 1.1, 1.48, 4.0])),
        micro_steps=draw(st.integers(1, 4)),
        exchanges_each=draw(st.booleans()),
    )


@settings(max_examples=1000, deadline=None)
@given(cases())
def test_columns_and_events_tell_the_same_step(case):
    spans, told = by_events(case), on_columns(case)
    length = max(span.end_s for span in spans)
    assert told.step_s[0] == pytest.approx(length, rel=1e-9)
    assert told.exposed_allreduce_s[0] == pytest.approx(no_work_s(spans), abs=1e-9 * length)
    assert min(told.compute_s[0], told.exposed_allreduce_s[0], told.waiting_s[0]) >= -1e-12


@settings(max_examples=300, deadline=None)
@given(cases())
def test_a_step_lies_between_the_larger_of_compute_and_exchange_and_their_sum(case):
    exchange = sum(case.bucket_s) * (case.micro_steps if case.exchanges_each else 1)
    alone = step(replace(case, bucket_bytes=(), ranks=tuple(replace(r, ready_at=()) for r in case.ranks)))
    found = step(case)
    assert max(alone, exchange / case.slot_count) <= found * (1 + 1e-9)
    # Compute beside an exchange is slowed for no longer than the exchange lasts.
    assert found <= (alone + exchange) * (1 + 1e-9)


@settings(max_examples=300, deadline=None)
@given(cases(), st.floats(1, 10))
def test_more_bytes_are_never_faster_and_a_faster_link_is_never_slower(case, factor):
    longer = tuple(int(size * factor) for size in case.bucket_bytes)
    assert step(replace(case, bucket_bytes=longer)) >= step(case) * (1 - 1e-9)
    assert step(replace(case, seconds_per_byte=case.seconds_per_byte / factor)) <= step(case) * (1 + 1e-9)
    assert step(replace(case, latency_s=case.latency_s / factor)) <= step(case) * (1 + 1e-9)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_more_slots_are_never_slower(case):
    assert step(replace(case, slot_count=case.slot_count + 1)) <= step(case) * (1 + 1e-9)


@settings(max_examples=300, deadline=None)
@given(cases(), st.floats(1, 3))
def test_compute_slowed_beside_exchange_is_never_faster(case, factor):
    slowed = replace(case, slow_down=case.slow_down * factor)
    assert step(slowed) >= step(case) * (1 - 1e-9)


@settings(max_examples=200, deadline=None)
@given(cases(), st.floats(1, 5))
def test_a_slower_rank_never_makes_a_faster_step(case, factor):
    # But for one case: held up, an exchange may fall beside another, and both slow compute for a shorter time.
    assume(case.slow_down == 1 or case.slot_count == 1)
    first = case.ranks[0]
    slower = replace(first, forward_s=first.forward_s * factor, backward_s=first.backward_s * factor)
    assert step(replace(case, ranks=(slower, *case.ranks[1:]))) >= step(case) * (1 - 1e-9)


def test_rows_are_told_apart_whatever_stands_beside_them():
    rank = RankStep(1, 4, 0.5, ready_at=(0.5, 1.0))
    rows = [
        Case((replace(rank, forward_s=f),), (10**9, 10**9), seconds_per_byte=s, slow_down=1.3, slot_count=2)
        for f in (1, 2)
        for s in (1e-10, 2e-9)
    ]
    assert on_columns(*rows).step_s.tolist() == pytest.approx([step(row) for row in rows], rel=1e-12)


def test_a_step_worked_out_by_hand():
    # Ready at 3 and 5; exchanged from 3 to 6 and from 6 to 7.5; two of the exposed 2.5 are the first bucket's fault.
    rank = RankStep(1, 4, 0.5, wait_s=0.25, ready_at=(0.5, 1.0))
    case = Case((rank,), (3 * 10**9, 1.5 * 10**9))
    told = on_columns(case)
    assert told.exposed_allreduce_s[0] == pytest.approx(2.5)
    assert told.compute_s[0] == pytest.approx(5.5)
    assert told.waiting_s[0] == pytest.approx(0.25)
    # Slowed by half again, the second bucket is ready at 3 + 3 = 6, when the first has been exchanged.
    assert step(replace(case, slow_down=1.5)) == pytest.approx(8.25)
    # With two slots it goes at 5.25, and the first sets the end.
    assert step(replace(case, slot_count=2)) == pytest.approx(0.25 + 6.5 + 0.5)
    # Two micro-steps: the first exchanges nothing, or as much.
    assert step(replace(case, micro_steps=2)) == pytest.approx(5.25 + 8.25)
    assert step(replace(case, micro_steps=2, exchanges_each=True)) == pytest.approx(7.75 + 8.25)


def test_a_slot_under_a_long_exchange_is_not_free_before_its_end():
    # One slot has the first bucket until 4, the other the next four; the last two go side by side from 4 to 5.
    rank = RankStep(0.0, 0.001, ready_at=(0.0,) * 7)
    case = Case((rank,), (4 * 10**9, *(10**9,) * 6), slot_count=2)
    assert step(case) == pytest.approx(5)
    assert max(span.end_s for span in by_events(case)) == pytest.approx(5)


def test_nothing_to_exchange_exposes_nothing():
    told = on_columns(Case((RankStep(1, 2, 0.5),), ()))
    assert told.exposed_allreduce_s.tolist() == [0]
    assert told.compute_s.tolist() == [3.5]


@pytest.mark.parametrize(("factor", "overlapping"), [(1.38, 0.57), (1.48, 0.60)])
def test_compute_slows_beside_exchange_by_the_published_factor(factor, overlapping):
    """VGG19 and GPT-2 on 8 A100: compute beside AllReduce takes 1.38 and 1.48 times as long (arXiv 2412.12487)."""
    # All of the backward pass but its first instant has an exchange beside it: 100 ms become 138 and 148.
    beside = Case(
        (RankStep(0.0, 0.1, ready_at=(0.0, 1.0)),), (10**9, 1), seconds_per_byte=1e-9, slow_down=factor
    )
    assert on_columns(beside).compute_s[0] == pytest.approx(0.1 * factor)
    # Where the exchange lasts as long as 57 or 60 % of the kernels, the others keep their pace.
    lasting = replace(beside, seconds_per_byte=factor * overlapping * 0.1e-9)
    expected = 0.1 * (1 - overlapping + overlapping * factor)
    assert on_columns(lasting).compute_s[0] == pytest.approx(expected, rel=1e-6)
    assert fitted_slow_down(0.1, expected, factor * overlapping * 0.1) == pytest.approx(factor)


def test_a_slow_down_is_asked_for_or_fitted_never_assumed():
    assert SLOW_DOWN == 1
    assert fitted_slow_down(0.1, 0.09, 0.05) == 1
    assert fitted_slow_down(0.1, 0.1, 0.0) == 1
    assert fitted_slow_down(0.1, 10.0, 0.1) == pytest.approx(100)
