"""Device memory: running out of it told from every other failure, and the most that was in use.

A bug in the training code that is taken for "batch too large" sends a search down to nothing; a true
shortage taken for a bug ends a measurement that could have kept what fits. So the two are told apart here.
"""

from __future__ import annotations

import errno
import gc

import torch

# What allocators say without a type of their own: the CPU's (Linux, Windows), the driver, and the handle or
# workspace of a GPU library; and what torch says where the kernel ended a process that made data. Lower case.
_SHORTAGE_WORDS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory: you tried to allocate",
    "std::bad_alloc",
    "cuda error: out of memory",
    "hip error: out of memory",
    "mps backend out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cusolver_status_alloc_failed",
    "cusparse_status_alloc_failed",
    "is killed by signal: killed",
)


class OutOfMemory(Exception):
    """A step, or what it needs, does not fit into the memory of the device; no error of the training code."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, or was raised from one that does (`raise ... from error`)."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError | OutOfMemory):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if isinstance(error, RuntimeError) and says_out_of_memory(str(error)):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def says_out_of_memory(text: str) -> bool:
    """Whether an allocator's words for a shortage are in the text."""
    said = text.lower()
    return any(words in said for words in _SHORTAGE_WORDS)


def release_memory(device: torch.device) -> None:
    """Give back what a failed try still holds, so that the next try starts from the same place."""
    gc.collect()
    if device.type != "cpu":
        module = torch.get_device_module(device)
        if hasattr(module, "empty_cache"):
            module.empty_cache()


def reset_peak(device: torch.device) -> None:
    """Start to look for the peak anew; nothing where the device keeps no such figure."""
    _statistic(device, "reset_peak_memory_stats")


def peak_bytes(device: torch.device) -> int | None:
    """Most memory that tensors took on the device since `reset_peak` [bytes]; None: not known.

    What the caching allocator holds beyond that is not counted: it gives it back when memory is short.
    """
    peak = _statistic(device, "max_memory_allocated")
    return None if peak is None else int(peak)


def _statistic(device: torch.device, name: str) -> int | None:
    """What the device's function of that name gives; None where there is none, as on the CPU.

    torch.accelerator has such functions from torch 2.9 on; before, the device's own module has.
    """
    if device.type == "cpu":
        return None
    function = getattr(torch.accelerator, name, None) or getattr(torch.get_device_module(device), name, None)
    try:
        return None if function is None else function(device)
    except RuntimeError:  # a device whose allocator does not count
        return None
