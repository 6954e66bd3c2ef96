"""A predicted iteration as Chrome's trace: what a viewer needs of it."""

from __future__ import annotations

import json

from srifty.records.iteration_span import IterationSpan, IterationTrace, Lane
from srifty.reporting.chrome_trace import chrome_trace

TRACE = IterationTrace(
    rank_names=("1 x a", "2 x b"),
    spans=(
        IterationSpan(0, Lane.COMPUTE, 0, "forward", 0.0, 0.5),
        IterationSpan(0, Lane.COMPUTE, 0, "backward", 0.5, 0.25),
        IterationSpan(0, Lane.COMPUTE, 0, "backward", 0.75, 0.25),
        IterationSpan(1, Lane.COMPUTE, 0, "forward", 0.0, 1 / 3),
        IterationSpan(None, Lane.EXCHANGE, 0, "all-reduce of bucket 1", 0.75, 0.5),
        IterationSpan(None, Lane.EXCHANGE, 1, "all-reduce of bucket 2", 1.0, 0.5),
    ),
)


def test_a_trace_is_what_chrome_reads():
    made = json.loads(json.dumps(chrome_trace(TRACE, title="a title")))
    complete = [event for event in made["traceEvents"] if event["ph"] == "X"]
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in made["traceEvents"] if e["name"] == "thread_name"
    }
    assert names == {(p, t): n for p in (0, 1) for t, n in enumerate(("compute", "exchange 1", "exchange 2"))}
    assert {(event["pid"], event["tid"]) for event in complete} <= set(names)
    assert made["otherData"]["title"] == "a title"
    first = [(e["name"], e["ts"], e["dur"]) for e in complete if (e["pid"], e["tid"]) == (0, 0)]
    assert first == [
        ("forward", 0, 500_000),
        ("backward", 500_000, 500_000),
    ]  # pieces of one pass are one event
    assert [e["dur"] for e in complete if (e["pid"], e["tid"]) == (1, 0)] == [333_333.333]
    assert [e["ts"] for e in complete if e["cat"] == "exchange"] == [750_000, 1_000_000] * 2  # every rank's


def test_a_single_slot_is_not_numbered():
    one_slot = IterationTrace(TRACE.rank_names, TRACE.spans[:5])
    names = [e["args"]["name"] for e in chrome_trace(one_slot, title="")["traceEvents"] if e["ph"] == "M"]
    assert names == ["1 x a", "compute", "exchange", "2 x b", "compute", "exchange"]
