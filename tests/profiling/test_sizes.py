"""Sizes: each tensor once."""

from __future__ import annotations

import io

import torch
from torch import nn

from srifty.profiling.sizes import checkpoint_bytes, tensor_bytes
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
