"""Training loops for a test of the ways in from within: sleeping layers, and what must be as before afterwards."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optim
from torch.utils.data import DataLoader, Dataset, dataloader

from srifty.records import JobProfile

LAYER_S, LAYERS, LOAD_S = 0.002, 4, 0.002
"""Sleep of a layer backward (half of that forward), layers of a model, and sleep of a loader a batch."""
LAYER_BYTES = (256 * 256 + 256) * 4
MODEL_BYTES = LAYERS * LAYER_BYTES


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests share the machine; threads of small models would but wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 2)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Layer(nn.Module):
    def __init__(self, seconds: float = LAYER_S) -> None:
        super().__init__()
        self.linear, self.seconds = nn.Linear(256, 256), seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Slow.apply(self.linear(x), self.seconds)


class Samples(Dataset):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((256,), 1e-3)


def make_model(layers: int = LAYERS, seconds: float = LAYER_S) -> nn.Module:
    return nn.Sequential(*(Layer(seconds) for _ in range(layers)))


def slowly(samples: list[torch.Tensor]) -> torch.Tensor:
    time.sleep(LOAD_S)
    return torch.stack(samples)


def loader(batch: int = 8) -> DataLoader:
    return DataLoader(Samples(), batch_size=batch, collate_fn=slowly)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def train(
    model: nn.Module,
    steps: int = 40,
    batch: int = 8,
    *,
    until: Callable[[], bool] = lambda: False,
    before_step: Callable[[int], None] = lambda step: None,
) -> list[float]:
    """A plain loop without a loader; the time of each step by its own clock [s]."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    took_s, begin = [], time.perf_counter()
    for step in range(steps):
        before_step(step)
        loss_of(model, torch.ones(batch, 256)).backward()
        optimizer.step()
        optimizer.zero_grad()
        took_s.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        if until():
            break
    return took_s


def step_s(profile: JobProfile, batch: int | None = None) -> float:
    """A whole step of the optimizer by the profile [s]."""
    (timing,) = [one for one in profile.timings if batch in (None, one.batch)]
    micro = [timing.forward_s, timing.backward_s, timing.data_wait_s, timing.other_s]
    micro_s = sum(spread.p50 for spread in micro if spread is not None)
    return profile.accumulation_count * micro_s + timing.optimizer_s.p50


def assert_agrees(profile: JobProfile, own_step_s: list[float]) -> None:
    """The phases add up to the loop's own clock, as exactly as that itself is constant."""
    ordered = sorted(own_step_s[2:])
    usual = ordered[len(ordered) // 8 : -(len(ordered) // 8) or None]
    assert 0.9 * usual[0] <= step_s(profile) <= 1.1 * usual[-1]


def assert_holds_together(profile: JobProfile | None, model: nn.Module) -> JobProfile:
    """What is true of every profile of a model whose parameters are all trained."""
    assert profile is not None
    trained = sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)
    assert profile.trainable_bytes == trained
    assert sum(bucket.gradient_bytes for bucket in profile.buckets) == trained
    ready = [bucket.ready_at for bucket in profile.buckets]
    assert ready == sorted(ready)
    assert profile.gpu == "cpu"
    return profile


def _touched(model: nn.Module) -> dict[Any, Any]:
    """Everything that a profiler replaces or adds to: it must be the very same before and after."""
    classes = {
        optim.Optimizer,
        torch.amp.GradScaler,
        torch.autocast,
        DataLoader,
        dataloader._BaseDataLoaderIter,
    }
    classes |= {kind for one in model.modules() for kind in type(one).__mro__}
    owners = (torch, torch.autograd, *classes)
    seen = {
        (owner, name): value for owner in owners for name, value in vars(owner).items() if callable(value)
    }
    seen.pop((DataLoader, "__delattr__"), None)  # Lightning comes and goes here itself
    for registry in (
        optim._global_optimizer_pre_hooks,
        optim._global_optimizer_post_hooks,
        nn.modules.module._global_forward_pre_hooks,
        *(one._forward_hooks for one in model.modules()),
        *(one._forward_pre_hooks for one in model.modules()),
        *(one._backward_hooks for one in model.modules()),
    ):
        seen |= {(id(registry), key): hook for key, hook in registry.items()}
    for name, parameter in model.named_parameters():
        seen[name, "backward"] = parameter._backward_hooks
        seen[name, "accumulated"] = parameter._post_accumulate_grad_hooks
    return seen


@contextmanager
def nothing_left_on(model: nn.Module) -> Iterator[None]:
    """Fails if anything of torch, of the model or of its parameters is not what it was."""
    torch.optim.SGD(model.parameters(), lr=0.1)  # wraps the step of its class, the first time
    before = _touched(model)
    yield
    after = _touched(model)
    changed = [key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)]
    assert changed == [], changed
    gc.collect()
    watches = [thing for thing in gc.get_objects() if type(thing).__name__ == "InsideWatch"]
    assert watches == []
