"""Cuts, steps, phases and arrivals by hand, where every number is known."""

from __future__ import annotations

import runpy
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srifty.profiling import attached_steps
from srifty.profiling.attached_buckets import fill, with_copies
from srifty.profiling.attached_phases import PHASES, phase_times
from srifty.profiling.attached_steps import first_steady, see_steps, spread_of, whole_steps
from srifty.profiling.bucket_rule import Gradient
from srifty.profiling.observation import Cut, Observation

LABELS = ("backward", "data", "forward", "optimizer", "zero_grad", "other")


def cut(*stretches: tuple[str, float], **more: object) -> Cut:
    """A cut of labelled stretches [s]."""
    marks, at = [], 0.0
    for label, length_s in stretches:
        marks.append((label, at))
        at += length_s
    return Cut(marks=tuple(marks), length_s=at, **more)  # type: ignore[arg-type]


def phases(*stretches: tuple[str, float], is_without_optimizer: bool = False) -> dict[str, float]:
    found = phase_times([cut(*stretches)], is_without_optimizer=is_without_optimizer)
    return {phase: time_s for phase, time_s in found.items() if time_s}


def observation(*cuts: Cut, optimizer_count: int = 1) -> Observation:
    return Observation("enough", False, optimizer_count, cuts, (), {}, {"distributed": None, "device": "cpu"})


def test_a_usual_step() -> None:
    found = phases(
        ("other", 1), ("data", 2), ("other", 4), ("zero_grad", 8), ("forward", 16), ("other", 32),
        ("backward", 64), ("other", 128), ("optimizer", 256), ("other", 512),
    )  # fmt: skip
    assert found == {
        "other": 1 + 4 + 512,
        "data": 2,
        "forward": 48,
        "backward": 64,
        "optimizer": 8 + 128 + 256,
    }


def test_where_no_model_was_called_what_comes_before_backward_is_forward() -> None:
    assert phases(("other", 1), ("data", 2), ("other", 4), ("zero_grad", 8), ("backward", 16)) == {
        "other": 1, "data": 2, "forward": 4, "optimizer": 8, "backward": 16,
    }  # fmt: skip


def test_a_closure_is_not_the_optimizer_s() -> None:
    found = phases(
        ("other", 1), ("optimizer", 2), ("forward", 4), ("optimizer", 8), ("backward", 16), ("optimizer", 32)
    )
    assert found == {"other": 1, "optimizer": 32, "forward": 2 + 12, "backward": 16}
    # No call of a model seen inside it: what is before the backward pass is forward all the same.
    found = phases(
        ("other", 1), ("data", 1), ("other", 1), ("optimizer", 2), ("backward", 4), ("optimizer", 8)
    )
    assert found == {"other": 2, "data": 1, "forward": 2, "backward": 4, "optimizer": 8}


def test_without_an_optimizer_what_follows_the_backward_pass_is_its() -> None:
    found = phases(("other", 1), ("data", 2), ("forward", 4), ("backward", 8), is_without_optimizer=True)
    assert found == {"optimizer": 1, "data": 2, "forward": 4, "backward": 8}
    # Nothing tells the two apart here.
    assert phases(("other", 1), ("backward", 2), is_without_optimizer=True) == {"forward": 1, "backward": 2}


@given(
    st.lists(st.tuples(st.sampled_from(LABELS), st.integers(0, 1000)), min_size=1, max_size=12), st.booleans()
)
def test_every_moment_belongs_to_one_phase(stretches: list[tuple[str, int]], without: bool) -> None:
    found = phase_times([cut(*stretches)], is_without_optimizer=without)
    assert set(found) == set(PHASES)
    assert sum(found.values()) == pytest.approx(sum(length_s for _, length_s in stretches))
    backward_s = sum(length_s for label, length_s in stretches if label == "backward")
    assert found["backward"] == pytest.approx(backward_s)


def test_a_step_ends_with_the_optimizer_that_steps_least() -> None:
    judge, maker = cut(("other", 1), optimizers=(0,)), cut(("other", 1), optimizers=(1,))
    groups = whole_steps([judge, judge, judge, maker] * 4)
    assert [len(group) for group in groups] == [4] * 4
    assert all(group[-1] is maker for group in groups)
    # One that only warmed up does not count.
    assert len(whole_steps([maker] * 3 + [judge] * 20)) == 20


def test_steps_that_do_more_than_most_are_left_out() -> None:
    usual = cut(("forward", 1), ("backward", 2), backwards=((1, 3),), forwards=1, rows=(8,))
    evaluates = cut(
        ("forward", 1), ("backward", 2), backwards=((1, 3),), forwards=1, no_grad_forwards=9, rows=(8,)
    )
    short = cut(("forward", 1), ("backward", 2), backwards=((1, 3),), forwards=1, rows=(3,))
    skipped = cut(
        ("forward", 1), ("backward", 2), backwards=((1, 3),), forwards=1, rows=(8,), is_skipped=True
    )
    seen = see_steps(observation(*[usual] * 10, evaluates, usual, short, usual, skipped, usual))
    assert {step.cuts[0] for step in seen.steady} == {usual}
    # A network that makes fakes without gradients does so in every step.
    seen = see_steps(observation(*[evaluates] * 10))
    assert len(seen.steady) == 9


def test_several_passes_are_accumulation_only_with_as_many_calls() -> None:
    passes = ((1, 2), (3, 4))
    both = cut(("forward", 1), ("backward", 2), backwards=passes, forwards=2)
    two_losses = cut(("forward", 1), ("backward", 2), backwards=passes, forwards=1)
    unseen = cut(("forward", 1), ("backward", 2), backwards=passes, forwards=0)
    assert see_steps(observation(*[both] * 10)).accumulation_count == 2
    assert see_steps(observation(*[two_losses] * 10)).accumulation_count == 1
    assert see_steps(observation(*[unseen] * 10)).accumulation_count == 2
    assert see_steps(observation(*[both] * 10, optimizer_count=2)).accumulation_count == 1


@pytest.mark.parametrize(
    ("cold", "first"), [((), 0), ((40.0,), 1), ((3.0, 2.0), 2), ((1.5, 1.4, 1.3, 1.2, 1.1), 3)]
)
def test_the_steady_state_begins_after_the_cold_steps(cold: tuple[float, ...], first: int) -> None:
    assert first_steady([*cold, *[1.0] * 20]) == first


def test_compile_time_is_what_cold_steps_took_beyond_steady_ones() -> None:
    cold = cut(("forward", 40), ("backward", 5), backwards=((40, 45),), forwards=1)
    warm = cut(("forward", 1), ("backward", 2), backwards=((1, 3),), forwards=1)
    assert see_steps(observation(cold, *[warm] * 20)).compile_s == 42


@given(st.lists(st.tuples(*[st.floats(1e-4, 1.0)] * 3), min_size=4, max_size=40))
def test_centres_of_phases_add_up_to_the_step(times: list[tuple[float, float, float]]) -> None:
    """Unless a centre had to be kept within its own spread; means add up always."""
    labels = ("forward", "backward", "data")
    steps = see_steps(
        observation(*(cut(*zip(labels, one, strict=True), backwards=((0, 1),), forwards=1) for one in times))
    ).all
    spreads = [spread_of([step.phase_s[label] for step in steps], steps) for label in labels]
    whole = spread_of([step.step_s for step in steps], steps)
    assert sum(spread.mean for spread in spreads) == pytest.approx(whole.mean)
    if all(spread.p10 < spread.p50 < spread.p90 for spread in [*spreads, whole]):
        assert sum(spread.p50 for spread in spreads) == pytest.approx(whole.p50)


def test_copies_make_gradients_late_but_not_later_than_the_backward_pass() -> None:
    gradients = [Gradient(40_000_000, "float32", ready_at) for ready_at in (0.25, 0.5, 0.75, 1.0)]
    late = [gradient.ready_at or 0.0 for gradient in with_copies(gradients, 0.04)]
    # (10 ms + 0.26 ns x 40 MB) of (40 ms + 4/3 x 0.26 ns x 160 MB), and so on
    assert late == pytest.approx([0.2137, 0.4275, 0.6412, 0.8549], abs=1e-3)
    free = [gradient.ready_at or 0.0 for gradient in with_copies(gradients, 1000.0)]
    assert free == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=1e-3)


def test_buckets_of_given_sizes_are_ready_with_their_last_gradient() -> None:
    gradients = [Gradient(10, "float32", ready_at) for ready_at in (1.0, 0.6, 0.4, 0.2)]
    buckets = fill([20, 10, 10], gradients)
    assert [(bucket.gradient_bytes, bucket.ready_at) for bucket in buckets] == [
        (20, 0.4),
        (10, 0.6),
        (10, 1.0),
    ]
    assert median(bucket.ready_at for bucket in buckets) == 0.6


@pytest.mark.parametrize(
    ("loads", "rows", "backward_count", "optimizers", "micro_steps", "batch"),
    [
        ([16], [16], 1, 1, 1, 16),  # the usual
        ([16] * 4, [16] * 4, 4, 1, 4, 16),  # accumulation
        ([16], [16, 16], 2, 1, 1, 16),  # adversarial training: the same batch twice through the model
        ([32], [64], 1, 1, 1, 32),  # two views of each sample, put together
        ([8], [8, 160], 1, 1, 1, 8),  # a second module sees every token as a row
        ([16] * 4, [16] * 4, 4, 2, 4, 16),  # two optimizers that step together
        ([64], [16] * 4, 4, 1, 4, 16),  # a loaded batch that is cut into parts
    ],
)
def test_what_a_loader_hands_out_is_what_is_trained_on(
    loads: list[int], rows: list[int], backward_count: int, optimizers: int, micro_steps: int, batch: int
) -> None:
    step = cut(
        ("data", 1), ("forward", 1), ("backward", 1), ("optimizer", 1),
        loads=tuple((0, size) for size in loads), rows=tuple(rows), forwards=len(rows),
        backwards=((0.0, 1.0),) * backward_count, optimizers=tuple(range(optimizers)),
    )  # fmt: skip
    seen = see_steps(observation(*[step] * 12, optimizer_count=optimizers))
    assert (seen.accumulation_count, seen.loaded_batch) == (micro_steps, batch)


def test_two_loaders_tell_nothing_of_the_batch() -> None:
    step = cut(
        ("forward", 1),
        ("backward", 1),
        loads=((0, 8), (1, 8)),
        rows=(16,),
        forwards=1,
        backwards=((0.0, 1.0),),
    )
    assert see_steps(observation(*[step] * 12)).loaded_batch is None


def test_where_every_step_differs_none_is_odd() -> None:
    cuts = [
        cut(("other", 1 + i % 3), ("forward", 1), ("backward", 1), no_grad_forwards=10 + i, rows=(10 + i,),
            forwards=1, backwards=((0.0, 1.0),))
        for i in range(20)
    ]  # fmt: skip
    assert len(see_steps(observation(*cuts)).steady) > 10


def test_blocks_with_hooks_fall_in_with_no_period() -> None:
    path = Path(attached_steps.__file__).parent / "on-python-path" / "srifty_probe" / "pace.py"
    pace = runpy.run_path(str(path))["Pace"]({"until": 1e12, "steady_s": 1e9})
    hooked = []
    for _ in range(1200):
        hooked.append(pace.wants_hooks)
        pace.step(0.01)
    for period in (2, 3, 4, 6, 8, 12):
        for phase in range(period):
            share = sum(hooked[phase::period]) / len(hooked[phase::period])
            assert 0.35 < share < 0.65, (period, phase)
