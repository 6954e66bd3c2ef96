"""Clock: seconds on every device, and no waiting inside a block."""

from __future__ import annotations

import time

import pytest
import torch

from srifty.profiling import clock as clock_module
from srifty.profiling.clock import Clock


def test_on_a_cpu_it_tells_the_time_between_two_marks() -> None:
    clock = Clock(torch.device("cpu"))
    start = clock.mark()
    time.sleep(0.02)
    assert 0.02 <= clock.between(start, clock.mark()) < 0.2


def test_on_a_gpu_events_in_milliseconds_become_seconds_and_only_reading_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[str] = []

    class FakeEvent:
        def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at_ms = 0.0

        def record(self) -> None:
            did.append("record")
            self.at_ms = 250.0 * did.count("record")

        def synchronize(self) -> None:
            did.append("wait")

        def elapsed_time(self, end: FakeEvent) -> float:
            return end.at_ms - self.at_ms

    monkeypatch.setattr(clock_module.torch, "Event", FakeEvent)
    clock = Clock(torch.device("cuda", 0))
    marks = [clock.mark() for _ in range(3)]
    assert did == ["record"] * 3
    assert clock.between(marks[0], marks[2]) == 0.5
