"""Gradient buckets: those of real DDP, for every kind of model that people train, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from srifty.errors import WorkloadFailed
from srifty.profiling import ddp_buckets
from srifty.profiling.bucket_rule import MIB, Gradient, bucket_by_rule
from srifty.profiling.clock import Clock
from srifty.profiling.gradient_buckets import MeasuredBuckets, measure_buckets
from srifty.profiling.hook_buckets import buckets_by_hooks
from srifty.profiling.workload import Workload
from srifty.records import GradientBucket
from tests.profiling import two_ranks
from tests.profiling.sleeping import SleepInBackward

CPU = Clock(torch.device("cpu"))
MakeWorkload = Callable[..., Workload]
Check = Callable[[nn.Module], None]


def _measure(workload: Workload, seconds: float = 0.02) -> MeasuredBuckets:
    return measure_buckets(workload, workload.data(4, torch.device("cpu")), CPU, seconds=seconds)


def _sizes(buckets: tuple[GradientBucket, ...]) -> list[int]:
    return [bucket.gradient_bytes for bucket in buckets]


def _trainable_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def test_buckets_are_those_that_two_real_ranks_exchange(
    tmp_path: Path, workload_of: MakeWorkload, nothing_left: Check
) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, two_ranks.__file__, str(rank), str(tmp_path / "rendezvous")],
            stdout=subprocess.PIPE,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        printed = ranks[0].communicate(timeout=60)[0]
        ranks[1].communicate(timeout=60)
    finally:
        for rank in ranks:
            rank.kill()
    real_bytes = json.loads(printed.splitlines()[-1])
    assert len(real_bytes) >= 3
    model = two_ranks.Branches()
    workload = workload_of(model, make_batch=two_ranks.make_batch, loss=two_ranks.loss)
    measured = _measure(workload)
    assert _sizes(measured.buckets) == real_bytes
    assert not measured.assumptions
    assert sorted(_sizes(buckets_by_hooks(workload, two_ranks.make_batch(4), CPU, seconds=0.02))) == sorted(
        real_bytes
    )
    nothing_left(model)


def test_a_gradient_is_ready_when_the_backward_pass_has_come_to_it(
    workload_of: MakeWorkload, nothing_left: Check
) -> None:
    model = nn.ModuleList(
        nn.Linear(600, 600) for _ in range(3)
    )  # 1.4 MB each: the last has a bucket of its own

    def loss(model: Any, data: torch.Tensor) -> torch.Tensor:
        return model(data).mean()

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = SleepInBackward.apply(layer(x), 0.04)
            return x

    slow = Slow()
    workload = workload_of(slow, make_batch=lambda batch: torch.randn(batch, 600), loss=loss)
    for buckets in (
        _measure(workload).buckets,
        buckets_by_hooks(workload, torch.randn(4, 600), CPU, seconds=0.02),
    ):
        assert len(buckets) == 2
        assert 0.25 < buckets[0].ready_at < 0.45
        assert 0.9 < buckets[1].ready_at <= 1
    nothing_left(slow)


def test_frozen_parameters_are_not_exchanged(workload_of: MakeWorkload, nothing_left: Check) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 8))
    model[0].requires_grad_(False)
    measured = _measure(workload_of(model))
    assert sum(_sizes(measured.buckets)) == _trainable_bytes(model) == (32 * 8 + 8) * 4
    assert not measured.assumptions
    nothing_left(model)


class Tied(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8, sparse=sparse)
        self.output = nn.Linear(8, 50, bias=False)
        if not sparse:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.embedding(tokens))


def _tokens(batch: int) -> torch.Tensor:
    return torch.arange(batch)


def test_a_tied_weight_is_exchanged_once(workload_of: MakeWorkload, nothing_left: Check) -> None:
    model = Tied()
    measured = _measure(workload_of(model, make_batch=_tokens))
    assert _sizes(measured.buckets) == [50 * 8 * 4]
    nothing_left(model)


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(8, 8)
        self.never = nn.Linear(8, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.used(x)


def test_parameters_without_a_gradient_are_exchanged_and_noted(
    workload_of: MakeWorkload, nothing_left: Check
) -> None:
    model = WithUnused()
    measured = _measure(workload_of(model))
    assert sum(_sizes(measured.buckets)) == _trainable_bytes(model)
    assert "2 trainable parameters get no gradient" in measured.assumptions[0]
    nothing_left(model)


class Sometimes(WithUnused):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return x + self.never(x).sum() if self.calls in (1, 4) else x


def test_parameters_that_get_a_gradient_now_and_then_do_not_stop_the_measurement(
    workload_of: MakeWorkload, nothing_left: Check
) -> None:
    model = Sometimes()
    measured = _measure(workload_of(model))
    assert sum(_sizes(measured.buckets)) == _trainable_bytes(model)
    nothing_left(model)


def test_a_model_of_one_parameter_has_one_bucket(workload_of: MakeWorkload, nothing_left: Check) -> None:
    model = nn.Linear(8, 1, bias=False)
    buckets = _measure(workload_of(model)).buckets
    assert _sizes(buckets) == [32]
    assert 0 < buckets[0].ready_at <= 1
    nothing_left(model)


class ManyTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, dtype in (("a", torch.complex64), ("b", torch.bfloat16), ("c", torch.float16)):
            setattr(self, name, nn.Parameter(torch.randn(8, dtype=dtype)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.a.abs() + self.b.float() + self.c.float()


def test_each_type_of_number_has_a_bucket_of_its_own(workload_of: MakeWorkload, nothing_left: Check) -> None:
    model = ManyTypes()
    assert sorted(_sizes(_measure(workload_of(model)).buckets)) == [16, 16, 64]
    nothing_left(model)


def test_sparse_gradients_are_as_large_as_what_they_hold_and_noted(
    workload_of: MakeWorkload, nothing_left: Check
) -> None:
    model = Tied(sparse=True)
    measured = _measure(workload_of(model, make_batch=_tokens))
    # 4 tokens: 4 rows of 8 numbers and 4 indices of 8 bytes; and the dense output layer.
    assert sorted(_sizes(measured.buckets)) == [4 * 8 * 4 + 4 * 8, 50 * 8 * 4]
    assert any("1 gradients are sparse" in note for note in measured.assumptions)
    assert any("follow DDP's rule" in note for note in measured.assumptions)
    nothing_left(model)


class WithMethod(nn.Linear):
    def training_loss(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).square().mean()


def test_a_loss_that_uses_the_models_own_methods_is_measured_by_rule(
    workload_of: MakeWorkload, nothing_left: Check
) -> None:
    model = WithMethod(8, 8)
    measured = _measure(workload_of(model, loss=lambda model, data: model.training_loss(data)))
    assert _sizes(measured.buckets) == [288]
    assert "has no attribute 'training_loss'" in measured.assumptions[0]
    nothing_left(model)


def test_a_loss_that_ignores_the_model_it_is_given_is_measured_by_rule(
    workload_of: MakeWorkload, nothing_left: Check
) -> None:
    model = nn.Linear(8, 8)
    closed_over = workload_of(model, loss=lambda _, data: model(data).square().mean())
    measured = _measure(closed_over)
    assert _sizes(measured.buckets) == [288]
    assert "the loss does not call the model" in measured.assumptions[0]
    nothing_left(model)


def test_a_torch_without_distributed_is_measured_by_rule(
    workload_of: MakeWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    measured = _measure(workload_of(nn.Linear(8, 8)))
    assert _sizes(measured.buckets) == [288]
    assert measured.assumptions[0] == "this torch has no torch.distributed"


def test_a_process_group_that_is_there_is_used_beside_and_left(workload_of: MakeWorkload) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        measured = _measure(workload_of(nn.Linear(8, 8)))
        assert not measured.assumptions
        assert dist.is_initialized()
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_a_checkpointed_block_fires_its_hooks_twice_and_counts_once(
    workload_of: MakeWorkload, nothing_left: Check
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = torch.utils.checkpoint.checkpoint(self.shared, x, use_reentrant=True)
            return self.last(x)

    model = Checkpointed()
    workload = workload_of(model, make_batch=lambda batch: torch.randn(batch, 8, requires_grad=True))
    measured = _measure(workload)
    assert sum(_sizes(measured.buckets)) == _trainable_bytes(model)
    nothing_left(model)


def test_a_step_that_fails_without_ddp_too_is_the_workloads_failure(
    workload_of: MakeWorkload, nothing_left: Check
) -> None:
    model = nn.Linear(9, 9)
    with pytest.raises(WorkloadFailed, match="shapes cannot be multiplied"):
        _measure(workload_of(model))
    nothing_left(model)


def test_a_failure_in_ddp_leaves_nothing_and_falls_back(
    workload_of: MakeWorkload, nothing_left: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(state, bucket):  # type: ignore[no-untyped-def]
        raise RuntimeError("no exchange today")

    monkeypatch.setattr(ddp_buckets, "_note_bucket", refuse)
    model = nn.Linear(8, 8)
    measured = _measure(workload_of(model))
    assert _sizes(measured.buckets) == [288]
    assert "no exchange today" in measured.assumptions[0]
    nothing_left(model)


def test_ready_at_rises_and_the_same_model_gives_the_same_sizes(workload_of: MakeWorkload) -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(9)))  # 38 MB
    workload = workload_of(model, make_batch=lambda batch: torch.randn(batch, 1024))
    first, second = _measure(workload, 0.2), _measure(workload, 0.2)
    assert _sizes(first.buckets) == _sizes(second.buckets)
    ready = [bucket.ready_at for bucket in first.buckets]
    assert len(ready) == 3
    assert ready == sorted(ready)


def test_the_rule_is_torchs_own() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        count = int(torch.randint(1, 30, (1,), generator=generator))
        sizes = (torch.rand(count, generator=generator) ** 4 * 10 * MIB / 4).long().add(1).tolist()
        dtypes = [
            (torch.float32, torch.int32)[k] for k in torch.randint(2, (count,), generator=generator).tolist()
        ]
        tensors = [torch.empty(n, dtype=t, device="meta") for n, t in zip(sizes, dtypes, strict=True)]
        expected, _ = dist._compute_bucket_assignment_by_size(tensors, [MIB, 25 * MIB])
        gradients = [
            Gradient(4 * n, t, ready_at=(k + 1) / count)
            for k, (n, t) in enumerate(zip(sizes, dtypes, strict=True))
        ]
        # torch sorts by first member where it is not told the order of arrival; sizes are compared as sets.
        assert sorted(_sizes(bucket_by_rule(gradients))) == sorted(
            sum(4 * sizes[k] for k in members) for members in expected
        )
        silent = [Gradient(g.gradient_bytes, g.kind, None) for g in gradients]
        assert _sizes(bucket_by_rule(silent)) == [
            sum(4 * sizes[k] for k in members) for members in reversed(expected)
        ]


def test_watching_takes_about_the_time_it_is_given(workload_of: MakeWorkload) -> None:
    def slow(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return model(data).mean()

    begin = time.perf_counter()
    _measure(workload_of(nn.Linear(8, 8), loss=slow), seconds=0.1)
    assert time.perf_counter() - begin < 2
