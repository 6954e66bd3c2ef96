"""Devices: the chip's name as offers use it, and which device is meant."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from srifty.errors import InvalidInput
from srifty.profiling.chip import chip
from srifty.profiling.device import find_device


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-PCIE-32GB", "V100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("A100-PCIE-40GB", "A100"),
        ("Tesla T4", "T4"),
        ("NVIDIA T4G", "T4g"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H200", "H200"),
        ("Quadro RTX 6000", "RTX6000"),
        ("NVIDIA RTX A6000", "A6000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("Tesla K80", "K80"),
        ("Tesla M60", "M60"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
    ],
)
def test_a_vendors_name_becomes_the_chip_that_offers_name(printed: str, expected: str) -> None:
    assert chip(printed) == expected


@pytest.mark.parametrize(
    "printed",
    [
        "NVIDIA GeForce RTX 4090",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # a slice, not the chip
        "GRID A100D-10C",
        "GRID T4-8Q",
        "A10G-24Q",
        "Tesla V100S-PCIE-32GB",
        "mps",
    ],
)
def test_an_unknown_name_stays_as_the_vendor_prints_it(printed: str) -> None:
    assert chip(printed) == printed


def test_the_cpu_has_no_gpu_memory_and_tells_its_model() -> None:
    device = find_device("cpu")
    assert device.place == torch.device("cpu")
    assert device.gpu == "cpu"
    assert device.gpu_memory_bytes is None
    assert device.hardware.endswith(f"{torch.get_num_threads()} threads") or torch.get_num_threads() == 1


def test_without_an_accelerator_the_cpu_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert find_device().gpu == "cpu"


@pytest.fixture
def two_v100(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A torch that sees two V100; the list's last element is the current one."""
    current = [0]
    module = SimpleNamespace(
        get_device_name=lambda index: "Tesla V100-SXM2-16GB",
        get_device_properties=lambda index: SimpleNamespace(total_memory=16_000_000_000 + index),
    )
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: current[-1])
    monkeypatch.setattr(torch.accelerator, "set_device_index", current.append)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    return current


@pytest.mark.parametrize(("name", "index"), [(None, 0), ("cuda", 0), ("cuda:1", 1)])
def test_an_accelerator_tells_chip_and_memory_of_one_gpu(
    two_v100: list[int], name: str | None, index: int
) -> None:
    device = find_device(name)
    assert device.place == torch.device("cuda", index)
    assert device.gpu == "V100"
    assert device.gpu_memory_bytes == 16_000_000_000 + index
    assert device.hardware == "Tesla V100-SXM2-16GB"


def test_a_device_is_the_current_one_only_while_it_is_used(two_v100: list[int]) -> None:
    with find_device("cuda:1").current():
        assert two_v100[-1] == 1
    assert two_v100[-1] == 0


@pytest.mark.parametrize("name", ["cuda:2", "xpu", "meta", "gpu", ""])
def test_a_device_that_is_not_there_is_refused_by_name(two_v100: list[int], name: str) -> None:
    with pytest.raises(InvalidInput, match=repr(name)):
        find_device(name)


def test_an_accelerator_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(
        InvalidInput, match="'cuda' is not on this machine, or not in this torch; here are: cpu"
    ):
        find_device("cuda")
