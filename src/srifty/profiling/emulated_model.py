"""Emulated model: real parameters, gradients and hooks, and a device that sleeps in place of computing.

Each layer sleeps to an absolute deadline, forward and backward, so that many nodes fit on two cores and what the
host does in between falls into the sleep, as it would on a device of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from srifty.records.emulated_job import EmulatedJob


@dataclass
class EmulatedDevice:
    """The device of one rank.

    Attributes:
        speed: how many times as fast as the job's times it is
        noise: standard deviation of the logarithm of a step's compute time
        exchange_slowdown: factor of backward time while gradients are exchanged
        in_flight: how many exchanges are under way, as whoever starts them tells
    """

    speed: float = 1.0
    noise: float = 0.0
    exchange_slowdown: float = 1.0
    in_flight: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - no secret
    _deadline: float = 0.0
    _factor: float = 1.0

    def begin(self) -> None:
        """A step begins: now, and with its own noise."""
        self._deadline = time.perf_counter()
        self._factor = self.random.lognormvariate(0.0, self.noise) if self.noise else 1.0

    def compute(self, seconds: float, *, is_backward: bool = False) -> None:
        """Take so long, from the end of what came before."""
        slowdown = self.exchange_slowdown if is_backward and self.in_flight else 1.0
        self._deadline += seconds / self.speed * self._factor * slowdown
        left = self._deadline - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def catch_up(self) -> None:
        """What comes next begins no earlier than now."""
        self._deadline = max(self._deadline, time.perf_counter())


class EmulatedModel(nn.Module):
    """The job's layers on a device; its input is one number a sample."""

    def __init__(self, job: EmulatedJob, device: EmulatedDevice) -> None:
        super().__init__()
        self.job, self.device = job, device
        self.weights = nn.ParameterList(
            nn.Parameter(torch.zeros(layer.parameter_bytes // 4)) for layer in job.layers
        )

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Take the forward time of as many samples."""
        batch = samples.shape[0]
        forward_s = _between(batch, self.job.batch, self.job.forward_s)
        backward_s = _between(batch, self.job.batch, self.job.backward_s)
        self.device.begin()
        value = torch.zeros(1, requires_grad=True)
        for number, (layer, weight) in enumerate(zip(self.job.layers, self.weights, strict=True)):
            is_last = number == len(self.job.layers) - 1
            value = _Layer.apply(  # type: ignore[no-untyped-call]
                value,
                weight,
                self.device,
                forward_s * layer.forward_share,
                backward_s * layer.backward_share,
                is_last,
            )
        return value


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        value: torch.Tensor,
        weight: torch.Tensor,
        device: EmulatedDevice,
        forward_s: float,
        backward_s: float,
        is_last: bool,
    ) -> torch.Tensor:
        context.device, context.backward_s, context.is_last = device, backward_s, is_last
        context.size = weight.shape
        device.compute(forward_s)
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        if context.is_last:
            context.device.catch_up()
        context.device.compute(context.backward_s, is_backward=True)
        return gradient, torch.zeros(context.size), None, None, None, None


class EmulatedOptimizer(torch.optim.Optimizer):
    """Takes the optimizer's time, and leaves the parameters as they are."""

    def __init__(self, model: EmulatedModel) -> None:
        super().__init__(model.parameters(), {})
        self._model = model

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take the optimizer's time."""
        device = self._model.device
        device.catch_up()
        device.compute(self._model.job.optimizer_s)


def emulated_workload(job: EmulatedJob, device: EmulatedDevice | None = None) -> dict[str, Any]:
    """The job as a workload that `srifty profile` measures like any other.

    torch gets one thread: where others want the processors too, its threads wait for one another far longer than the
    little work of making gradients takes (30 to 100 ms in place of 15 were seen).
    """
    torch.set_num_threads(1)
    model = EmulatedModel(job, device or EmulatedDevice())
    return {
        "model": model,
        "optimizer": EmulatedOptimizer(model),
        "make_batch": lambda batch: torch.zeros(batch, 1),
        "loss": lambda model, samples: model(samples).sum(),
    }


def _between(batch: int, batches: tuple[int, ...], seconds: tuple[float, ...]) -> float:
    """Time at a batch: straight between those of the job, in proportion beyond them."""
    if batch <= batches[0]:
        return seconds[0] * batch / batches[0]
    for index in range(1, len(batches)):
        if batch <= batches[index]:
            share = (batch - batches[index - 1]) / (batches[index] - batches[index - 1])
            return seconds[index - 1] + share * (seconds[index] - seconds[index - 1])
    return seconds[-1] * batch / batches[-1]
