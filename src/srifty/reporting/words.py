"""Quantities as people read them, each with its unit."""

from __future__ import annotations

from srifty.records.cluster import Cluster
from srifty.records.spread import Spread

GIB = 2**30


def duration(seconds: float) -> str:
    """A length of time with two or three figures that matter: "850 ms", "3.2 h", "2.5 d"."""
    for unit, size, limit in (
        ("us", 1e-6, 1e-3),
        ("ms", 1e-3, 1.0),
        ("s", 1.0, 120.0),
        ("min", 60.0, 7200.0),
    ):
        if seconds < limit:
            return f"{figures(seconds / size)} {unit}"
    return f"{figures(seconds / 3600)} h" if seconds < 72 * 3600 else f"{figures(seconds / 86400)} d"


def figures(value: float) -> str:
    """Three figures that matter, without an exponent: "1,240", "31.4", "0.052"."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1e}"


def usd(amount: float) -> str:
    """Money: cents below 100, whole dollars above."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:,.2f}"


def band(spread: Spread) -> str:
    """The 80 % band of a time: "120-150 ms" in one unit."""
    for unit, size, limit in (
        ("us", 1e-6, 1e-3),
        ("ms", 1e-3, 1.0),
        ("s", 1.0, 120.0),
        ("min", 60.0, 7200.0),
    ):
        if spread.p90 < limit:
            return f"{figures(spread.p10 / size)}-{figures(spread.p90 / size)} {unit}"
    unit, size = ("h", 3600.0) if spread.p90 < 72 * 3600 else ("d", 86400.0)
    return f"{figures(spread.p10 / size)}-{figures(spread.p90 / size)} {unit}"


def gpus(cluster: Cluster) -> str:
    """All GPUs of a cluster: "16 T4", "8 V100 + 4 T4"."""
    return " + ".join(f"{group.gpu_count} {group.offer.gpu}" for group in cluster.groups)


def machines(cluster: Cluster) -> str:
    """How many machines a price is for: "the machine", "all 4 machines"."""
    return "the machine" if cluster.node_count == 1 else f"all {cluster.node_count} machines"


def chance_text(chance: float) -> str:
    """A chance that is never rounded into certainty: "93 %", "over 99 %", "under 1 %"."""
    if chance > 0.99:
        return "over 99 %"
    return f"{chance:.0%}".replace("%", " %") if chance >= 0.01 else "under 1 %"


def places(cluster: Cluster) -> str:
    """Cloud and place: "aws us-east-1"."""
    return ", ".join(dict.fromkeys(f"{group.offer.cloud} {group.offer.place}" for group in cluster.groups))


def shares(cluster: Cluster) -> str:
    """Batch of one GPU, with the micro-steps where there are several: "32", "16 x 4"."""
    accumulation = cluster.groups[0].accumulation_count
    batches = " + ".join(dict.fromkeys(str(group.batch_per_gpu) for group in cluster.groups))
    return batches if accumulation == 1 else f"{batches} x {accumulation}"


def gib(size: int) -> str:
    """Bytes as GiB or MiB."""
    return f"{figures(size / GIB)} GiB" if size >= GIB else f"{figures(size / 2**20)} MiB"
