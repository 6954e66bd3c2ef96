"""Device: what is measured on, under the name by which offers call it, so that profiles and offers meet."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from srifty.errors import InvalidInput
from srifty.profiling.chip import chip


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
