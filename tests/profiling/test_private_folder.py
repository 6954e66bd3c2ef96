"""A private folder goes with the run, or with the next one; that of a run under way stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from srifty.profiling import private_folder as module
from srifty.profiling.private_folder import private_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_gone_afterwards_with_all_that_is_in_it(place: Path) -> None:
    with private_folder() as folder:
        (folder / "work" / "work").mkdir(parents=True)
        (folder / "work" / "work").chmod(0)
        assert folder.parent == place
    assert list(place.iterdir()) == []


def test_it_lies_outside_where_there_is_any_other_place(place: Path) -> None:
    with private_folder(outside=place) as folder:
        assert not folder.is_relative_to(place)
    with private_folder(outside=Path("/")) as folder:
        assert folder.parent == place


def test_what_a_killed_run_left_behind_is_removed_by_the_next(place: Path) -> None:
    program = f"""
import os, signal, tempfile
tempfile.tempdir = {str(place)!r}
from srifty.profiling.private_folder import private_folder
with private_folder() as folder:
    (folder / "more").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    (left,) = place.iterdir()
    with private_folder() as folder:
        assert list(place.iterdir()) == [folder]
        assert folder != left


@pytest.mark.parametrize(
    "change",
    [
        {},  # of a run under way
        {"where": "another machine pid:[1]", "process": 2**22 + 1},
        {"process": "none"},
    ],
)
def test_what_may_still_be_in_use_stays(place: Path, change: dict[str, object]) -> None:
    other = place / "srifty-other"
    other.mkdir()
    (other / "owner.json").write_text(json.dumps(module._owner(os.getpid()) | change))
    for name in ("srifty-new", "else"):
        (place / name).mkdir()
    with private_folder():
        pass
    assert {path.name for path in place.iterdir()} == {"srifty-other", "srifty-new", "else"}


def test_a_process_of_the_same_number_is_no_owner(place: Path) -> None:
    other = place / "srifty-other"
    other.mkdir()
    (other / "owner.json").write_text(json.dumps(module._owner(os.getpid()) | {"started": "long ago"}))
    with private_folder():
        pass
    assert list(place.iterdir()) == []
