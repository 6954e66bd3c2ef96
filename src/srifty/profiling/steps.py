"""Steps: the time of forward, backward and optimizer in a block of training steps, after cold ones.

Making the data and moving it to the device stand outside of what is timed: one batch serves all steps of a
block, or several that are all there before, so that a slow loader is not taken for a slow GPU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from srifty.profiling.clock import Clock, Mark
from srifty.profiling.user_code import user_code
from srifty.profiling.workload import Workload

FEWEST_COLD_STEPS, MOST_COLD_STEPS = 2, 20
_SETTLED_WITHIN = 0.05
_WINDOW = 3


@dataclass(frozen=True)
class StepTime:
    """Phases of one measured step [s]: loss (forward), backward, optimizer with zero_grad."""

    forward_s: float
    backward_s: float
    optimizer_s: float

    @property
    def step_s(self) -> float:
        """The whole step [s]."""
        return self.forward_s + self.backward_s + self.optimizer_s


@dataclass(frozen=True)
class Block:
    """Steps that were timed without a pause between them, and the loss of the last."""

    steps: tuple[StepTime, ...]
    last_loss: float


def time_steps(workload: Workload, data: Any, clock: Clock, count: int) -> Block:
    """Time `count` steps on the same data; see `time_series`."""
    return time_series(workload, [data] * count, clock)


def time_series(workload: Workload, series: Sequence[Any], clock: Clock) -> Block:
    """Time a step on each of the data in turn, waiting for the device once, at the end.

    Raises:
        WorkloadFailed: the training code raised
        OutOfMemory: a step does not fit
    """
    model, optimizer = workload.model, workload.optimizer
    with user_code("a training step"), paused_garbage_collection():
        marks: list[Mark] = [clock.mark()]
        for data in series:
            loss = workload.checked_loss(model, data)
            marks.append(clock.mark())
            loss.backward()  # type: ignore[no-untyped-call]
            marks.append(clock.mark())
            optimizer.step()
            optimizer.zero_grad()
            marks.append(clock.mark())
        phase_s = [clock.between(start, end) for start, end in pairwise(marks)]
        last_loss = abs(loss.detach()).item()  # complex losses fail earlier, in backward
    return Block(tuple(StepTime(*phase_s[i : i + 3]) for i in range(0, len(phase_s), 3)), last_loss)


@dataclass(frozen=True)
class WarmUp:
    """The last of the cold steps, and what all of them took beyond as many like it [s]: compilation, caches."""

    last: StepTime
    cold_s: float


def warm_up(workload: Workload, data: Any, clock: Clock, *, seconds: float) -> WarmUp:
    """Take steps until their times have settled.

    Args:
        workload: what to step
        data: one batch on the device
        clock: of that device
        seconds: start no further step after this time [s]

    Two steps are taken in any case: the first stores the optimizer's state, and the second is the first to
    find the memory as all later ones do.
    """
    begin = time.perf_counter()
    taken: list[StepTime] = []
    while True:
        taken.extend(time_steps(workload, data, clock, 1).steps)
        if len(taken) < FEWEST_COLD_STEPS:
            continue
        is_over = len(taken) >= MOST_COLD_STEPS or time.perf_counter() - begin >= seconds
        if is_over or has_settled([step.step_s for step in taken]):
            last = taken[-1]
            return WarmUp(last, max(0.0, sum(step.step_s - last.step_s for step in taken)))


def has_settled(step_s: Sequence[float]) -> bool:
    """Whether steps have stopped to become faster: the newest three gained less than 5 % on the three before.

    Cold steps are slower than warm ones (allocation, kernel choice, caches), so only a gain counts: a slower
    step is noise, and the spread is to show it. Seen on CPUs: 1 cold step (ResNet-50) to 10 (LSTM).
    """
    if len(step_s) < 2 * _WINDOW:
        return False
    newest, before = step_s[-_WINDOW:], step_s[-2 * _WINDOW : -_WINDOW]
    return median(newest) >= (1 - _SETTLED_WITHIN) * median(before)


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Keep the collector out of timed work: a pause of some milliseconds would fall on a chance step."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
