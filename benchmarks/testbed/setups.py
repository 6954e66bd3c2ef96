"""Setups: which ranks, links and devices take part in one measurement, and how the product is asked about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import groupby

from srifty.clouds.testbed_network import Shape
from srifty.records import Cluster, Market, NodeGroup, Offer

GBIT = 1e9 / 8
TOP_BYTES_PER_S = 12 * GBIT
"""All links of a setup together: beyond it two cores do not keep up."""


@dataclass(frozen=True)
class BedNode:
    """A node of a setup.

    Attributes:
        rate_gbit: of its link, both ways
        ranks: GPUs
        speed: of its device, against the job's times
        batch: of each rank
        network: what besides its own rate shapes the network: "" (ideal), "uplink" (two racks), "credits", "traffic"
    """

    rate_gbit: float
    ranks: int = 1
    speed: float = 1.0
    batch: int = 32
    network: str = ""

    @property
    def instance_type(self) -> str:
        """The type that offers give: one a rate, number of GPUs, device and kind of network."""
        network = f"-{self.network}" if self.network else ""
        return f"bed.{self.rate_gbit:g}g.{self.ranks}x{self.gpu.removeprefix('cpu-')}{network}"

    @property
    def gpu(self) -> str:
        """The device's name."""
        return f"cpu-{self.speed:g}"


@dataclass(frozen=True)
class Setup:
    """One measured configuration; `group` says in which part of the table it counts."""

    job: str
    nodes: tuple[BedNode, ...]
    group: str = "ideal"
    uplink_gbit: float | None = None
    noise: float = 0.0
    accumulation: int = 1

    @property
    def key(self) -> str:
        """What it is, as text: the same setup has the same."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def world(self) -> int:
        """Ranks in all."""
        return sum(node.ranks for node in self.nodes)

    @property
    def cluster(self) -> Cluster:
        """The cluster that the product is asked about."""
        groups = []
        for _, alike in groupby(sorted(self.nodes, key=repr)):
            nodes = list(alike)
            groups.append(
                NodeGroup(
                    offer=offer(nodes[0]),
                    node_count=len(nodes),
                    batch_per_gpu=nodes[0].batch,
                    accumulation_count=self.accumulation,
                )
            )
        return Cluster(groups=tuple(groups))

    def shapes(self) -> list[Shape]:
        """The shape of each node's link."""
        return [Shape(node.rate_gbit * GBIT) for node in self.nodes]


def offer(node: BedNode) -> Offer:
    """A node as something that can be rented."""
    return Offer(
        cloud="testbed",
        region="here",
        instance_type=node.instance_type,
        gpu=node.gpu,
        gpu_count=node.ranks,
        gpu_memory_bytes=2**34,
        vcpu_count=2,
        network_bytes_per_s=node.rate_gbit * GBIT,
        gpu_link=None,
        market=Market.ON_DEMAND,
        usd_per_hour=round(0.1 + 0.2 * node.rate_gbit + 0.5 * node.speed * node.ranks, 4),
        price_as_of=date(2026, 1, 1),
        source="made up for the testbed",
    )


def uniform(job: str, count: int, rate_gbit: float, batch: int, **more: object) -> Setup:
    """So many equal nodes."""
    ranks = int(str(more.pop("ranks", 1)))
    return Setup(job, (BedNode(rate_gbit, ranks=ranks, batch=batch),) * count, **more)  # type: ignore[arg-type]


def mixed(job: str, nodes: Sequence[BedNode], group: str) -> Setup:
    """Unlike nodes."""
    return Setup(job, tuple(nodes), group)
