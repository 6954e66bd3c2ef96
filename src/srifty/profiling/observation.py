"""Observation: what the probe has seen in a training process, as it wrote it, with types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cut:
    """The time from one step of an optimizer to the next; times are from its start [s].

    Attributes:
        marks: label and when it begins; the first at 0
        length_s: of the whole
        optimizers: numbers of those that stepped at its end, one that follows another by the same number; empty
            in a program without
        backwards: start and end of each outermost backward pass
        fired: parameter's number, and when its gradient was there
        closure_backwards: how many of the backward passes ran inside the optimizer's step
        forwards, no_grad_forwards: outermost calls of a model, with and without gradients
        untrained_calls: the module of each outermost call of one without trained parameters
        synced_forwards: those of a DDP model outside `no_sync`
        rows: first dimension of the first tensor of each call, or of each batch loaded
        loads: number of the data set, and batch, of each batch that a loader gave
        elements: of the largest tensor of each call, summed up
        loader_starts, saves: epochs begun, files saved
        is_skipped: a gradient scaler left the step out
        is_looked_at: we looked at every module's input, or were at work just before
        is_hooked: hooks were on the parameters
    """

    marks: tuple[tuple[str, float], ...]
    length_s: float
    optimizers: tuple[int, ...] = (0,)
    backwards: tuple[tuple[float, float], ...] = ()
    fired: tuple[tuple[int, float], ...] = ()
    closure_backwards: int = 0
    forwards: int = 0
    no_grad_forwards: int = 0
    untrained_calls: tuple[str, ...] = ()
    synced_forwards: int = 0
    rows: tuple[int, ...] = ()
    loads: tuple[tuple[int, int], ...] = ()
    elements: int = 0
    loader_starts: int = 0
    saves: int = 0
    is_skipped: bool = False
    is_looked_at: bool = False
    is_hooked: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter of the models that are trained, or of an optimizer."""

    size_bytes: int
    dtype: str
    device: str
    is_trained: bool
    had_gradient: bool
    sparse_bytes: int | None


@dataclass(frozen=True)
class Ddp:
    """A model in DistributedDataParallel: the numbers of its parameters, and what it tells about itself."""

    parameters: tuple[int, ...]
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Pass:
    """A backward pass under a DDP of one process.

    Attributes:
        sizes: of its buckets, in the order of their exchange [bytes]
        ready_at: of each, as a share of the pass
        backward_s: its length [s]
    """

    sizes: tuple[int, ...]
    ready_at: tuple[float, ...]
    backward_s: float


@dataclass(frozen=True)
class Observation:
    """One training process; `told` holds what is passed on as it is."""

    reason: str
    """enough, late: we stopped it; ended: it came to its end; failed: by an exception; running: it never told."""
    is_without_optimizer: bool
    optimizer_count: int
    cuts: tuple[Cut, ...]
    parameters: tuple[Parameter, ...]
    autocast: Mapping[str, int]
    told: Mapping[str, Any]

    @property
    def ddps(self) -> tuple[Ddp, ...]:
        """The models that the program has in DistributedDataParallel."""
        found = (self.told["distributed"] or {}).get("ddps", ())
        return tuple(Ddp(tuple(one["parameters"]), one["data"]) for one in found)

    @property
    def ddp_trial(self) -> tuple[Pass, ...]:
        """Backward passes under a DDP of one process; nothing where that could not be tried."""
        found = self.told.get("ddp_trial", ())
        return tuple(Pass(tuple(one["sizes"]), tuple(one["ready_at"]), one["backward_s"]) for one in found)

    @property
    def untrained(self) -> Mapping[str, int]:
        """Size of each module without trained parameters that was called [bytes]."""
        found: Mapping[str, int] = self.told["untrained"]
        return found

    @property
    def rank_count(self) -> int:
        """Processes that trained together."""
        return int((self.told["distributed"] or {}).get("world_size", 1))


@dataclass(frozen=True)
class Process:
    """What a Python process of the command has said about itself."""

    arguments: tuple[str, ...]
    torch: str | None
    batches_loaded: int
    backwards: int
    optimizer_steps: int
    steps: int
    fault: str | None


def read_observation(folder: Path) -> Observation | None:
    """The record in the folder; of several a whole one, then that with most cuts; None: there is none."""
    found = [_observation(json.loads(path.read_text("utf-8"))) for path in folder.glob("record.*.json")]
    return max(found, key=lambda one: (one.reason != "running", len(one.cuts)), default=None)


def read_processes(folder: Path) -> list[Process]:
    """Every Python process that the probe got into, by process number."""
    paths = sorted(folder.glob("process.*.json"), key=lambda path: int(path.suffixes[0][1:]))
    read = (json.loads(path.read_text("utf-8")) for path in paths)
    return [
        Process(
            arguments=tuple(one["arguments"]),
            **{name: one[name] for name in Process.__dataclass_fields__ if name != "arguments"},
        )
        for one in read
    ]


def _observation(told: dict[str, Any]) -> Observation:
    return Observation(
        reason=told["reason"],
        is_without_optimizer=told["is_without_optimizer"],
        optimizer_count=told["optimizer_count"],
        cuts=tuple(_cut(one) for one in told.pop("cuts")),
        parameters=tuple(_parameter(one) for one in told.pop("parameters")),
        autocast=told["autocast"],
        told=told,
    )


def _cut(told: dict[str, Any]) -> Cut:
    for name in ("marks", "backwards", "fired", "loads"):
        told[name] = tuple((first, second) for first, second in told.get(name, ()))
    for name in ("optimizers", "rows", "untrained_calls"):
        told[name] = tuple(told[name])
    return Cut(**told)


def _parameter(told: dict[str, Any]) -> Parameter:
    return Parameter(size_bytes=told.pop("bytes"), **told)
