"""Workloads made in a test, as jobs that name them; and what must not be left after a profile."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from srifty.profiling.workload import Workload
from srifty.records import Job
from tests.support_torchvision import make_importable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def examples() -> Path:
    return EXAMPLES


@pytest.fixture
def with_torchvision() -> None:
    make_importable()
    pytest.importorskip("torchvision")


@pytest.fixture
def job_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """A job whose workload is made by a function of the test."""

    def make_job(make: Callable[[], Any], **fields: Any) -> Job:
        module = ModuleType("made_in_a_test")
        module.make = make  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return Job(name="a-test", workload="made_in_a_test:make", **fields)

    return make_job


@pytest.fixture
def nothing_left() -> Callable[[nn.Module], None]:
    """Fails if the model still has hooks or gradients, or if a process group or DDP is still there."""

    def check(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is None
            assert not parameter._backward_hooks
            assert not parameter._post_accumulate_grad_hooks
        for module in model.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
            assert not module._backward_hooks
        assert not torch.distributed.is_initialized()
        gc.collect()
        # Their reducers would still sit on the parameters.
        assert not [thing for thing in gc.get_objects() if type(thing) is DistributedDataParallel]

    return check


def mean_of_output(model: nn.Module, data: Any) -> torch.Tensor:
    return model(data).square().mean()


@pytest.fixture
def workload_of() -> Callable[..., Workload]:
    """A workload around a model that takes vectors of 8 numbers, unless told otherwise."""

    def make(
        model: nn.Module,
        *,
        make_batch: Callable[[int], Any] = lambda batch: torch.randn(batch, 8),
        loss: Callable[[nn.Module, Any], torch.Tensor] = mean_of_output,
    ) -> Workload:
        return Workload(model, torch.optim.SGD(model.parameters(), lr=0.01), make_batch, loss)

    return make
