"""Memory that a process and all that stem from it take, watched from outside while they run.

No limit is put on them: one that each process has alone says nothing of their sum, and counts files that are mapped
and memory that is only reserved.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from srifty.profiling.host_memory import available_bytes, figures

_LOOK_EVERY_S = 0.1
_LARGEST_SHARE = 0.2
"""Of the time, that looking at shared memory may take: the kernel goes through all pages for that."""


@dataclass
class TreeMemory:
    """What a tree of processes takes, and when that is too much.

    Attributes:
        limit_bytes: more than this is too much
        reserve_bytes: so is what leaves less than this on the machine, whoever took it
        peak_bytes: the most that was seen; None: nothing, as where there is no /proc
        said: why it was too much; "": it was not
    """

    limit_bytes: int
    reserve_bytes: int
    peak_bytes: int | None = None
    said: str = ""
    _next_look_at: float = field(default=0.0, repr=False)
    _next_count_at: float = field(default=0.0, repr=False)

    def is_due(self) -> bool:
        """Whether some time has passed since the last look."""
        return time.monotonic() >= self._next_look_at

    def is_too_much(self, processes: Collection[int]) -> bool:
        """Look at what these processes take."""
        self._next_look_at = time.monotonic() + _LOOK_EVERY_S
        taken = self._taken_bytes(processes)
        if taken is not None:
            self.peak_bytes = max(taken, self.peak_bytes or 0)
            if taken > self.limit_bytes:
                self.said = f"it took {taken / 2**30:.1f} GiB of memory, of {self.limit_bytes / 2**30:.1f} that it may"
        if available_bytes() < self.reserve_bytes:
            self.said = "the machine ran short of memory"
        return self.said != ""

    def _taken_bytes(self, processes: Collection[int]) -> int | None:
        """The most of any one process up to now, or what all take now, if that is more."""
        most = {process: _most_bytes(process) for process in processes}
        known = {process: count for process, count in most.items() if count is not None}
        if not known:
            return None
        largest, now = max(known.values()), time.monotonic()
        if sum(known.values()) <= max(self.peak_bytes or 0, largest) or now < self._next_count_at:
            return largest
        taken = sum(_proportional_bytes(process, bound) for process, bound in known.items())
        self._next_count_at = now + (time.monotonic() - now) / _LARGEST_SHARE
        return max(taken, largest)


def _most_bytes(process: int) -> int | None:
    """The most that it has had resident, but for mapped files [bytes]; None: it has gone."""
    told = figures(Path(f"/proc/{process}/status"))
    if "RssAnon" not in told:
        return None
    return max(told["RssAnon"] + told.get("RssShmem", 0), told.get("VmHWM", 0) - told.get("RssFile", 0))


def _proportional_bytes(process: int, bound: int) -> int:
    """What it takes, with its part of what it shares [bytes]; where that is not told, with all of it."""
    told = figures(Path(f"/proc/{process}/smaps_rollup"))
    if "Pss_Anon" in told:
        return told["Pss_Anon"] + told.get("Pss_Shmem", 0)
    return min(told.get("Pss", bound), bound)
