"""Host memory: how much of it can still be had, what a process took, and a limit before the machine swaps.

On the CPU this is the memory of the device. Everywhere else it is what batches are made in.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

if sys.platform != "win32":
    import resource

_NO_LIMIT_BYTES = 2**60
"""A control group of the first version tells "no limit" as a number of this size."""


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that this process can take before the machine swaps or a limit stops it [bytes].

    The least of what is free or can be freed at once, what the control groups (containers, batch systems) leave
    and what the process's own limits leave. Where the system does not tell what is free: half of its memory.

    Args:
        root: where /proc and /sys are looked for
    """
    told = [_free(root), *_left_by_control_groups(root), *_left_by_limits(root)]
    known = [max(0, left) for left in told if left is not None]
    return min(known) if known else _half()


def resident_peak_bytes(root: Path = Path("/")) -> int:
    """Most memory that this process has had resident [bytes].

    Not from `getrusage` where it can be helped: on Linux its figure begins with that of the process that
    started this one.
    """
    peak = figures(root / "proc/self/status").get("VmHWM")
    if peak is None:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
    return peak


def forget_resident_peak() -> None:
    """Start to look for the resident peak anew, where the kernel can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def limit_further_data(further_bytes: int) -> None:
    """Let this process allocate this much more and then fail, as if there were no more memory [bytes].

    The limit is on data, not on the address space: files that are mapped to be read, and what is only
    reserved, do not count. Nothing happens where the system does not tell how much data there is now.
    """
    now = figures(Path("/proc/self/status")).get("VmData")
    if now is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = now + further_bytes
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _free(root: Path) -> int | None:
    return figures(root / "proc/meminfo").get("MemAvailable")


def _half() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _left_by_limits(root: Path) -> list[int]:
    used = figures(root / "proc/self/status")
    left = []
    for limit, what in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            left.append(soft - used.get(what, 0))
    return left


def _left_by_control_groups(root: Path) -> list[int]:
    """What each group that the process is in leaves, from its own up to the outermost that can be seen."""
    left = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("", "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        mount, limit_name, used_name, freed_name = names
        top = root / "sys/fs/cgroup" / mount
        parts = Path(path.lstrip("/")).parts
        # In a container the path is the host's, and only the group at the top can be seen.
        for depth in range(len(parts), -1, -1):
            group = top.joinpath(*parts[:depth])
            limit, used = _number(group / limit_name), _number(group / used_name)
            if limit is not None and used is not None and limit < _NO_LIMIT_BYTES:
                left.append(limit - used + _statistic(group / "memory.stat", freed_name))
    return left


def figures(path: Path) -> dict[str, int]:
    """Lines such as "VmHWM:  12 kB", in bytes; none where there is no such file."""
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        parts = value.split()
        if len(parts) == 2 and parts[1] == "kB" and parts[0].isdigit():
            found[name] = int(parts[0]) * 1024
    return found


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max": no limit


def _statistic(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
