"""IterationSpan and IterationTrace: what happens when in one predicted iteration, for a picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Lane(StrEnum):
    """What of a GPU is busy."""

    COMPUTE = "compute"
    EXCHANGE = "exchange"


@dataclass(frozen=True)
class IterationSpan:
    """One thing that a rank does, from when to when; an exchange is every rank's."""

    rank: int | None
    """None: all ranks take part."""
    lane: Lane
    slot: int
    """Which of the exchanges at once, from 0."""
    what: str
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.start_s + self.duration_s


@dataclass(frozen=True)
class IterationTrace:
    """Spans of one iteration, and whose they are."""

    rank_names: tuple[str, ...]
    spans: tuple[IterationSpan, ...]

    @property
    def step_s(self) -> float:
        """Length of the iteration: the last end."""
        return max((span.end_s for span in self.spans), default=0.0)
