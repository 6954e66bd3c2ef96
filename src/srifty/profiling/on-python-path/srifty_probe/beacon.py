"""Beacon: a small file by which a process says that it is there, and what it has seen so far.

From the beacons Srifty tells "the environment never arrived" from "nothing ever stepped".
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from typing import Any

_AGAIN_AFTER_S = 0.5


def write_whole(path: str, content: dict[str, Any]) -> None:
    """Write a JSON file that is there whole or not at all."""
    partial = path + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(partial, path)


class Beacon:
    """What one process has seen; `seen` grows and is written from time to time."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.clear()

    def clear(self) -> None:
        """Begin anew, as after a fork."""
        self.seen: dict[str, Any] = {
            "pid": os.getpid(),
            "arguments": list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", None) or []),
            "executable": sys.executable,
            "torch": None,
            "batches_loaded": 0,
            "backwards": 0,
            "optimizer_steps": 0,
            "steps": 0,
            "fault": None,
        }
        self._written_at = 0.0

    def write(self) -> None:
        """Write what was seen; a folder that has gone is no matter."""
        self._written_at = time.perf_counter()
        with contextlib.suppress(OSError):
            write_whole(os.path.join(self.folder, f"process.{os.getpid()}.json"), self.seen)

    def write_now_and_then(self) -> None:
        """Write, unless that was done within the last half second."""
        if time.perf_counter() - self._written_at > _AGAIN_AFTER_S:
            self.write()

    def fault(self) -> None:
        """Note the exception under way: a fault of the probe's own, which must not stop the user's program."""
        self.seen["fault"] = traceback.format_exc()
        self.write()
