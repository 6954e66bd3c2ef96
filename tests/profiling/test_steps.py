"""Steps: each phase gets its own time, and cold steps end by themselves."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from srifty.errors import WorkloadFailed
from srifty.profiling.clock import Clock
from srifty.profiling.steps import MOST_COLD_STEPS, has_settled, time_steps, warm_up
from srifty.profiling.workload import Workload
from tests.profiling.sleeping import SleepInBackward

CPU = Clock(torch.device("cpu"))


class SleepingSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(0.03)
        return super().step(closure)


def test_forward_backward_and_optimizer_are_told_apart() -> None:
    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        time.sleep(0.04)
        return SleepInBackward.apply(model(data), 0.08).mean()

    model = nn.Linear(8, 8)
    workload = Workload(model, SleepingSGD(model.parameters(), lr=0.1), torch.randn, loss)
    block = time_steps(workload, torch.randn(4, 8), CPU, 5)
    assert len(block.steps) == 5
    fastest = min(block.steps, key=lambda step: step.step_s)
    # A busy machine sleeps longer, never shorter.
    assert 0.04 <= fastest.forward_s < 0.07
    assert 0.08 <= fastest.backward_s < 0.12
    assert 0.03 <= fastest.optimizer_s < 0.06
    assert block.last_loss >= 0


def test_the_collector_rests_while_steps_are_timed_and_works_again_afterwards(
    workload_of: Callable[..., Workload],
) -> None:
    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        assert not gc.isenabled()
        return model(data).mean()

    time_steps(workload_of(nn.Linear(8, 8), loss=loss), torch.randn(4, 8), CPU, 2)
    assert gc.isenabled()


def test_a_failing_step_leaves_the_collector_on(workload_of: Callable[..., Workload]) -> None:
    with pytest.raises(WorkloadFailed, match="a training step failed"):
        time_steps(workload_of(nn.Linear(9, 9)), torch.randn(4, 8), CPU, 2)
    assert gc.isenabled()


def test_cold_steps_are_taken_until_they_no_longer_become_faster(
    workload_of: Callable[..., Workload],
) -> None:
    taken = []

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        taken.append(1)
        time.sleep(0.04 if len(taken) <= 3 else 0.01)
        return model(data).mean()

    warmed = warm_up(workload_of(nn.Linear(8, 8), loss=loss), torch.randn(4, 8), CPU, seconds=60)
    assert 6 < len(taken) <= MOST_COLD_STEPS
    assert warmed.last.step_s < 0.04
    assert 0.05 < warmed.cold_s < 0.2  # three steps of 40 ms among those of 10


def test_warming_up_ends_when_its_time_is_over(workload_of: Callable[..., Workload]) -> None:
    taken = []

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        taken.append(1)
        return model(data).mean()

    warm_up(workload_of(nn.Linear(8, 8), loss=loss), torch.randn(4, 8), CPU, seconds=0)
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("step_s", "settled"),
    [
        ([1.0] * 5, False),
        ([1.0] * 6, True),
        ([2.0, 2.0, 2.0, 1.0, 1.0, 1.0], False),
        ([9.0, 1.0, 1.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0, 1.3, 1.3, 1.3], True),
    ],
)
def test_steps_have_settled_once_the_newest_are_no_faster(step_s: list[float], settled: bool) -> None:
    assert has_settled(step_s) is settled
