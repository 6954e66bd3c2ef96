"""Sizes: each tensor once."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from srifty.profiling.sizes import checkpoint_bytes, checkpoint_save_s, precision, tensor_bytes
from srifty.profiling.workload import Workload


def _tied() -> nn.Module:
    model = nn.Module()
    model.embedding = nn.Embedding(1000, 64)
    model.output = nn.Linear(64, 1000, bias=False)
    model.output.weight = model.embedding.weight
    return model


def test_a_tied_weight_counts_once() -> None:
    assert tensor_bytes(_tied().parameters()) == 1000 * 64 * 4


def test_bytes_follow_the_type_of_the_numbers() -> None:
    assert tensor_bytes([torch.zeros(10, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.complex64)]) == 36


def test_a_checkpoint_is_as_large_as_the_file_that_torch_would_write() -> None:
    model = nn.Sequential(_tied(), nn.Linear(64, 64), nn.BatchNorm1d(64))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    workload = Workload(model, optimizer, torch.zeros, lambda model, data: data)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    counted = checkpoint_bytes(workload)
    assert counted <= len(file.getvalue()) < counted + 20_000


def test_a_checkpoint_is_saved_for_its_time_and_nothing_is_left(
    workload_of: Callable[..., Workload], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    workload = workload_of(nn.Linear(256, 256))
    spread = checkpoint_save_s(workload, checkpoint_bytes(workload))
    assert spread is not None
    assert spread.sample_count == 3
    assert 0 < spread.p10 < 5
    assert list(tmp_path.iterdir()) == []
    assert checkpoint_save_s(workload, 2**50) is None


def test_what_it_computes_in_is_seen(workload_of: Callable[..., Workload]) -> None:
    data = torch.randn(2, 8)
    assert precision(workload_of(nn.Linear(8, 8)), data) == "float32"
    assert precision(workload_of(nn.Linear(8, 8).to(torch.bfloat16)), data.to(torch.bfloat16)) == "bfloat16"

    def under_autocast(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(data).float().mean()

    model = nn.Linear(8, 8)
    assert precision(workload_of(model, loss=under_autocast), data) == "float32, autocast bfloat16"
    assert not model._forward_pre_hooks
