"""One iteration, event by event: what every rank does when, for one cluster at a time.

`iteration_simulator` tells the same on columns for many clusters; this is slower by far, easier to follow, and the
second opinion that the columns are held to. It gives the spans of which a picture is made, and any scheme of
exchange can be written for it as a list of work and a list of exchanges (`exchange_schemes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from srifty.records.iteration_span import IterationSpan, Lane


@dataclass(frozen=True)
class Work:
    """Something that a rank does by itself; a rank does its work in order."""

    what: str
    duration_s: float
    """Without an exchange beside it."""
    needs: int = 0
    """Exchanges, counted from the first, that must be over before it begins."""
    is_wait: bool = False
    """Waiting, for data or for the slowest; an exchange does not slow it."""


@dataclass(frozen=True)
class Exchange:
    """Something that all ranks do together; exchanges begin in their order."""

    what: str
    duration_s: float
    after: int
    """Works, counted from the first, that every rank must have done before it begins."""


@dataclass(frozen=True)
class StepScript:
    """What is done in one step: the work of each rank, and what they exchange."""

    ranks: tuple[tuple[Work, ...], ...]
    exchanges: tuple[Exchange, ...]


def simulate_events(
    script: StepScript, *, slot_count: int = 1, slow_down: float = 1.0
) -> tuple[IterationSpan, ...]:
    """Spans of one step, in the order of their ends; what takes no time leaves none.

    A rank begins its next work when the exchanges that it needs are over. The next exchange begins when every rank
    has done the work before it and one of the slots is free. While any exchange is in flight, compute takes
    `slow_down` times as long on every rank.

    Args:
        script: what is to be done; all ranks begin together
        slot_count: exchanges that may be in flight at once, each as fast as alone
        slow_down: factor >= 1 on compute beside an exchange

    Raises:
        ValueError: a script in which work and exchanges wait for one another for ever
    """
    now = 0.0
    done = [0] * len(script.ranks)
    at_work: dict[int, _Running] = {}
    in_flight: dict[int, _Running] = {}
    is_over = [False] * len(script.exchanges)
    begun_count = 0
    spans = []
    while True:
        for r, works in enumerate(script.ranks):
            if r not in at_work and done[r] < len(works) and all(is_over[: works[done[r]].needs]):
                at_work[r] = _Running(begun_s=now, left_s=works[done[r]].duration_s)
        while (
            begun_count < len(script.exchanges)
            and len(in_flight) < slot_count
            and min(done) >= script.exchanges[begun_count].after
        ):
            taken = {running.slot for running in in_flight.values()}
            free = next(slot for slot in range(slot_count) if slot not in taken)
            in_flight[begun_count] = _Running(now, script.exchanges[begun_count].duration_s, free)
            begun_count += 1
        if not at_work and not in_flight:
            break
        compute_pace = 1 / slow_down if in_flight else 1.0
        pace = {r: 1.0 if script.ranks[r][done[r]].is_wait else compute_pace for r in at_work}
        until_end = [running.left_s / pace[r] for r, running in at_work.items()]
        until_end += [running.left_s for running in in_flight.values()]
        passed = min(until_end)
        now += passed
        for r in _passed(at_work, passed, pace):
            work = script.ranks[r][done[r]]
            spans.append(at_work.pop(r).span(r, Lane.COMPUTE, work.what, now))
            done[r] += 1
        for k in _passed(in_flight, passed, {}):
            spans.append(in_flight.pop(k).span(None, Lane.EXCHANGE, script.exchanges[k].what, now))
            is_over[k] = True
    if not all(is_over) or done != [len(works) for works in script.ranks]:
        raise ValueError("the script has work and exchanges that wait for one another for ever")
    return tuple(span for span in spans if span.duration_s > 0)


def no_work_s(spans: Sequence[IterationSpan]) -> float:
    """Time within a step at which no rank does any work, because all wait for an exchange [s]."""
    free, end = 0.0, 0.0
    for span in sorted(spans, key=lambda span: span.start_s):
        if span.lane is Lane.COMPUTE:
            free += max(0.0, span.start_s - end)
            end = max(end, span.end_s)
    return free + max(0.0, max((span.end_s for span in spans), default=0.0) - end)


@dataclass
class _Running:
    """What is under way, and how much of it is left at its own pace."""

    begun_s: float
    left_s: float
    slot: int = 0

    def span(self, rank: int | None, lane: Lane, what: str, now: float) -> IterationSpan:
        return IterationSpan(rank, lane, self.slot, what, self.begun_s, now - self.begun_s)


def _passed(running: dict[int, _Running], seconds: float, pace: dict[int, float]) -> list[int]:
    """Let time pass; tells which of them are over."""
    over = []
    for key, each in running.items():
        progress = seconds * pace.get(key, 1.0)
        # What is left after rounding is nothing.
        if each.left_s <= progress * (1 + 1e-12):
            over.append(key)
        else:
            each.left_s -= progress
    return over
