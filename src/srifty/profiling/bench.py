"""Bench: one workload on one device, to which batches come and go, each under the same conditions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from srifty.profiling.clock import Clock
from srifty.profiling.loader_wait import loader_waits
from srifty.profiling.memory import OutOfMemory, peak_bytes, release_memory, reset_peak
from srifty.profiling.steps import StepTime, time_series, warm_up
from srifty.profiling.user_code import user_code
from srifty.profiling.workload import Workload, largest_element_count

Measured = TypeVar("Measured")

FEWEST_STEPS = 2
MOST_STEPS = 50
FEWEST_CONTENTS, MOST_CONTENTS = 4, 8
"""Batches that a stay is timed on where they differ in content."""
LOOKS = 4
"""Batches that are made to see whether they differ."""


@dataclass(frozen=True)
class Visit:
    """What one stay of a batch on the bench has given."""

    steps: tuple[StepTime, ...]
    peak_memory_bytes: int | None
    last_loss: float
    cold_s: float = 0.0
    """What the cold steps before took beyond as many warm ones."""
    element_counts: tuple[int, ...] = ()
    """Of the largest tensor that each step was given; empty where one batch served them all."""


@dataclass
class Bench:
    """Measures steps of a workload; before each batch the model and optimizer are as they were at first.

    Training on made-up data may diverge, and numbers that overflow or fade away are not computed in the same
    time as others. The copy to go back to lies in the memory of the host, where it takes none of the GPU's.
    """

    workload: Workload
    device: torch.device
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(self.device)
        self._restore = _restorer(self.workload)

    def restore(self) -> None:
        """Put parameters, buffers and optimizer back, and drop gradients."""
        with user_code("going back to the first state"):
            self._restore()
            for parameter in self.workload.model.parameters():
                parameter.grad = None

    def varies(self, batch: int) -> bool:
        """Whether batches of one size differ in their elements, as sequences of varying length do."""
        try:
            with user_code(f"make_batch({batch})"):
                seen = (largest_element_count(self.workload.make_batch(batch)) for _ in range(LOOKS))
                first = next(seen)
                return any(count != first for count in seen)
        except OutOfMemory:
            return False  # who visits it will be told

    def visit(
        self, batch: int, *, seconds: float, warm_up_s: float, has_contents: bool = False
    ) -> Visit | None:
        """Time steps at one batch; None where it does not fit into memory.

        Args:
            batch: samples on the device
            seconds: how long the timed steps may take; there are 2 to 50 of them
            warm_up_s: how long cold steps may go on before [s]; there are 2 at least
            has_contents: whether batches differ in content: steps take turns on 4 to 8 of them then, after an
                untimed one on each

        Raises:
            WorkloadFailed: the training code raised
        """

        def measure(data: Any) -> Visit:
            cold = warm_up(self.workload, data, self.clock, seconds=warm_up_s)
            count = int(min(max(seconds / max(cold.last.step_s, 1e-6), FEWEST_STEPS), MOST_STEPS))
            if has_contents:
                return self._visit_contents(batch, data, count, cold.cold_s)
            block = time_series(self.workload, [data] * count, self.clock)
            return Visit(block.steps, peak_bytes(self.device), block.last_loss, cold.cold_s)

        return self.if_it_fits(batch, measure)

    def _visit_contents(self, batch: int, first: Any, step_count: int, cold_s: float) -> Visit:
        """A visit whose steps take turns on several batches; no more of them than steps, unless those are few."""
        count = min(max(step_count, FEWEST_CONTENTS), MOST_CONTENTS)
        several = [first, *(self.workload.data(batch, self.device) for _ in range(count - 1))]
        cold = time_series(self.workload, several, self.clock).steps
        series = several * max(1, step_count // count)
        block = time_series(self.workload, series, self.clock)
        cold_s += max(
            0.0, sum(step.step_s for step in cold) - sum(step.step_s for step in block.steps[:count])
        )
        element_counts = tuple(map(largest_element_count, series))
        return Visit(block.steps, peak_bytes(self.device), block.last_loss, cold_s, element_counts)

    def waits_s(self, batch: int, *, seconds: float) -> list[float]:
        """How long steps wait for the workload's loader at this batch [s]; empty where that cannot be told."""

        def measure(_: Any) -> list[float]:
            return loader_waits(self.workload, batch, self.device, self.clock, seconds=seconds)

        return self.if_it_fits(batch, measure) or []

    def try_step_s(self, batch: int) -> float | None:
        """Length of the second step at this batch [s], a first look; None where it does not fit."""
        return self.if_it_fits(
            batch, lambda data: warm_up(self.workload, data, self.clock, seconds=0).last.step_s
        )

    def if_it_fits(self, batch: int, measure: Callable[[Any], Measured]) -> Measured | None:
        """What `measure` gives for a batch on the device, from the first state on; None: out of memory."""
        self.restore()
        reset_peak(self.device)
        try:
            return measure(self.workload.data(batch, self.device))
        except OutOfMemory:
            pass
        # Out here the failed step's tensors are no longer held by its traceback.
        release_memory(self.device)
        return None


def _restorer(workload: Workload) -> Callable[[], None]:
    """A function that brings the workload back to where it is now."""
    with user_code("copying the first state"):
        parameters = [
            (tensor, tensor.detach().to("cpu", copy=True)) for tensor in workload.model.parameters()
        ]
        # By module and name: a model may put another tensor in a buffer's place, of the shape of its batch.
        buffers = [
            (module, name, buffer.detach().to("cpu", copy=True), buffer.device)
            for module in workload.model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]
        has_state = hasattr(workload.optimizer, "load_state_dict")
        optimizer: Any = copy.deepcopy(workload.optimizer.state_dict()) if has_state else None

    def restore() -> None:
        with torch.no_grad():
            for tensor, first in parameters:
                tensor.copy_(first)
            for module, name, first, device in buffers:
                now = getattr(module, name, None)
                if isinstance(now, torch.Tensor) and now.shape == first.shape and not now.requires_grad:
                    now.copy_(first)
                else:
                    setattr(module, name, first.to(device, copy=True))
        if has_state:
            workload.optimizer.load_state_dict(optimizer)

    return restore
