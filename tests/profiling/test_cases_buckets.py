"""What went wrong for users of other tools with hooks, gradient buckets and overlap, and the right value here.

Each test names the public report that it is about.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from srifty.profiling.clock import Clock
from srifty.profiling.gradient_buckets import MeasuredBuckets, measure_buckets
from srifty.profiling.hook_buckets import buckets_by_hooks
from srifty.profiling.workload import Workload
from tests.profiling.attach_kit import LAYER_BYTES, Scripts, scripts
from tests.profiling.sleeping import SleepInBackward

__all__ = ["scripts"]

CPU = Clock(torch.device("cpu"))
MakeWorkload = Callable[..., Workload]


def _measure(workload: Workload, batch: int = 4) -> MeasuredBuckets:
    return measure_buckets(workload, workload.data(batch, torch.device("cpu")), CPU, seconds=0.02)


def _sizes(measured: MeasuredBuckets) -> list[int]:
    return [bucket.gradient_bytes for bucket in measured.buckets]


def _trained_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class InAnotherOrder(nn.Module):
    """Registered in another order than used, so that buckets of the arrival are not those of the registration."""

    def __init__(self, *, has_unused: bool) -> None:
        super().__init__()
        self.second, self.third, self.first = nn.Linear(600, 600), nn.Linear(600, 300), nn.Linear(600, 600)
        if has_unused:
            self.unused = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("has_unused", [False, True])
def test_buckets_are_rebuilt_or_not_as_ddp_itself_says(workload_of: MakeWorkload, has_unused: bool) -> None:
    """pytorch#153404: with unused parameters the order of the first step stays, without it follows arrival."""
    model = InAnotherOrder(has_unused=has_unused)
    ddp = DistributedDataParallel(model, find_unused_parameters=has_unused)
    for _ in range(3):
        ddp(torch.randn(4, 600)).sum().backward()
    said = ddp._get_ddp_logging_data()
    assert said["has_rebuilt_buckets"] == (not has_unused)
    told = said["bucket_sizes" if has_unused else "rebuilt_bucket_sizes"]
    model = InAnotherOrder(has_unused=has_unused)
    measured = _measure(workload_of(model, make_batch=lambda batch: torch.randn(batch, 600)))
    assert _sizes(measured) == [int(size) for size in told.split(",")]
    assert len(measured.buckets) == 2


@pytest.mark.usefixtures("with_torchvision")
def test_heads_that_are_not_used_are_counted_and_do_not_hang(workload_of: MakeWorkload) -> None:
    """torchvision's googlenet: fourteen parameters of two auxiliary heads; DDP exchanges them all the same."""
    models = importlib.import_module("torchvision.models")
    model = models.googlenet(weights=None, init_weights=False, aux_logits=True)
    measured = _measure(
        workload_of(
            model,
            make_batch=lambda batch: torch.randn(batch, 3, 64, 64),
            loss=lambda model, images: model(images).logits.square().mean(),
        ),
        batch=2,
    )
    assert measured.assumptions[0].startswith("14 trainable parameters get no gradient")
    assert sum(_sizes(measured)) == _trained_bytes(model)


def _small_bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    return transformers.BertModel(config)  # type: ignore[no-any-return]


def test_a_pooler_that_is_not_used_is_exchanged_and_said(workload_of: MakeWorkload) -> None:
    """transformers' BertModel: the pooler's two parameters get no gradient where only hidden states are used."""
    model = _small_bert()
    measured = _measure(
        workload_of(
            model,
            make_batch=lambda batch: torch.randint(200, (batch, 6)),
            loss=lambda model, tokens: model(tokens).last_hidden_state.square().mean(),
        )
    )
    assert measured.assumptions[0].startswith("2 trainable parameters get no gradient")
    assert sum(_sizes(measured)) == _trained_bytes(model)


def test_of_two_firings_of_a_hook_the_last_counts(workload_of: MakeWorkload) -> None:
    """accelerate#3536: a checkpointed block that is used first and last is ready at the end, not at the start."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice, self.between = nn.Linear(600, 600), nn.Linear(600, 600)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = checkpoint(self.twice, x, use_reentrant=True)
            x = SleepInBackward.apply(self.between(SleepInBackward.apply(x, 0.03)), 0.03)
            return checkpoint(self.twice, x, use_reentrant=True)

    workload = workload_of(Twice(), make_batch=lambda batch: torch.randn(batch, 600, requires_grad=True))
    assert _sizes(_measure(workload))  # DDP refuses such a model, which does not stop the measurement
    buckets = buckets_by_hooks(workload, workload.data(4, torch.device("cpu")), CPU, seconds=0.02)
    assert sum(bucket.gradient_bytes for bucket in buckets) == 2 * (600 * 600 + 600) * 4
    assert 0.3 < buckets[0].ready_at < 0.7  # the layer between
    assert buckets[-1].ready_at > 0.9


class LowRank(nn.Module):
    """A frozen layer with an adapter beside it, as LoRA has."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


def test_of_adapters_on_frozen_layers_only_the_adapters_are_exchanged(workload_of: MakeWorkload) -> None:
    """Frozen layers with adapters of low rank (LoRA): bytes follow what is trainable."""
    model = nn.Sequential(*(LowRank(256, 4) for _ in range(3)))
    measured = _measure(workload_of(model, make_batch=lambda batch: torch.randn(batch, 256)))
    assert sum(_sizes(measured)) == 3 * 2 * 4 * 256 * 4
    assert not measured.assumptions


def test_tied_weights_are_exchanged_once_in_a_model_that_ties_them(workload_of: MakeWorkload) -> None:
    """transformers' GPT-2: the output layer is the token embedding, one tensor and one exchange."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=211, n_positions=8, n_embd=32, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    listed = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    measured = _measure(
        workload_of(
            model,
            make_batch=lambda batch: torch.randint(211, (batch, 8)),
            loss=lambda model, tokens: model(tokens, labels=tokens).loss,
        )
    )
    assert sum(_sizes(measured)) == _trained_bytes(model) == listed - 211 * 32 * 4


FORGOTTEN = """
import tempfile
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(make_model(2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step, x in enumerate(loader()):
    (loss_of(model, x) / 3).backward()
    if step % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_an_exchange_in_every_micro_step_is_found(scripts: Scripts) -> None:
    """pytorch#43201: an accumulating loop without no_sync exchanges each time; what it costs is told elsewhere."""
    profile = scripts.profile(FORGOTTEN)
    assert profile.accumulation_count == 3
    assert profile.exchanges_every_micro_step
    assert sum(bucket.gradient_bytes for bucket in profile.buckets) == 2 * LAYER_BYTES


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_a_compiled_model_s_buckets_are_ready_when_its_whole_backward_is(workload_of: MakeWorkload) -> None:
    """pytorch#109774, pytorch#138553: one compiled graph gives all gradients at its end, so nothing overlaps."""
    plain, compiled = Deep(), Deep()
    compiled.compile()
    ready = {}
    for name, model in (("plain", plain), ("compiled", compiled)):
        workload = workload_of(model, make_batch=lambda batch: torch.randn(batch, 1024))
        workload.checked_loss(model, workload.data(64, torch.device("cpu"))).backward()  # type: ignore[no-untyped-call]
        measured = _measure(workload, batch=64)
        assert sum(_sizes(measured)) == _trained_bytes(model)
        ready[name] = [bucket.ready_at for bucket in measured.buckets]
    assert ready["plain"][0] < 0.45
    assert ready["compiled"][0] > ready["plain"][0] + 0.2
    assert ready["compiled"][-1] - ready["compiled"][0] < 0.25  # all at once, but for DDP's copies


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(1000, 16, sparse=True), nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.embedding(tokens).mean(1))


@pytest.mark.parametrize("distinct", [1, 7, 400])
def test_a_sparse_gradient_is_as_large_as_its_rows_each_once(
    workload_of: MakeWorkload, distinct: int
) -> None:
    """pytorch#111422: what is exchanged are the rows that occur, however often; NCCL cannot, and that is said."""
    workload = workload_of(
        Words(), make_batch=lambda batch: (torch.arange(400) % distinct).view(batch, 400 // batch)
    )
    measured = _measure(workload)
    assert sorted(_sizes(measured)) == sorted([distinct * (16 * 4 + 8), (16 * 4 + 4) * 4])
    assert any("NCCL cannot average" in note for note in measured.assumptions)


@pytest.mark.usefixtures("process_group")
def test_that_is_what_gloo_exchanges() -> None:
    """pytorch#111422: a second opinion from DDP, whose reduced sparse gradient has each row once."""
    ddp: Any = DistributedDataParallel(Words())
    ddp(torch.zeros(4, 100, dtype=torch.long)).sum().backward()
    gradient = ddp.module.embedding.weight.grad
    assert gradient.is_coalesced()
    assert gradient.values().shape == (1, 16)
