"""Profiles with a search for the largest batch: what is found, what is noted, and what goes wrong."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from srifty.errors import InvalidInput, NotMeasured, WorkloadFailed
from srifty.profiling import batch_search
from srifty.profiling.largest_batch import Ending, Outcome
from srifty.profiling.profiler import profile
from srifty.records import Job, JobProfile
from srifty.records.files import from_json, to_json

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps the limit on Linux")

WORKLOAD = """
import torch
from torch import nn

MIB_A_SAMPLE = 8

def make():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    return model, torch.optim.AdamW(model.parameters()), make_batch, loss

def make_batch(batch):
    return torch.randn(batch, 8)

def loss(model, data):
    # Kept for the backward pass, as activations are.
    held = model(data)[:, :1].expand(-1, MIB_A_SAMPLE * 2**17) * 2
    return held.square().mean()
"""
LIGHT = WORKLOAD.replace("MIB_A_SAMPLE * 2**17", "100")


def _job(folder: Path, text: str = WORKLOAD, **fields: Any) -> Job:
    (folder / "work.py").write_text(text, encoding="utf-8")
    return Job(name="a-test", workload="work:make", **fields)


def _profile(job: Job, folder: Path, **changes: Any) -> JobProfile:
    given = {"device": "cpu", "seconds_per_batch": 0.02, "find_max_batch": True}
    return profile(job, folder=folder, **(given | changes))


class Tries:
    """Stands in for processes: what fits is told by a function."""

    def __init__(self, outcome: Callable[[int], Outcome]) -> None:
        self.outcome = outcome
        self.tried: list[int] = []

    def __call__(self, *rest: object, **more: object) -> Callable[[int], Outcome]:
        return self.fits

    def fits(self, batch: int) -> Outcome:
        self.tried.append(batch)
        return self.outcome(batch)


@pytest.fixture
def tries_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Outcome]], Tries]:
    def use(outcome: Callable[[int], Outcome]) -> Tries:
        tries = Tries(outcome)
        monkeypatch.setattr(batch_search, "BatchTries", tries)
        monkeypatch.setattr(batch_search, "available_bytes", lambda: 10**6)
        return tries

    return use


def _up_to(largest: int, *, step_s: float = 0.01) -> Callable[[int], Outcome]:
    def outcome(batch: int) -> Outcome:
        if batch > largest:
            return Outcome(Ending.OUT_OF_MEMORY, smallest_batch=2, said="out of memory")
        return Outcome(Ending.FITS, peak_memory_bytes=1000 * batch, step_s=step_s, smallest_batch=2)

    return outcome


@linux
def test_on_the_cpu_the_largest_batch_is_found_within_what_the_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_search, "available_bytes", lambda: 270 * MIB)
    told: list[str] = []
    measured = _profile(
        _job(tmp_path),
        tmp_path,
        seconds_per_batch=0.5,
        on_progress=lambda share, doing: told.append(doing),
    )
    assert told[0] == "trying batch 8 in a process of its own, try 1"
    # In the backward pass 2 to 4 tensors of 4 MiB a sample are there at once.
    peaks = {timing.batch: timing.peak_memory_bytes for timing in measured.timings}
    assert list(peaks) == sorted(peaks)
    assert list(peaks)[-1] == measured.max_batch
    assert {2, 4} <= set(peaks)
    assert 243 * MIB * 0.7 <= (peaks[measured.max_batch] or 0) <= 243 * MIB * 0.96
    slope = ((peaks[measured.max_batch] or 0) - (peaks[2] or 0)) / (measured.max_batch - 2)
    assert 8 * MIB <= slope <= 40 * MIB
    assert measured.min_batch == 2
    notes = " / ".join(measured.assumptions)
    assert f"max_batch {measured.max_batch} [samples] was found by search" in notes
    assert "within 90% of the memory available then, 0.2 GiB" in notes
    assert "largest batch measured" not in notes
    assert from_json(to_json(measured), JobProfile) == measured


@linux
def test_under_a_limit_on_the_address_space_the_search_stays_within_it(tmp_path: Path) -> None:
    _job(tmp_path, WORKLOAD.replace("MIB_A_SAMPLE = 8", "MIB_A_SAMPLE = 20"))
    program = f"""
        import resource, sys
        from pathlib import Path
        import torch
        from srifty.profiling.host_memory import available_bytes
        from srifty.profiling.profiler import profile
        from srifty.records import Job
        torch.set_num_threads(1)
        torch.ones(8, requires_grad=True).sum().backward()
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 500 * 2**20, -1))
        job = Job(name="a", workload="work:make", batches=(2,))
        found = profile(
            job, folder=Path({str(tmp_path)!r}), device="cpu", seconds_per_batch=0.02, find_max_batch=True
        )
        print(found.max_batch, found.timings[0].peak_memory_bytes)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        env={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found, peak = map(int, done.stdout.split())
    assert 3 <= found <= 24
    assert peak >= 2 * 20 * MIB


def test_a_simulated_gpu_s_error_ends_at_its_threshold(tmp_path: Path) -> None:
    text = WORKLOAD.replace(
        "    held",
        "    if len(data) > 2:\n        raise torch.OutOfMemoryError('CUDA out of memory')\n    held",
    )
    measured = _profile(_job(tmp_path, text, batches=(2, 3)), tmp_path)
    assert measured.max_batch == 2
    assert [timing.batch for timing in measured.timings] == [2]
    assert "batch 3 was left out: it is above max_batch, 2" in measured.assumptions


def test_a_bug_at_one_batch_is_told_with_its_traceback_and_what_ran(tmp_path: Path) -> None:
    text = LIGHT.replace("    held", "    if len(data) == 16:\n        data = data.reshape(8, 16)\n    held")
    with pytest.raises(WorkloadFailed) as caught:
        _profile(_job(tmp_path, text), tmp_path)
    assert "batch 16: a training step failed: RuntimeError: mat1 and mat2 shapes" in str(caught.value)
    assert "this is no want of memory, and batch 8 ran" in str(caught.value)
    assert "--max-batch 8" in str(caught.value)
    assert 'work.py", line' in caught.value.workload_traceback
    assert "srifty" not in caught.value.workload_traceback


def test_where_nothing_fits_it_says_what_was_tried_and_what_to_do(tmp_path: Path) -> None:
    text = WORKLOAD.replace("    held", "    raise torch.OutOfMemoryError('CUDA out of memory')\n    held")
    with pytest.raises(NotMeasured) as caught:
        _profile(_job(tmp_path, text), tmp_path, max_batch=4)
    said = str(caught.value)
    assert said.startswith("no batch fits: batches 4, 2 of 'a-test' ran out of the memory of this machine")
    assert "CUDA out of memory" in said
    assert "run 'srifty profile' on a GPU with more memory" in said


@pytest.mark.parametrize(
    ("fields", "max_batch", "largest", "why"),
    [
        ({}, 40, 40, "as asked for"),
        ({"global_batch": 48}, None, 48, "the global batch"),
        ({"global_batch": 48}, 20, 20, "as asked for"),
        ({"sample_count": 33}, 64, 33, "all samples there are"),
    ],
)
def test_no_batch_is_above_what_caps_it(
    tmp_path: Path,
    tries_of: Callable[..., Tries],
    fields: dict[str, int],
    max_batch: int | None,
    largest: int,
    why: str,
) -> None:
    tries = tries_of(_up_to(10**5))
    measured = _profile(_job(tmp_path, LIGHT, **fields), tmp_path, max_batch=max_batch)
    assert measured.max_batch == max(tries.tried) == measured.timings[-1].batch == largest
    assert any(f"it is {why}, and a larger one may fit" in note for note in measured.assumptions)


def test_batches_with_long_steps_are_not_timed(tmp_path: Path, tries_of: Callable[..., Tries]) -> None:
    tries_of(_up_to(200, step_s=9.0))
    measured = _profile(_job(tmp_path, LIGHT), tmp_path)
    assert [timing.batch for timing in measured.timings] == [2, 8, 16]
    assert measured.max_batch > 150
    assert any("fits and was not timed: a step takes 9.0 s" in note for note in measured.assumptions)


def test_a_cap_below_what_normalisation_needs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no batch may be above 1, as asked for: batch normalisation"):
        _profile(_job(tmp_path), tmp_path, max_batch=1)


def test_a_step_that_never_ends_is_told(tmp_path: Path, tries_of: Callable[..., Tries]) -> None:
    tries_of(lambda batch: Outcome(Ending.TOO_SLOW, said="two steps did not end within 600 s"))
    with pytest.raises(NotMeasured, match="two steps did not end within 600 s at the smallest, 1"):
        _profile(_job(tmp_path), tmp_path)


def test_memory_that_is_unstable_is_noted(tmp_path: Path, tries_of: Callable[..., Tries]) -> None:
    fits = _up_to(60)

    def outcome(batch: int) -> Outcome:
        return fits(1000) if batch == 4 else fits(batch)

    tries_of(outcome)
    measured = _profile(_job(tmp_path, LIGHT), tmp_path)
    assert measured.max_batch == 56
    assert [timing.batch for timing in measured.timings] == [2, 8, 16, 32, 56]
    assert any("memory is unstable: batch 4 ran out of it" in note for note in measured.assumptions)


def test_without_a_search_a_cap_holds_too(tmp_path: Path) -> None:
    measured = _profile(_job(tmp_path, LIGHT), tmp_path, find_max_batch=False, max_batch=9)
    assert [timing.batch for timing in measured.timings] == [2, 4, 8]
    given = _job(tmp_path, LIGHT, batches=(4, 16))
    measured = _profile(given, tmp_path, find_max_batch=False, max_batch=9)
    assert [timing.batch for timing in measured.timings] == [4]
    for cap, said in ((3, "all are above max_batch, 3"), (0, "max_batch is 0: expected at least 1")):
        with pytest.raises(InvalidInput, match=said):
            _profile(given, tmp_path, find_max_batch=False, max_batch=cap)
    with pytest.raises(InvalidInput, match="max_batch is 1: batch normalisation trains with 2"):
        _profile(_job(tmp_path, LIGHT), tmp_path, find_max_batch=False, max_batch=1)
