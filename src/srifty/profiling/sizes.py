"""Sizes of a model and of its checkpoint, from its tensors; nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from srifty.profiling.user_code import user_code
from srifty.profiling.workload import Workload


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Size of the tensors' elements [bytes]; sparse ones by what they store, values and indices."""
    return sum(_bytes_of(tensor) for tensor in tensors)


def checkpoint_bytes(workload: Workload) -> int:
    """Size of model and optimizer state in a checkpoint [bytes], shared storage once, as torch.save does.

    Call it after a step: before, most optimizers have no state. What is no tensor is not counted.
    """
    with user_code("state_dict"):
        states: list[Any] = [workload.model.state_dict()]
        if hasattr(workload.optimizer, "state_dict"):
            states.append(workload.optimizer.state_dict())
    once = {(tensor.device, _address(tensor)): tensor for state in states for tensor in _tensors(state)}
    return tensor_bytes(once.values())


def _bytes_of(tensor: torch.Tensor) -> int:
    if tensor.layout == torch.sparse_coo:
        return _bytes_of(tensor._values()) + _bytes_of(tensor._indices())
    return tensor.numel() * tensor.element_size()


def _address(tensor: torch.Tensor) -> int:
    """Where its elements lie; tensors with elements of their own have addresses of their own."""
    return tensor.data_ptr() if tensor.layout == torch.strided and tensor.numel() else id(tensor)


def _tensors(state: Any) -> Iterable[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, tuple | list):
        for value in state:
            yield from _tensors(value)
