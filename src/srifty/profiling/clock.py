"""Clock: marks in the stream of work, since a GPU is still busy when the program that feeds it goes on.

Marks on a GPU are events in its own stream, so nothing waits while a block of steps is timed; the first
`between` after the block waits, once (waiting in every step is what distorts such timings most).
"""

from __future__ import annotations

import time

import torch

Mark = float | torch.Event


class Clock:
    """Tells the time between two points of the work on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Mark:
        """Where the work stands now: the time on a CPU, an event in the current stream of a GPU."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def between(self, start: Mark, end: Mark) -> float:
        """Time from one mark to a later one [s]; waits until the work up to `end` is done."""
        if isinstance(start, float) and isinstance(end, float):
            return end - start
        assert isinstance(start, torch.Event)  # noqa: S101 - marks of one clock are of one type
        assert isinstance(end, torch.Event)  # noqa: S101
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000  # events tell milliseconds
