"""Parts of records as people read them."""

from __future__ import annotations

from srifty.records.cluster import Cluster
from srifty.records.spread import Spread
from srifty.records.text import figures, unit_of_time, usd_text

GIB = 2**30


def time_and_band(spread: Spread) -> tuple[str, str]:
    """Median of a time and its 80 % band, both in the median's unit: ("829 ms", "742-1,200 ms")."""
    if spread.p90 == 0:
        return "0 s", "0 s"
    unit, size = unit_of_time(spread.p50 or spread.p90)
    low, middle, high = (figures(value / size) for value in (spread.p10, spread.p50, spread.p90))
    return f"{middle} {unit}", f"{low}-{high} {unit}"


def usd_and_band(spread: Spread) -> tuple[str, str]:
    """Median of a cost and its 80 % band, in US dollars."""
    return usd_text(spread.p50), f"{usd_text(spread.p10)}-{usd_text(spread.p90)}"


def gpus(cluster: Cluster) -> str:
    """All GPUs of a cluster: "16 T4", "8 V100 + 4 T4"."""
    return " + ".join(f"{group.gpu_count} {group.offer.gpu}" for group in cluster.groups)


def machines(cluster: Cluster) -> str:
    """How many machines a price is for: "the machine", "all 4 machines"."""
    if cluster.node_count <= 2:
        return ("the machine", "both machines")[cluster.node_count - 1]
    return f"all {cluster.node_count} machines"


def places(cluster: Cluster) -> str:
    """Cloud and place: "aws us-east-1"."""
    return ", ".join(dict.fromkeys(f"{group.offer.cloud} {group.offer.place}" for group in cluster.groups))


def shares(cluster: Cluster) -> str:
    """Batch of one GPU, with the micro-steps where there are several: "32", "16 x 4"."""
    accumulation = cluster.groups[0].accumulation_count
    batches = " + ".join(dict.fromkeys(str(group.batch_per_gpu) for group in cluster.groups))
    return batches if accumulation == 1 else f"{batches} x {accumulation}"


def gib(size: int) -> str:
    """Bytes as GiB, MiB or KiB."""
    for unit, length in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= length:
            return f"{figures(size / length)} {unit}"
    return f"{size} bytes"
