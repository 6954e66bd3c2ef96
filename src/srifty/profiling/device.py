"""Device: what is measured on, under the name by which offers call it, so that profiles and offers meet."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from srifty.errors import InvalidInput


@dataclass(frozen=True)
class Device:
    """One GPU, or the CPU.

    Attributes:
        place: where torch puts tensors
        gpu: the chip, by the name that offers use; "cpu" where there is none
        gpu_memory_bytes: memory of one GPU; None for the CPU, and where it is not known
        hardware: what the vendor calls it
    """

    place: torch.device
    gpu: str
    gpu_memory_bytes: int | None
    hardware: str

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it the device that torch uses where none is named."""
        if self.place.type == "cpu":
            yield
            return
        before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(self.place.index)
        try:
            yield
        finally:
            torch.accelerator.set_device_index(before)


def find_device(name: str | None = None) -> Device:
    """The device of that name ("cpu", "cuda", "cuda:1"); None: the current accelerator, else the CPU.

    Raises:
        InvalidInput: torch knows no such device, or has none here
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = "cpu" if accelerator is None else f"cpu, {accelerator.type}"
    try:
        place = torch.device(name) if name is not None else accelerator or torch.device("cpu")
    except RuntimeError:
        raise InvalidInput(f"device {name!r} is none that torch knows; here are: {here}") from None
    if place.type == "cpu":
        return Device(torch.device("cpu"), "cpu", None, _processor())
    if accelerator is None or place.type != accelerator.type:
        raise InvalidInput(f"device {name!r} is not on this machine, or not in this torch; here are: {here}")
    index = torch.accelerator.current_device_index() if place.index is None else place.index
    if index >= torch.accelerator.device_count():
        raise InvalidInput(
            f"device {name!r} is not on this machine, which has {torch.accelerator.device_count()}"
        )
    return _accelerator(torch.device(place.type, index))


def chip(printed: str) -> str:
    """The chip that a vendor's name means, as offers name it; unknown names stay as they are.

    Memory size, socket and brand are no part of the chip. A slice of a GPU ("... MIG 1g.5gb") is none of
    those that offers name, and stays as it is.
    """
    for chip_name, pattern in _CHIPS:
        if re.fullmatch(rf"(?:{_BRAND})?{pattern}(?:{_VARIANT})*", printed.strip()):
            return chip_name
    return printed.strip()


_BRAND = r"(?:NVIDIA |Tesla |Quadro |AMD |Instinct )+"
_VARIANT = r"[ -](?:SXM\d?|PCI[Ee]|FHHL|DGXS|OAM|\d+GB?|HBM\d?e?)"
_PRINTED_AS_OFFERED = [
    *["K80", "M60", "P4", "P40", "P100", "V100", "T4", "A2", "A10", "A10G", "A16", "A30", "A40", "A100"],
    *["L4", "L40", "L40S", "H100", "H200", "B200", "B300", "GB200", "GH200"],
    *["MI100", "MI210", "MI250", "MI250X", "MI300X", "MI325X", "MI355X"],
]
_CHIPS = [
    *((name, re.escape(name)) for name in _PRINTED_AS_OFFERED),
    ("T4g", "T4G"),
    ("H100-NVL", "H100 NVL"),
    ("H200-NVL", "H200 NVL"),
    ("A4000", "RTX A4000"),
    ("A5000", "RTX A5000"),
    ("A6000", "RTX A6000"),
    ("RTX6000", "RTX 6000"),
    ("RTX8000", "RTX 8000"),
]


def _accelerator(place: torch.device) -> Device:
    """One path for every vendor: what a device module does not tell stays unknown."""
    module = torch.get_device_module(place)
    printed = place.type
    if hasattr(module, "get_device_name"):
        printed = str(module.get_device_name(place.index))
    memory = None
    if hasattr(module, "get_device_properties"):
        memory = getattr(module.get_device_properties(place.index), "total_memory", None)
    return Device(place, chip(printed), memory, printed)


def _processor() -> str:
    """The processor's model name and the threads that torch uses, which decide a CPU's timings."""
    model = platform.processor() or platform.machine() or "unknown processor"
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux
    count = torch.get_num_threads()
    return f"{model}, {count} thread{'s' if count != 1 else ''}"
