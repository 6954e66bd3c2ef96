"""Memory that ran out, told from every other failure."""

from __future__ import annotations

import errno

import pytest
import torch

from srifty.profiling.memory import is_out_of_memory, peak_bytes, reset_peak


def test_the_cpu_allocators_own_refusal_is_a_shortage() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB)"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_shortage_is_known_by_its_type_or_words(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 9x9)"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. "),
        OSError(errno.ENOENT, "No such file or directory"),
        ValueError("can't allocate memory for a tensor of a shape that you made up"),
    ],
)
def test_a_bug_is_not_taken_for_a_shortage(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_an_error_that_was_raised_from_a_shortage_is_one() -> None:
    shortage = torch.OutOfMemoryError("CUDA out of memory")
    deliberate, by_the_way = ValueError("this batch is too large"), ValueError("a bug in the handler")
    deliberate.__cause__ = shortage  # raise ... from shortage
    by_the_way.__context__ = shortage
    assert is_out_of_memory(deliberate)
    assert not is_out_of_memory(by_the_way)


def test_a_cpu_tells_no_peak() -> None:
    reset_peak(torch.device("cpu"))
    assert peak_bytes(torch.device("cpu")) is None


def test_a_device_that_does_not_count_tells_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> int:
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", refuse, raising=False)
    assert peak_bytes(torch.device("mps")) is None
