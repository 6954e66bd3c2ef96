"""Tries in fresh processes: each way to end is told apart, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from srifty.errors import InvalidInput, WorkloadFailed
from srifty.profiling.batch_tries import BatchTries
from srifty.profiling.largest_batch import Ending

MIB = 2**20

# A sample takes 1 MiB. What else happens is told by the batch.
WORKLOAD = """
import os, signal, subprocess, sys, time
from pathlib import Path
import torch
from torch import nn

FOLDER = Path(__file__).parent

def wrong_shape():
    return torch.ones(4, 8) @ torch.ones(9, 9)

def abort():
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n")
    os.abort()

def stay():
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    (FOLDER / "pids.part").write_text(f"{os.getpid()} {helper.pid}")
    (FOLDER / "pids.part").rename(FOLDER / "pids")
    time.sleep(100)

AT = {
    102: lambda: torch.empty(2**50, dtype=torch.uint8),
    103: abort,
    104: lambda: os.kill(os.getpid(), signal.SIGKILL),
    201: wrong_shape,
    202: lambda: os.kill(os.getpid(), signal.SIGSEGV),
    203: lambda: os._exit(3),
    301: stay,
}

def make_batch(batch):
    print("making", batch)
    return torch.randn(batch, 8)

def loss(model, data):
    if len(data) in AT:
        AT[len(data)]()
        return model(data[:2]).mean()
    held = torch.ones(len(data), 2**18)
    return model(data).square().mean() + 0 * held[0, 0]

def make():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    return model, torch.optim.AdamW(model.parameters()), make_batch, loss
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text(WORKLOAD, encoding="utf-8")
    return tmp_path


def tries(folder: Path, **changes: object) -> BatchTries:
    return BatchTries("work:make", folder, torch.device("cpu"), **changes)  # type: ignore[arg-type]


def test_what_fits_tells_its_peak_its_step_and_prints_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = tries(folder, host_limit_bytes=150 * MIB)(100)
    assert outcome.ending is Ending.FITS
    assert outcome.peak_memory_bytes is not None
    assert 95 * MIB <= outcome.peak_memory_bytes <= 120 * MIB
    assert outcome.step_s is not None
    assert outcome.step_s > 0
    assert outcome.smallest_batch == 2
    assert capfd.readouterr() == ("", "")
    assert sorted(path.name for path in folder.iterdir()) == ["work.py"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps the limit on Linux")
def test_what_takes_more_than_the_limit_of_the_machine_is_out_of_memory(folder: Path) -> None:
    outcome = tries(folder, host_limit_bytes=150 * MIB)(160)
    assert outcome.ending is Ending.OUT_OF_MEMORY
    assert "allocate" in outcome.said
    assert outcome.smallest_batch == 2


def test_a_machine_that_runs_short_of_memory_ends_the_try(folder: Path) -> None:
    outcome = tries(folder, host_reserve_bytes=2**60)(8)
    assert (outcome.ending, outcome.said) == (Ending.OUT_OF_MEMORY, "the machine ran short of memory")


def test_a_batch_below_what_normalisation_needs_is_too_small(folder: Path) -> None:
    outcome = tries(folder)(1)
    assert (outcome.ending, outcome.smallest_batch) == (Ending.TOO_SMALL, 2)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (102, "can't allocate memory"),
        (103, ""),
        (104, "its process was killed"),
    ],
    ids=["the CPU's allocator", "a C++ library", "the kernel"],
)
def test_memory_that_runs_out_is_told_as_that(folder: Path, batch: int, said: str) -> None:
    outcome = tries(folder)(batch)
    assert outcome.ending is Ending.OUT_OF_MEMORY
    assert said in outcome.said


@pytest.mark.parametrize(
    ("batch", "said", "traceback"),
    [
        (201, "batch 201: a training step failed: RuntimeError: mat1 and mat2", "in wrong_shape"),
        (202, "batch 202: its process ended by SIGSEGV", "Segmentation fault"),
        (203, "batch 203: its process ended with exit status 3", "making 203"),
    ],
    ids=["a bug", "a crash", "an exit"],
)
def test_every_other_failure_is_the_training_codes(
    folder: Path, batch: int, said: str, traceback: str
) -> None:
    with pytest.raises(WorkloadFailed) as caught:
        tries(folder)(batch)
    assert str(caught.value).startswith(said)
    assert traceback in caught.value.workload_traceback


def test_a_workload_that_is_not_there_is_told_as_in_this_process(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="no function 'mkae' in .*nearest: 'make'"):
        BatchTries("work:mkae", folder, torch.device("cpu"))(8)


def _running(process_id: int) -> bool:
    told = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(told) and not told.startswith("Z")


def _wait_until(is_so: object, seconds: float = 30) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if is_so():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def _all_ended(folder: Path) -> bool:
    ids = [int(text) for text in (folder / "pids").read_text().split()]
    assert len(ids) == 2
    return _wait_until(lambda: not any(map(_running, ids)), 10)


def test_a_try_that_takes_too_long_is_ended_with_all_that_it_started(folder: Path) -> None:
    outcome = tries(folder, longest_s=6)(301)
    assert outcome.ending is Ending.TOO_SLOW
    assert outcome.said == "two steps did not end within 6 s"
    # On a machine that is very busy the try may not have come so far as to start something.
    assert not (folder / "pids").exists() or _all_ended(folder)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=lambda end: end.name)
def test_whatever_ends_the_search_ends_the_try_and_all_that_it_started(
    folder: Path, end: signal.Signals
) -> None:
    program = f"""
        from pathlib import Path
        import torch
        from srifty.profiling.batch_tries import BatchTries
        BatchTries("work:make", Path({str(folder)!r}), torch.device("cpu"))(301)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as search:
        try:
            assert _wait_until((folder / "pids").exists)
            os.kill(search.pid, end)
            assert search.wait(20) != 0
        finally:
            search.kill()
    assert _all_ended(folder)
