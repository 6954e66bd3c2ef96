"""Bench: one workload on one device, to which batches come and go, each under the same conditions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from srifty.profiling.clock import Clock
from srifty.profiling.memory import OutOfMemory, peak_bytes, release_memory, reset_peak
from srifty.profiling.steps import StepTime, time_steps, warm_up
from srifty.profiling.user_code import user_code
from srifty.profiling.workload import Workload

Measured = TypeVar("Measured")

FEWEST_STEPS = 2
MOST_STEPS = 50


@dataclass(frozen=True)
class Visit:
    """What one stay of a batch on the bench has given."""

    steps: tuple[StepTime, ...]
    peak_memory_bytes: int | None
    last_loss: float
    cold_s: float = 0.0
    """What the cold steps before took beyond as many warm ones."""


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

    def visit(self, batch: int, *, seconds: float, warm_up_s: float) -> Visit | None:
        """Time steps at one batch; None where it does not fit into memory.

        Args:
            batch: samples on the device
            seconds: how long the timed steps may take; there are 2 to 50 of them
            warm_up_s: how long cold steps may go on before [s]; there are 2 at least

        Raises:
            WorkloadFailed: the training code raised
        """

        def measure(data: Any) -> Visit:
            cold = warm_up(self.workload, data, self.clock, seconds=warm_up_s)
            count = int(min(max(seconds / max(cold.last.step_s, 1e-6), FEWEST_STEPS), MOST_STEPS))
            block = time_steps(self.workload, data, self.clock, count)
            return Visit(block.steps, peak_bytes(self.device), block.last_loss, cold.cold_s)

        return self.if_it_fits(batch, measure)

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
