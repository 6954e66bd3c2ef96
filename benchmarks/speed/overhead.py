"""Print what Srifty's hooks add to a training step: `python -m benchmarks.speed.overhead`.

One model trains in short blocks, in turn without hooks, with them, and without again. Each block with hooks is
compared with the mean of its two neighbours; these two with each other are the control, which shows how far two
blocks of the same differ on this machine. Processor time is the firmer figure where others use the machine too.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from torch import nn

import srifty
from srifty.profiling.inside import StepsProfiler

ASKED = 0.02
COLD_STEPS, STEPS = 3, 12
"""A block's first steps, in which the models are looked for, and those that count: two rounds of 3 with hooks on
the parameters and 3 without, with all that comes and goes between them."""


@dataclass(frozen=True)
class Size:
    """A transformer for one thread of a CPU, and how often its blocks are run."""

    width: int
    layers: int
    tokens: int
    rounds: int


SIZES = (Size(width=128, layers=6, tokens=48, rounds=30), Size(width=256, layers=6, tokens=64, rounds=10))


class Trainer:
    """A small transformer, stepped."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(size.width, 4, 4 * size.width, batch_first=True, dropout=0.0)
        self.model = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(4, size.tokens, size.width)

    def step(self) -> None:
        """One step of the optimizer."""
        self.optimizer.zero_grad()
        self.model(self.data).square().mean().backward()
        self.optimizer.step()

    def block(self) -> tuple[float, float]:
        """Processor time and wall time of a step [s]: the mean over a block."""
        for _ in range(COLD_STEPS):
            self.step()
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            self.step()
        return (time.process_time() - processor) / STEPS, (time.perf_counter() - wall) / STEPS


@contextmanager
def hooks() -> Iterator[None]:
    """Srifty's hooks for a block, which never sees enough; the file it fails to write is no matter here."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler = StepsProfiler(Path(folder) / "x.json", seconds_per_batch=1e9, time_checkpoint=False)
        profiler.start()
        yield
        profiler.stop(RuntimeError("not to be written"))


def compare(size: Size) -> dict[str, tuple[float, float, float]]:
    """By kind of time: a step without hooks [s], what hooks add, and what the control differs by [shares]."""
    trainer = Trainer(size)
    trainer.block()
    pairs = []
    for _ in range(size.rounds):
        before = trainer.block()
        with hooks():
            hooked = trainer.block()
        pairs.append((before, hooked, trainer.block()))
    told = {}
    for kind, name in enumerate(("processor", "wall")):
        bare = statistics.median(before[kind] for before, _, _ in pairs)
        added = [2 * hooked[kind] / (before[kind] + after[kind]) - 1 for before, hooked, after in pairs]
        control = [2 * after[kind] / (before[kind] + after[kind]) - 1 for before, _, after in pairs]
        told[name] = (bare, statistics.median(added), statistics.median(control))
    return told


def once() -> tuple[float, float]:
    """What a whole profile costs once [s]: to begin, and the step in which it evaluates and writes."""
    trainer = Trainer(SIZES[0])
    trainer.block()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        profiler = StepsProfiler(Path(folder) / "x.json", seconds_per_batch=0)
        profiler.start()
        begun_s = time.perf_counter() - start
        longest_s = 0.0
        while profiler.profile is None:
            start = time.perf_counter()
            trainer.step()
            longest_s = max(longest_s, time.perf_counter() - start)
        profiler.stop()
    return begun_s, longest_s


def main() -> None:
    """Measure and print the table, as Markdown."""
    torch.set_num_threads(1)
    begun_s, longest_s = once()
    print(f"Srifty {srifty.__version__}, {date.today()}, Python {platform.python_version()}, ", end="")
    print(
        f"torch {torch.__version__}, {platform.machine()}, one thread; medians of paired blocks of {STEPS} steps\n"
    )
    print("| transformer | parameters | time | step, bare | hooks add | control | asked |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for size in SIZES:
        count = len(list(Trainer(size).model.parameters()))
        for kind, (bare_s, added, control) in compare(size).items():
            print(
                f"| {size.layers} layers of {size.width} | {count} | {kind} | {bare_s * 1e3:.1f} ms "
                f"| {added:+.2%} | {control:+.2%} | <= {ASKED:.0%} |"
            )
    print(
        f"\nOnce a profile: {begun_s * 1e3:.0f} ms to begin; {longest_s:.2f} s in the step that ends it, in which"
    )
    print("the profile is evaluated and written and a checkpoint is saved on trial.")


if __name__ == "__main__":
    main()
