"""Runs that give no measurement, or a poor one: what is said, and whose fault it is."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from srifty.errors import InvalidInput, NotMeasured, SriftyError, WorkloadFailed
from tests.profiling.attach_kit import MODEL_BYTES, Scripts, assert_holds_together, scripts

__all__ = ["scripts"]

STEPS = """
model = make_model(1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range({count}):
    loss_of(model, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no data here')\n", "ValueError: no data here"),
        (STEPS.format(count=5) + "raise ValueError('after five')\n", "ValueError: after five"),
        ("sys.exit(3)\n", "exit status 3"),
    ],
)
def test_a_script_that_fails_by_itself_is_said_to(scripts: Scripts, body: str, said: str) -> None:
    with pytest.raises(WorkloadFailed, match="it fails without Srifty too") as raised:
        scripts.profile(body)
    assert said in str(raised.value)
    assert raised.value.exit_status == 5
    if "raise" in body:
        assert 'train.py", line' in raised.value.workload_traceback
        assert "srifty" not in raised.value.workload_traceback


def test_a_script_that_fails_only_while_watched_is_a_fault_of_ours(scripts: Scripts) -> None:
    with pytest.raises(SriftyError, match="ended well without: this looks like a fault in Srifty") as raised:
        scripts.profile("if 'SRIFTY_PROBE' in os.environ:\n    raise ValueError('I am watched')\n")
    assert raised.value.exit_status == 1
    assert "I am watched" in str(raised.value)


def test_a_batch_too_small_for_batch_normalisation_is_left_out(scripts: Scripts) -> None:
    body = STEPS.format(count=40).replace("make_model(1)", "nn.Sequential(Layer(), nn.BatchNorm1d(512))")
    profile = scripts.profile(body, batches=(1, 4))
    assert [timing.batch for timing in profile.timings] == [4]
    assert profile.min_batch == 2
    assert any(note.startswith("batch 1 was left out") for note in profile.assumptions)


def test_earlier_batches_are_kept_when_a_later_one_fails(scripts: Scripts) -> None:
    fails = "if BATCH > 8:\n    raise ValueError('too many')\n"
    with pytest.raises(WorkloadFailed, match="too many") as raised:
        scripts.profile(fails + STEPS.format(count=40), batches=(4, 8, 16, 32))
    profile = raised.value.partial
    assert profile is not None
    assert [timing.batch for timing in profile.timings] == [4, 8]
    assert any(
        note.startswith("batch 16 was left out") and "too many" in note for note in profile.assumptions
    )
    assert not any(note.startswith("batch 32") for note in profile.assumptions)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise ValueError('after nine')", "with exit status 1 (ValueError: after nine)"),
        ("sys.exit('no tenth')", "with exit status 1 (no tenth)"),
        ("os._exit(7)", "with exit status 7"),
        ("sys.stderr.flush(); os.kill(os.getpid(), 11)", "by SIGSEGV"),
    ],
)
def test_good_steps_before_a_failure_are_kept_beside_it(scripts: Scripts, end: str, said: str) -> None:
    with pytest.raises(WorkloadFailed, match="it fails without Srifty too") as raised:
        scripts.profile(STEPS.format(count=9) + end + "\n", batches=())
    profile = raised.value.partial
    assert profile is not None
    assert [timing.batch for timing in profile.timings] == [8]
    note = next(note for note in profile.assumptions if "the script failed" in note)
    assert note.startswith("after ")
    assert said in note


def test_a_failure_after_too_few_steps_keeps_nothing(scripts: Scripts) -> None:
    with pytest.raises(WorkloadFailed) as raised:
        scripts.profile(STEPS.format(count=2) + "raise ValueError('after two')\n", batches=())
    assert raised.value.partial is None


def test_a_script_that_ends_itself_at_once_is_measured_by_what_there_is(scripts: Scripts) -> None:
    profile = scripts.profile(STEPS.format(count=9) + "os._exit(0)\n", batches=())
    assert any("the script ended after" in note for note in profile.assumptions)


@pytest.mark.parametrize(
    "asks", ["input('which GPU? ')\n", "if not sys.stdin.read():\n    raise EOFError  # of sys.stdin\n"]
)
def test_a_script_that_asks_is_told_that_nobody_answers(scripts: Scripts, asks: str) -> None:
    with pytest.raises(WorkloadFailed, match="EOFError.*Srifty gives it no standard input") as raised:
        scripts.profile(asks, batches=())
    assert "without Srifty" not in str(raised.value)
    assert 'train.py", line' in raised.value.workload_traceback


def test_an_end_of_another_file_is_the_scripts_own_failure(scripts: Scripts) -> None:
    with pytest.raises(WorkloadFailed, match="Ran out of input.*it fails without Srifty too"):
        scripts.profile("import io, pickle\npickle.load(io.BytesIO())\n", batches=())


def test_a_batch_without_memory_is_left_out_and_not_a_failure(scripts: Scripts) -> None:
    short = "if BATCH > 8:\n    torch.empty(2**50, dtype=torch.uint8)\n"
    profile = scripts.profile(short + STEPS.format(count=40), batches=(8, 16))
    assert profile.max_batch == 8
    assert any(
        "batch 16 was left out: batch 16 does not fit into memory" in note for note in profile.assumptions
    )
    with pytest.raises(NotMeasured, match="batch 16 does not fit into memory"):
        scripts.profile(short, batches=(16,))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("x = loss_of(make_model(1), torch.ones(4, 512))\n", "no optimizer step and no backward pass"),
        ("loss_of(make_model(1), torch.ones(4, 512)).backward()\n", "1 backward pass seen"),
        (STEPS.format(count=1), "only 1 step .* was seen before it ended; it takes at least 3"),
        (STEPS.format(count=2), "only 2 steps .* let it train for more steps"),
    ],
)
def test_where_nothing_steps_what_was_seen_is_said(scripts: Scripts, body: str, said: str) -> None:
    with pytest.raises(NotMeasured, match=said):
        scripts.profile(body)


def test_a_command_without_torch_is_told_so(scripts: Scripts) -> None:
    (scripts.folder / "train.py").write_text("print('hello')\n")
    with pytest.raises(NotMeasured, match="none of the 1 Python processes .* imported torch"):
        scripts.profile(batches=())


def test_a_script_that_ends_early_is_measured_by_what_there_is(scripts: Scripts) -> None:
    profile = scripts.profile(STEPS.format(count=9), batches=())
    assert_holds_together(profile, trained_bytes=MODEL_BYTES // 4)
    assert any("the script ended after 9 steps" in note for note in profile.assumptions)


def test_when_time_is_up_what_there_is_is_used_or_said_to_be_too_little(scripts: Scripts) -> None:
    slow = STEPS.format(count=1000) + "    time.sleep({})\n"
    profile = scripts.profile(slow.format(0.4), batches=(), seconds=12)
    assert_holds_together(profile, trained_bytes=MODEL_BYTES // 4)
    assert any("time was up after" in note for note in profile.assumptions)
    with pytest.raises(NotMeasured, match=r"at least 3 of one kind.*give a longer --max-seconds"):
        scripts.profile(slow.format(30), batches=(), seconds=6)


def test_steps_that_are_mostly_cold_are_told_from_too_few(scripts: Scripts) -> None:
    with pytest.raises(NotMeasured, match="4 steps .* were seen before it ended, and only 2 of them can be"):
        scripts.profile(STEPS.format(count=4))


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        (
            "train.py",
            "time.sleep(60)\n",
            r"nothing stepped .* before 6 s were over: .*give a longer --max-sec",
        ),
        (
            "train.sh",
            "sleep 60\n",
            "no Python process .* could be watched before 6 s.* give a longer --max-sec",
        ),
        (
            "run.py",
            "import time; time.sleep(60)\n",
            "imported torch before 6 s were over; give a longer --max",
        ),
    ],
)
def test_where_time_was_up_more_of_it_is_the_advice(
    scripts: Scripts, name: str, body: str, said: str
) -> None:
    (scripts.folder / name).write_text(("from kit import *\n" if name == "train.py" else "") + body)
    program = "sh" if name.endswith(".sh") else sys.executable
    with pytest.raises(SriftyError, match=said):
        scripts.profile(command=[program, name], batches=(), seconds=6)


def test_step_times_that_jump_are_noted(scripts: Scripts) -> None:
    jumpy = """
model = make_model(1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step, x in enumerate(loader()):
    loss_of(model, x).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03 * (step * 7919 % 5 > 2))
"""
    profile = scripts.profile(jumpy, batches=())
    assert any("step times are unstable" in note for note in profile.assumptions)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"command": [], "batches": ()}, "names no command"),
        ({"command": ["no-such-program"], "batches": ()}, "command not found: 'no-such-program'"),
        ({"command": ["./none.sh"], "batches": ()}, "command not found: './none.sh'"),
        ({"command": [sys.executable, "train.py"], "batches": (8, 16)}, r"no argument .* holds {batch}"),
        ({"command": [sys.executable, "train.py", "{batch}"], "batches": ()}, "say which batches"),
        ({"command": [sys.executable, "train.py"], "batches": (), "seconds": 0}, "--max-seconds is 0"),
        ({"command": [sys.executable, "train.py"], "batches": (), "samples_per_step": 0}, "must be above 0"),
    ],
)
def test_what_cannot_be_run_is_said_before_it_is_run(
    scripts: Scripts, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        scripts.profile(**{"command": None, **more}) if more["command"] else _without_command(scripts)


def _without_command(scripts: Scripts) -> None:
    from srifty.profiling.attach import profile_command
    from srifty.records import Job

    profile_command(Job(name="none"), folder=scripts.folder, batches=())
