"""Record: everything that was seen, as JSON for the process that started this one."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

from srifty_probe.beacon import Beacon, write_whole
from srifty_probe.gradients import Gradients
from srifty_probe.models import Models
from srifty_probe.optimizers import Optimizers
from srifty_probe.tensors import stored_bytes, told_parameter
from srifty_probe.timeline import LABELS, Cut, Timeline, seconds

LARGEST_SAVED_BYTES = 4 * 2**30
"""No trial save of a checkpoint beyond this."""
_TOLD_PACKAGES = ("torchvision", "transformers", "accelerate", "lightning", "pytorch_lightning", "timm")


class Recorder:
    """Writes the record; it reads models and optimizers and changes nothing."""

    def __init__(
        self, torch: Any, timeline: Timeline, gradients: Gradients, models: Models, beacon: Beacon
    ) -> None:
        self._torch, self._timeline, self._beacon = torch, timeline, beacon
        self._gradients, self._models = gradients, models
        self._told: dict[str, Any] = {}
        self.looked_rows: list[int] = []
        self.device = "cpu"
        self.saves_checkpoint = True
        self.steps_in_backward = 0
        self.more: dict[str, Any] = {}
        """What is written besides."""

    def write(
        self, reason: str, autocast: dict[str, int], is_without_optimizer: bool, optimizers: Optimizers
    ) -> None:
        """Write what was seen, then try to save a checkpoint, and write again with what that took.

        Args:
            reason: "running" while the program goes on, "failed"; then no checkpoint is saved
            autocast: how often each type was entered
            is_without_optimizer: whether each backward pass is a step
            optimizers: those that stepped
        """
        self._wait_for_device()
        told = self._told = {
            "reason": reason,
            "is_without_optimizer": is_without_optimizer,
            "optimizer_count": optimizers.role_count,
            "cuts": [_told_cut(cut, optimizers) for cut in self._timeline.cuts],
            "parameters": self._told_parameters(),
            "untrained": self._told_untrained(),
            "autocast": autocast,
            "looked_rows": self.looked_rows[0] if self.looked_rows else None,
            "roots": [type(root).__name__ for root in self._models.roots],
            "is_sharded": _guarded(self._is_sharded) or False,
            "distributed": _guarded(self._told_distributed),
            "needs_two_samples": self._needs_two_samples(),
            "compile_s": _guarded(_told_compile_s),
            "mark_s": self._told_mark_s(),
            "versions": self._told_versions(),
            "loads_elsewhere": self._timeline.loads_elsewhere,
            "steps_in_backward": self.steps_in_backward,
            "cpu_count": _cpu_count(),
            "trains_in_turns": self._gradients.is_in_turns(),
            "checkpoint_bytes": None,
            "checkpoint_save_s": [],
        }
        told.update(_guarded(self._told_device) or {"device": self.device, "hardware": ""})
        self.write_again()
        if reason not in ("failed", "running") and self.saves_checkpoint:
            told.update(_guarded(lambda: self._told_checkpoint(optimizers)) or {})
            self.write_again()

    def write_again(self) -> None:
        """Write the same again, with what has come since."""
        path = os.path.join(self._beacon.folder, f"record.{os.getpid()}.json")
        write_whole(path, {**self._told, **self.more})

    def complete(self) -> None:
        """Say that nothing will be added."""
        with open(os.path.join(self._beacon.folder, f"complete.{os.getpid()}"), "w", encoding="utf-8"):
            pass

    def _wait_for_device(self) -> None:
        if self.device != "cpu":
            getattr(self._torch, self.device).synchronize()

    def _told_parameters(self) -> list[dict[str, Any]]:
        gradients = self._gradients
        return [
            {
                **told_parameter(parameter),
                "is_trained": gradients.is_trained(index),
                "had_gradient": index in gradients.had_gradient,
                "sparse_bytes": gradients.sparse_bytes.get(index),
            }
            for index, parameter in enumerate(gradients.parameters)
        ]

    def _told_untrained(self) -> dict[str, int]:
        """Size of each module without trained parameters that was called, without what others hold [bytes]."""
        counted = {id(parameter) for parameter in self._gradients.parameters}
        sizes = {}
        for module, parameters in self._models.untrained.items():
            sizes[str(module)] = sum(size for parameter, size in parameters if parameter not in counted)
            counted.update(parameter for parameter, _ in parameters)
        return sizes

    def _is_sharded(self) -> bool:
        below = [type(module).__name__ for root in self._models.roots for module in root.modules()]
        return any(name.startswith(("FullySharded", "FSDP")) for name in below) or any(
            type(parameter).__name__ == "DTensor" for parameter in self._gradients.parameters
        )

    def _told_distributed(self) -> dict[str, Any] | None:
        distributed = self._torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        index = {id(parameter): number for number, parameter in enumerate(self._gradients.parameters)}
        ddps = []
        for ddp in self._models.ddps:
            data = _guarded(ddp._get_ddp_logging_data) or {}
            parameters = [index[id(one)] for one in ddp.parameters() if id(one) in index]
            ddps.append(
                {"parameters": parameters, "data": {str(name): value for name, value in data.items()}}
            )
        return {"world_size": distributed.get_world_size(), "ddps": ddps}

    def _needs_two_samples(self) -> bool:
        batch_norm = self._torch.nn.modules.batchnorm._BatchNorm
        return any(
            isinstance(module, batch_norm) and module.training
            for root in self._models.roots
            for module in root.modules()
        )

    def _told_device(self) -> dict[str, Any]:
        if self.device == "cpu":
            return {"device": "cpu", "hardware": _processor(self._torch.get_num_threads())}
        module = getattr(self._torch, self.device)
        name = getattr(module, "get_device_name", None)
        properties = getattr(module, "get_device_properties", None)
        peak = getattr(module, "max_memory_allocated", None)
        index = module.current_device()
        return {
            "device": self.device,
            "hardware": str(name(index)) if name else self.device,
            "memory_bytes": getattr(properties(index), "total_memory", None) if properties else None,
            "peak_memory_bytes": int(peak(index)) if peak else None,
        }

    def _told_mark_s(self) -> float:
        """What one mark and its note cost on the host [s]."""
        begin = time.perf_counter()
        scratch = []
        for _ in range(100):
            scratch.append((0, self._timeline.mark()))
        return (time.perf_counter() - begin) / 100

    def _told_versions(self) -> dict[str, str]:
        versions = {"python": platform.python_version(), "torch": str(self._torch.__version__)}
        if self.device == "cuda":
            for name in ("cuda", "hip"):
                version = getattr(self._torch.version, name, None)
                if version is not None:
                    versions[name] = str(version)
        for name in _TOLD_PACKAGES:
            version = getattr(sys.modules.get(name), "__version__", None)
            if version is not None:
                versions[name] = str(version)
        return versions

    def _told_checkpoint(self, optimizers: Optimizers) -> dict[str, Any]:
        """Size of model and optimizer state, and the time to save them, up to three times."""
        torch = self._torch
        if self._is_sharded():
            return {}  # saving is a concert of all ranks there
        state = [root.state_dict() for root in self._models.roots]
        state += [optimizer.state_dict() for optimizer in optimizers.current]
        once = {_place(tensor): tensor for tensor in _all_tensors(state, torch.Tensor)}
        size = sum(stored_bytes(tensor) for tensor in once.values())
        told: dict[str, Any] = {"checkpoint_bytes": size, "checkpoint_save_s": []}
        space = os.statvfs(self._beacon.folder)
        if size > min(LARGEST_SAVED_BYTES, space.f_bavail * space.f_frsize // 2):
            return told
        path = os.path.join(self._beacon.folder, f"checkpoint.{os.getpid()}")
        begin = time.perf_counter()
        try:
            while len(told["checkpoint_save_s"]) < 3 and time.perf_counter() - begin < 1:
                start = time.perf_counter()
                torch.save(state, path)
                self._wait_for_device()
                told["checkpoint_save_s"].append(time.perf_counter() - start)
        finally:
            if os.path.exists(path):
                os.remove(path)
        return told


def _told_cut(cut: Cut, optimizers: Optimizers) -> dict[str, Any]:
    begin = cut.marks[0][1]
    return {
        "marks": [[LABELS[label], seconds(begin, mark)] for label, mark in cut.marks],
        "length_s": seconds(begin, cut.end),
        "optimizers": [optimizers.role(number) for number in cut.optimizers],
        "backwards": [[seconds(begin, start), seconds(begin, end)] for start, end in cut.backwards],
        "fired": [[index, seconds(begin, mark)] for index, mark in cut.fired],
        "closure_backwards": cut.closure_backwards,
        "forwards": cut.forwards,
        "no_grad_forwards": cut.no_grad_forwards,
        "untrained_calls": [str(module) for module in cut.untrained_calls],
        "synced_forwards": cut.synced_forwards,
        "rows": cut.rows or cut.loaded_rows,
        "loads": cut.loads,
        "elements": cut.elements or cut.loaded_elements,
        "loader_starts": cut.loader_starts,
        "saves": cut.saves,
        "is_skipped": cut.is_skipped,
        "is_looked_at": cut.is_looked_at,
        "is_hooked": cut.is_hooked,
    }


def _told_compile_s() -> float | None:
    """Time that torch.compile counts itself [s]; None: it was not used, or does not tell."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    spent = utils.calculate_time_spent()
    return float(spent["total_wall_time"]) if spent.get("total_wall_time") else None


def _processor(threads: int) -> str:
    model = platform.processor() or platform.machine() or "unknown processor"
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    model = line.partition(":")[2].strip()
                    break
    except OSError:
        pass  # not Linux
    return f"{model}, {threads} thread{'s' if threads != 1 else ''}"


def _cpu_count() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _place(tensor: Any) -> Any:
    try:
        return (str(tensor.device), tensor.data_ptr() or id(tensor))
    except RuntimeError:  # sparse and other tensors without one place
        return id(tensor)


def _all_tensors(state: Any, kind: type) -> Iterator[Any]:
    if isinstance(state, kind):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _all_tensors(value, kind)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _all_tensors(value, kind)


def _guarded(tell: Any) -> Any:
    """What `tell` gives; None where it fails: a part of the record may be missing, the rest may not."""
    try:
        return tell()
    except Exception:
        return None
