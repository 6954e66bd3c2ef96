"""Timeline: what the training thread is doing, as marks in time, cut where an optimizer has stepped.

Of the labels that are active at once the first counts: what a backward pass computes again is backward, and
what an optimizer's closure runs is not the optimizer's. So the labels share a cut among them to the last bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

BACKWARD, DATA, FORWARD, INFERENCE, OPTIMIZER, ZERO_GRAD, OTHER = range(7)
LABELS = ("backward", "data", "forward", "inference", "optimizer", "zero_grad", "other")


class Cut:
    """The time from one step of an optimizer to the next, and what happened in it."""

    def __init__(self, begin: Any) -> None:
        self.marks: list[tuple[int, Any]] = [(OTHER, begin)]
        self.end: Any = begin
        self.host_s = 0.0
        self.optimizers: list[int] = []
        self.backwards: list[tuple[Any, Any]] = []
        self.closure_backwards = 0
        self.forwards = 0
        self.no_grad_forwards = 0
        self.untrained_calls: list[int] = []
        self.synced_forwards = 0
        self.rows: list[int] = []
        self.loaded_rows: list[int] = []
        self.loads: list[tuple[int, int]] = []
        self.elements = 0
        self.loaded_elements = 0
        self.loader_starts = 0
        self.saves = 0
        self.is_skipped = False
        self.is_looked_at = False
        self.is_hooked = False
        self.fired: list[tuple[int, Any]] = []


class Timeline:
    """The cut under way; one thread's, that which trains."""

    def __init__(self) -> None:
        self.mark: Callable[[], Any] = time.perf_counter
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a fork."""
        self.depth = [0] * OTHER
        self.cut: Cut | None = None
        self.cuts: list[Cut] = []
        self.thread: int | None = None
        self.is_over = False
        self.loads_elsewhere = 0
        """Batches that were loaded in another thread of the program."""
        self._top = OTHER

    def is_elsewhere(self) -> bool:
        """Whether the caller is not the thread that trains, or all is over."""
        return self.is_over or (self.thread is not None and threading.get_ident() != self.thread)

    def claim(self) -> None:
        """The calling thread is the one that trains; what another has begun does not count."""
        if self.thread is None:
            self.thread = threading.get_ident()
            self.depth = [0] * OTHER
            self._turn()

    def begin(self) -> Cut:
        """Begin a cut here and now."""
        self.cut = Cut(self.mark())
        self._top = OTHER
        self._turn()
        return self.cut

    def enter(self, label: int) -> None:
        """What `label` names begins."""
        if self.cut is None:
            self.begin()
        self.depth[label] += 1
        if self.depth[label] == 1:
            self._turn()

    def leave(self, label: int) -> None:
        """What `label` names ends."""
        if self.depth[label] > 0:
            self.depth[label] -= 1
            if self.depth[label] == 0:
                self._turn()

    def _turn(self) -> None:
        depth = self.depth
        top = OTHER
        for label in range(OTHER):
            if depth[label]:
                top = label
                break
        if top != self._top and self.cut is not None:
            self._top = top
            self.cut.marks.append((top, self.mark()))

    def use_events(self, new_event: Callable[[], Any]) -> None:
        """Mark by events in a device's stream from now on: the host runs ahead of a GPU."""

        def mark() -> Any:
            event = new_event()
            event.record()
            return event

        self.mark = mark


def seconds(start: Any, end: Any) -> float:
    """From one mark to another [s]; 0 between a time of the host and an event of a device."""
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    if isinstance(start, float) or isinstance(end, float):
        return 0.0
    return float(start.elapsed_time(end)) / 1000
