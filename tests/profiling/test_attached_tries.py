"""What a run of a few steps tells of a batch, by the way in which it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from srifty.errors import NotMeasured, SriftyError, WorkloadFailed
from srifty.profiling import attached_tries
from srifty.profiling.attached_run import RunResult
from srifty.profiling.attached_tries import AttachedTries
from srifty.profiling.child_life import Ended
from srifty.profiling.largest_batch import Ending
from srifty.profiling.observation import Cut, Observation, Parameter, Process

GIB = 2**30
STOPPED = Ended(0, is_out_of_time=False, took_s=3)
FAILED = Ended(1, is_out_of_time=False, took_s=3)
KILLED = Ended(-9, is_out_of_time=False, took_s=3)
LATE = Ended(None, is_out_of_time=True, took_s=60)
TOO_MUCH = Ended(None, is_out_of_time=False, took_s=3, is_too_much=True)


def observed(rows: int = 8, skipped: int = 0, reason: str = "enough", **told: Any) -> Observation:
    cut = Cut(marks=(("other", 0.0),), length_s=0.5, rows=(rows,), elements=100 * rows)
    skip = replace(cut, is_skipped=True)
    given = {"device": "cpu", "needs_two_samples": False, "distributed": None}
    return Observation(
        reason=reason,
        is_without_optimizer=False,
        optimizer_count=1,
        cuts=(*[skip] * skipped, *[cut] * (3 - skipped)),
        parameters=(Parameter(1000, "float32", "cpu", True, True, None),),
        autocast={},
        told=given | told,
    )


def process(steps: int = 3, **more: Any) -> Process:
    given = {"torch": "2", "batches_loaded": 0, "backwards": 0, "optimizer_steps": steps, "fault": None}
    return Process(arguments=(), steps=steps, **(given | more))


def ran(
    ended: Ended = STOPPED,
    seen: Observation | None = None,
    said: str = "",
    steps: int | None = None,
    **more: Any,
) -> RunResult:
    count = steps if steps is not None else 0 if seen is None else len(seen.cuts)
    return RunResult(ended, seen, [process(count, **more)], said, None)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AttachedTries]:
    def make(*results: RunResult) -> AttachedTries:
        left = list(results)
        monkeypatch.setattr(attached_tries, "run_attached", lambda *given, **named: left.pop(0))
        return AttachedTries(["python"], Path("/"), 60, host_limit_bytes=GIB, host_reserve_bytes=0)

    return make


def test_a_few_steps_fit(tries: Callable[..., AttachedTries]) -> None:
    outcome = tries(ran(seen=observed()))(8)
    assert (outcome.ending, outcome.step_s, outcome.smallest_batch) == (Ending.FITS, 0.5, 1)
    assert (outcome.memory_bytes, outcome.reserve_bytes) == (GIB, 1000)


def test_a_device_tells_its_memory_and_its_peak(tries: Callable[..., AttachedTries]) -> None:
    seen = observed(device="cuda", memory_bytes=16 * GIB, peak_memory_bytes=3 * GIB)
    outcome = tries(ran(seen=seen))(8)
    assert (outcome.memory_bytes, outcome.peak_memory_bytes) == (16 * GIB, 3 * GIB)


def test_a_batch_that_micro_steps_share_has_a_sample_for_each(tries: Callable[..., AttachedTries]) -> None:
    assert tries(ran(seen=observed(rows=2, needs_two_samples=True)))(8).smallest_batch == 8


@pytest.mark.parametrize(
    ("result", "ending"),
    [
        (ran(FAILED, said="torch.OutOfMemoryError: CUDA out of memory. Tried"), Ending.OUT_OF_MEMORY),
        (ran(FAILED, said="RuntimeError: [enforce] can't allocate memory: you tried"), Ending.OUT_OF_MEMORY),
        (ran(FAILED, said="  exitcode  : -9 (pid: 12)"), Ending.OUT_OF_MEMORY),
        (ran(KILLED), Ending.OUT_OF_MEMORY),
        (ran(TOO_MUCH, observed(reason="running")), Ending.OUT_OF_MEMORY),
        (ran(TOO_MUCH, fault="Traceback\nMemoryError"), Ending.OUT_OF_MEMORY),
        (ran(FAILED, said="ValueError: Expected more than 1 value per channel"), Ending.TOO_SMALL),
        (ran(LATE, batches_loaded=1), Ending.TOO_SLOW),
        (ran(FAILED, observed(), said="out of memory"), Ending.FITS),  # a launcher that does not like our end
        (ran(LATE, steps=2), Ending.FITS),
    ],
)
def test_the_end_of_a_run_tells_whether_its_batch_fits(
    tries: Callable[..., AttachedTries], result: RunResult, ending: Ending
) -> None:
    assert tries(result)(8).ending is ending


def test_what_kills_a_process_is_said(tries: Callable[..., AttachedTries]) -> None:
    assert tries(ran(KILLED))(8).said == "it was killed, as the kernel does where memory runs out"


@pytest.mark.parametrize(
    ("results", "error", "said"),
    [
        (
            [ran(FAILED, said="ValueError: a"), ran(FAILED, said="ValueError: a")],
            WorkloadFailed,
            "ValueError: a",
        ),
        ([ran(FAILED, said="ValueError: a"), ran()], SriftyError, "ended well without"),
        ([ran(fault="Traceback\nTypeError: ours")], SriftyError, "fault in Srifty"),
        ([ran()], NotMeasured, "nothing stepped"),
        ([ran(steps=1)], NotMeasured, "only 1 step"),
        ([ran(LATE)], NotMeasured, "nothing stepped .* before 60 s were over"),
    ],
)
def test_every_other_end_ends_the_search(
    tries: Callable[..., AttachedTries], results: list[RunResult], error: type[SriftyError], said: str
) -> None:
    with pytest.raises(error, match=said):
        tries(*results)(8)


def test_steps_that_a_scaler_leaves_out_do_not_count(tries: Callable[..., AttachedTries]) -> None:
    short, longer = ran(seen=observed(skipped=2)), ran(KILLED)
    assert tries(short, longer)(8).ending is Ending.OUT_OF_MEMORY
    assert tries(ran(seen=observed(skipped=1)))(8).ending is Ending.FITS


def test_data_that_stop_growing_are_too_few(tries: Callable[..., AttachedTries]) -> None:
    fits = tries(ran(seen=observed(8)), ran(seen=observed(16)), ran(seen=observed(20)), ran(steps=0))
    assert [fits(8).ending, fits(16).ending] == [Ending.FITS, Ending.FITS]
    outcome = fits(32)
    assert (outcome.ending, outcome.said) == (
        Ending.TOO_FEW,
        "the script had no more than 20 samples to train on",
    )
    assert fits(64).said == "the script ended before 2 steps"


def test_a_first_dimension_that_is_no_batch_does_not_bound_it(tries: Callable[..., AttachedTries]) -> None:
    def of_length(batch: int) -> RunResult:
        seen = observed(8)
        return ran(seen=replace(seen, cuts=tuple(replace(cut, elements=batch) for cut in seen.cuts)))

    fits = tries(of_length(8), of_length(16))
    assert [fits(8).ending, fits(16).ending] == [Ending.FITS, Ending.FITS]
