"""Nothing is left: no process, no file in the user's folder, whatever the script does and however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from srifty.profiling import attached_run
from srifty.profiling.child_life import live
from srifty.profiling.private_folder import private_folder
from tests.profiling.attach_kit import Scripts, assert_holds_together, processes_of, scripts

__all__ = ["scripts"]

LOOP = """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
{before}
while True:
    try:
        for x in loader():
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
            {inside}
    except BaseException:
        pass
"""


def test_a_script_that_catches_everything_is_stopped_and_leaves_nothing(scripts: Scripts) -> None:
    profile = scripts.profile(LOOP.format(before="", inside=""))
    assert_holds_together(profile)
    assert processes_of(scripts.folder) == []


def test_children_left_behind_are_ended(scripts: Scripts) -> None:
    before = """
import subprocess, multiprocessing
from multiprocessing import shared_memory
subprocess.Popen(["sleep", "100"])
subprocess.Popen(["sh", "-c", "sleep 100 & exec sleep 100"], start_new_session=True, env={})
memory = shared_memory.SharedMemory(create=True, size=1000)
"""
    before_it = _shared_memory()
    profile = scripts.profile(LOOP.format(before=before, inside=""))
    assert_holds_together(profile)
    assert processes_of(scripts.folder) == []
    assert _shared_memory() <= before_it


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("psm_*")}  # noqa: S108 - where Linux keeps it


def test_what_the_script_writes_is_gone_or_listed(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = (
        "open('log.txt', 'a').write('x'); os.makedirs('runs', exist_ok=True); open('runs/1', 'w').close()"
    )
    body = LOOP.format(before="", inside=inside)
    profile = scripts.profile(body)
    there = sorted(path.name for path in scripts.folder.iterdir())
    if "log.txt" not in there:
        assert there == ["kit.py", "train.py"]
        assert not any("wrote" in note for note in profile.assumptions)
    # Where the kernel allows no private view: as if the folder held a mount.
    monkeypatch.setattr(Path, "is_relative_to", lambda self, other: True)
    profile = scripts.profile(body)
    assert any("wrote 2 files into its folder: log.txt, runs/1" in note for note in profile.assumptions)


def test_a_folder_that_holds_the_usual_place_for_temporary_files_is_covered_too(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = scripts.folder / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with private_folder(outside=scripts.folder) as folder:
        assert not folder.is_relative_to(scripts.folder)
    scripts.profile(LOOP.format(before="", inside="open('log.txt', 'a').write('x')"))
    there = sorted(path.name for path in scripts.folder.iterdir())
    assert there in (["kit.py", "temporary", "train.py"], ["kit.py", "log.txt", "temporary", "train.py"])
    assert list(place.iterdir()) == []


def test_of_a_huge_folder_it_is_said_that_not_all_was_looked_at(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_run, "MOST_FILES", 2)
    monkeypatch.setattr(Path, "is_relative_to", lambda self, other: True)
    profile = scripts.profile(LOOP.format(before="", inside="open('log.txt', 'a').write('x')"))
    assert any("the folder of the script holds more than" in note for note in profile.assumptions)


def test_no_private_folder_is_left(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    place = scripts.folder.parent / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    scripts.profile(LOOP.format(before="", inside=""))
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_srifty(scripts: Scripts, number: signal.Signals) -> None:
    scripts.write(LOOP.format(before="", inside="time.sleep(0.2)"))
    program = [sys.executable, "-m", "srifty", "profile", "--", sys.executable, "train.py"]
    srifty = subprocess.Popen(
        program,
        cwd=scripts.folder,
        env={
            **os.environ,
            "TMPDIR": str(scripts.folder.parent),
        },  # killed at once, it leaves its folder behind
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any("train.py" in line and "srifty" not in line for line in processes_of(scripts.folder)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    srifty.send_signal(number)
    _, said = srifty.communicate(timeout=30)
    if number == signal.SIGKILL:
        time.sleep(1)
    else:
        assert srifty.returncode == 128 + number
    if number == signal.SIGINT:
        assert "interrupted; nothing was written" in said
    assert processes_of(scripts.folder) == []


def test_time_that_is_up_ends_what_ignores_signals(tmp_path: Path) -> None:
    script = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('here', flush=True)
time.sleep(99)
"""
    mark = "SRIFTY_RUN=a-test"
    ended = live(
        [sys.executable, "-c", script],
        environment={**os.environ, "SRIFTY_RUN": "a-test"},
        mark=mark,
        log=tmp_path / "log",
        seconds=1,
    )
    assert ended.is_out_of_time
    assert ended.status is None
    assert 1 <= ended.took_s < 5
    assert (tmp_path / "log").read_text() == "here\n"


def test_a_failing_overlay_leaves_the_script_to_run_in_its_folder(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = scripts.folder.parent / "overlay.py"
    source = attached_run._OVERLAY.read_text()
    broken.write_text(source.replace('b"overlay", 0', 'b"no-such-kind", 0'))
    monkeypatch.setattr(attached_run, "_OVERLAY", broken)
    profile = scripts.profile(LOOP.format(before="", inside="open('log.txt', 'a').write('x')"))
    assert any("wrote 1 files into its folder: log.txt" in note for note in profile.assumptions)
