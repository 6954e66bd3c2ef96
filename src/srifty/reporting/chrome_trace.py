"""A predicted iteration in Chrome's trace format, to be looked at in Perfetto or chrome://tracing.

The format is Google's "Trace Event Format": complete events (`ph` "X"), times in microseconds, a process a rank and
a thread a lane.
"""

from __future__ import annotations

from typing import Any

from srifty.records.iteration_span import IterationSpan, IterationTrace, Lane


def chrome_trace(trace: IterationTrace, *, title: str) -> dict[str, Any]:
    """The trace as a JSON object. A row of compute and one of exchange (one a slot) for each rank.

    Args:
        trace: spans of one iteration; pieces of one name that follow one another become one event
        title: what it is a trace of
    """
    slots = 1 + max((span.slot for span in trace.spans), default=0)
    events: list[dict[str, Any]] = []
    for rank, name in enumerate(trace.rank_names):
        events.append(_named("process_name", rank, 0, name))
        events.append(_named("thread_name", rank, 0, "compute"))
        for slot in range(slots):
            several = f" {slot + 1}" if slots > 1 else ""
            events.append(_named("thread_name", rank, slot + 1, f"exchange{several}"))
        for thread in range(slots + 1):
            own = sorted(
                (span for span in trace.spans if _is_on(span, rank, thread)), key=lambda span: span.start_s
            )
            events += [_event(rank, thread, *piece) for piece in _joined(own)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title}}


def _is_on(span: IterationSpan, rank: int, thread: int) -> bool:
    if span.lane is Lane.COMPUTE:
        return thread == 0 and span.rank == rank
    return thread == span.slot + 1


def _joined(spans: list[IterationSpan]) -> list[tuple[str, float, float]]:
    """(name, start, end) of each span, those joined that go on under the same name."""
    joined: list[tuple[str, float, float]] = []
    for span in spans:
        if (
            joined
            and joined[-1][0] == span.what
            and span.start_s - joined[-1][2] < 1e-12 + 1e-9 * span.start_s
        ):
            joined[-1] = (span.what, joined[-1][1], span.end_s)
        else:
            joined.append((span.what, span.start_s, span.end_s))
    return joined


def _event(rank: int, thread: int, name: str, start_s: float, end_s: float) -> dict[str, Any]:
    category = "exchange" if thread else "compute"
    start_us, end_us = round(start_s * 1e6, 3), round(end_s * 1e6, 3)  # to a nanosecond
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start_us,
        "dur": round(end_us - start_us, 3),
        "pid": rank,
        "tid": thread,
    }


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
