"""Measured exchanges for people: how long, and what part of a second a byte takes."""

from __future__ import annotations

from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srifty.records.network_profile import AllReduceSample, NetworkProfile
from srifty.records.text import counted, duration_text, figures, size_text

SHOWN_BYTES = (2**10, 2**20, 2**23, 2**25, 2**28)
"""Of the sizes measured, those nearest to these are shown."""


def network_table(profile: NetworkProfile, *, width: int = 80) -> RenderableType:
    """One row a group of ranks and size: the median, its spread, and the rate of each rank's link.

    Args:
        profile: what was measured
        width: columns of the terminal; a narrow one is not told the spread
    """
    groups: dict[tuple[int, int, int], dict[int, list[AllReduceSample]]] = {}
    for sample in profile.samples:
        key = (sample.node_count, sample.gpu_count, sample.concurrency)
        groups.setdefault(key, {}).setdefault(sample.message_bytes, []).append(sample)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    headings = ["nodes", "GPUs", "at once", "message", "time", "slowest", "rate, Gbit/s"]
    for heading in headings:
        if heading != "slowest" or width >= 70:
            table.add_column(heading, justify="right", no_wrap=True)
    for (nodes, gpus, concurrency), sizes in sorted(groups.items()):
        shown = {min(sizes, key=lambda size: abs(size - asked)) for asked in SHOWN_BYTES}
        for size in sorted(shown):
            seconds = [sample.duration_s for sample in sizes[size]]
            rate = 2 * (gpus - 1) / gpus * size * concurrency / median(seconds) * 8e-9
            cells = [str(nodes), str(gpus), str(concurrency), size_text(size), duration_text(median(seconds))]
            cells += [duration_text(max(seconds))] if width >= 70 else []
            table.add_row(*cells, figures(rate))
    first = profile.samples[0]
    heading = (
        f"AllReduce on {' + '.join(first.instance_types)}, {first.backend} {first.backend_version or ''}"
    )
    said = (
        f"{counted(len(profile.samples), 'reading')} of {counted(sum(map(len, groups.values())), 'exchange')}; "
        f"the rate is that of each link, were it a ring"
    )
    return Group(Text(heading.strip(), style="bold"), table, Text(said))
