"""Training scripts for a test: sleeping parts of known length, and a clock of the script's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from srifty.profiling import attached_run
from srifty.profiling.attach import profile_command
from srifty.records import Job, JobProfile

LAYER_S, LAYERS, LOAD_S = 0.004, 4, 0.003
"""Sleep of one layer backward (half of that forward), number of layers, and sleep of the loader a batch."""
LAYER_BYTES = 512 * 512 * 4 + 512 * 4
MODEL_BYTES = LAYERS * LAYER_BYTES

KIT = f"""
import os, sys, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
BATCH = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 8


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds / 2)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Layer(nn.Module):
    def __init__(self, seconds={LAYER_S}):
        super().__init__()
        self.linear, self.seconds = nn.Linear(512, 512), seconds

    def forward(self, x):
        return Slow.apply(self.linear(x), self.seconds)


def make_model(layers={LAYERS}):
    return nn.Sequential(*(Layer() for _ in range(layers)))


class Samples(Dataset):
    def __init__(self, count=100_000):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.ones(512) * 1e-3


def slowly(samples):
    time.sleep({LOAD_S})
    return torch.stack(samples)


def loader(batch=None, count=100_000, **more):
    return DataLoader(Samples(count), batch_size=batch or BATCH, collate_fn=slowly, **more)


def loss_of(model, x):
    return model(x).square().mean()


_last = None


def tick():
    # The script's own clock: a line a step, from one call to the next.
    global _last
    now = time.perf_counter()
    if _last is not None and os.environ.get("RANK", "0") == "0":
        with open(os.environ["OWN_CLOCK"], "a") as file:
            file.write(f"{{now - _last}}\\n")
    _last = time.perf_counter()
"""


@dataclass
class Scripts:
    """A folder of scripts and the way to profile them, quickly."""

    folder: Path
    clock: Path

    def write(self, body: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text("from kit import *\n" + body)
        return path

    def command(self, *arguments: str, name: str = "train.py") -> list[str]:
        return [sys.executable, name, *arguments]

    def profile(
        self,
        body: str | None = None,
        *,
        command: Sequence[str] | None = None,
        batches: Sequence[int] = (8,),
        seconds: float = 60,
        **more: Any,
    ) -> JobProfile:
        """Profile a script with that body, which finds its batch in BATCH."""
        if body is not None:
            self.write(body)
        given = command or self.command("{batch}" if batches else "8")
        job = Job(name="script", command=tuple(given))
        return profile_command(job, folder=self.folder, batches=batches, max_seconds=seconds, **more)

    def own_step_s(self) -> list[float]:
        """Steps by the script's own clock, without the cold ones."""
        return [float(line) for line in self.clock.read_text().split()][2:]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "kit.py").write_text(KIT)
    clock = tmp_path / "own_clock.txt"
    monkeypatch.setenv("OWN_CLOCK", str(clock))
    monkeypatch.setattr(attached_run, "STEADY_S", 0.2)
    return Scripts(folder, clock)


def step_s(profile: JobProfile, *, centre: str = "p50") -> float:
    """A step of the optimizer by the profile: micro-steps and the optimizer, everything in between included."""
    (timing,) = profile.timings
    micro = [timing.forward_s, timing.backward_s, timing.data_wait_s, timing.other_s]
    micro_s = sum(getattr(spread, centre) for spread in micro if spread is not None)
    return float(profile.accumulation_count * micro_s + getattr(timing.optimizer_s, centre))


def assert_agrees_with_own_clock(scripts: Scripts, profile: JobProfile) -> None:
    """The phases add up to what the script's own clock says."""
    own = scripts.own_step_s()
    assert len(own) >= 3
    assert step_s(profile) == pytest.approx(median(own), rel=0.25)


def assert_holds_together(
    profile: JobProfile, *, trained_bytes: int = MODEL_BYTES, batch: int | None = 8
) -> None:
    """What is true of every profile of a script with one model."""
    if batch is not None:
        assert [timing.batch for timing in profile.timings] == [batch]
    assert profile.trainable_bytes == trained_bytes
    assert sum(bucket.gradient_bytes for bucket in profile.buckets) == trained_bytes
    ready = [bucket.ready_at for bucket in profile.buckets]
    assert ready == sorted(ready)
    assert profile.gpu == "cpu"
    assert profile.versions["torch"]
    assert profile.hardware


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that run in the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(str(folder)):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
