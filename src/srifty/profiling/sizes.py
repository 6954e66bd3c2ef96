"""Sizes of a model and of its checkpoint, from its tensors; the checkpoint's time, from a trial outside the user's
folder; and the types that it computes in.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from srifty.profiling.user_code import user_code
from srifty.profiling.workload import Workload
from srifty.records import Spread

LARGEST_TRIAL_BYTES = 4 * 2**30
LONGEST_TRIAL_S = 5.0


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Size of the tensors' elements [bytes]; sparse ones by values and indices, each row once, as exchanged."""
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


def checkpoint_save_s(workload: Workload, size_bytes: int) -> Spread | None:
    """Time to write a checkpoint to this machine's temporary folder, up to three tries; None where it is too large.

    A run's own place may be slower (an object store) or faster.
    """
    taken: list[float] = []
    with tempfile.TemporaryDirectory(prefix="srifty-") as folder:
        if size_bytes > min(LARGEST_TRIAL_BYTES, shutil.disk_usage(folder).free // 2):
            return None
        with user_code("saving a checkpoint"):
            begin = time.perf_counter()
            while len(taken) < 3 and time.perf_counter() - begin < LONGEST_TRIAL_S:
                start = time.perf_counter()
                state = [
                    part.state_dict()
                    for part in (workload.model, workload.optimizer)
                    if hasattr(part, "state_dict")
                ]
                torch.save(state, Path(folder) / "checkpoint.pt")
                taken.append(time.perf_counter() - start)
    return Spread.of(taken)


def precision(workload: Workload, data: Any) -> str:
    """Type of most parameters, and that of autocast where the loss calls the model under it."""
    sizes: Counter[str] = Counter()
    for parameter in workload.model.parameters():
        sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    seen: set[str] = set()
    device = next(workload.model.parameters()).device.type

    def look(*_: object) -> None:
        if torch.is_autocast_enabled(device):
            seen.add(f"autocast {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}")

    handle = workload.model.register_forward_pre_hook(look)
    try:
        with user_code("a forward pass"):
            workload.loss(workload.model, data)
    finally:
        handle.remove()
    return ", ".join([sizes.most_common(1)[0][0], *sorted(seen)])


def _bytes_of(tensor: torch.Tensor) -> int:
    if tensor.layout == torch.sparse_coo:
        once = tensor.detach().coalesce()
        return _bytes_of(once.values()) + _bytes_of(once.indices())
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
