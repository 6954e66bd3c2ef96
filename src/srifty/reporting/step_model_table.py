"""A model of steps for people: what it was learned from, how sure it is, and what to measure next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srifty.records.step_model import ProbeAdvice, StepModel
from srifty.records.text import counted

LONG_STEP_S = 5.0
"""If even the shortest step of all jobs takes this long, the table may be in milliseconds."""
LARGEST_DOUBT = 2.0
"""Beyond which a doubt is not told in figures."""


def step_model_table(model: StepModel, advice: Sequence[ProbeAdvice]) -> RenderableType:
    """Each job on each kind of machine: layouts of several GPUs measured, doubt, and what would most lessen it.

    Args:
        model: what was learned
        advice: what to measure next, one for each job of the model
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("job", overflow="fold")
    table.add_column("machine", overflow="fold")
    table.add_column("layouts", justify="right")
    table.add_column("doubt", justify="right")
    table.add_column("measure next")
    table.add_column("doubt then", justify="right")
    nodes = {(m.instance_type, m.gpu): m.node_count for m in model.machines}
    for fit, each in zip(model.jobs, advice, strict=True):
        layouts = ", ".join("+".join(map(str, layout)) for layout in each.layouts)
        then = _doubt(each.doubt_then) if each.layouts else ""
        now = _doubt(each.doubt_now)
        measured = str(fit.layout_count) if fit.layout_count else "one GPU"
        table.add_row(fit.job, fit.instance_type, measured, now, layouts or "-", then)
    said = [
        "doubt: of a step on up to four machines (or as many as were measured, up to 16), half of the 80 % band; "
        "each layout at the smallest and the largest batch"
    ]
    few = sorted({machine for (machine, _), count in nodes.items() if count <= 2})
    if few and any(each.layouts for each in advice):
        said.append(
            f"{', '.join(few)}: no cluster of three machines was measured; two can exchange slower than three or "
            f"more, so that probes of one and two mislead about larger clusters"
        )
    heading = (
        f"learned from {counted(model.row_count, 'step')}: {counted(len({f.job for f in model.jobs}), 'job')} on "
        f"{counted(len(model.machines), 'kind')} of machine"
    )
    shortest = min(model.jobs, key=lambda fit: fit.shortest_s)
    loud = []
    if shortest.shortest_s >= LONG_STEP_S:
        loud = [
            Text(
                f"step_s looks like milliseconds: the shortest step, of job {shortest.job}, takes "
                f"{shortest.shortest_s:.3g} s on one GPU; if these are milliseconds, divide step_s (and "
                f"exposed_allreduce_s) by 1000 and fit again; if they are seconds, all is well",
                style="bold yellow",
            ),
            Text(),
        ]
    return Group(Text(heading, style="bold"), Text(), *loud, table, Text(), Text("\n".join(said)))


def _doubt(log_sd: float) -> str:
    """Half of an 80 % band, as a share of the step."""
    wide = 1.2816 * log_sd
    return f"+-{100 * wide:.0f} %" if wide < LARGEST_DOUBT else "unknown"
