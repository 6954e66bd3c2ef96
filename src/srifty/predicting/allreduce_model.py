"""AllReduceModel: how long the gradients of a bucket take to exchange, round a ring or node by node.

The rates are what the catalogue says times an efficiency that was measured elsewhere, since the rate that
is sold is never the rate that an exchange gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Efficiency:
    """Share of a nominal rate that an exchange gets, and the doubt about it on a machine never measured."""

    share: float
    log_sd: float
    latency_s: float
    """For one of the 2 (k - 1) steps round the ring."""
    source: str


# benchmarks/accuracy prints how each figure follows from published measurements; the doubts are wider than what
# was seen there, since those are few machines of one cloud and yours may be another.
TCP = Efficiency(share=0.85, log_sd=0.50, latency_s=25e-6, source="NCCL over TCP, 4 and 16 x p3.2xlarge")
FABRIC = Efficiency(
    share=0.65,
    log_sd=0.35,
    latency_s=4.8e-6,
    source="NCCL over EFA: 80 of 100 Gbit/s on 2 machines and 50 to 60 on 8 to 32 (NVIDIA/nccl#235), 70 % of "
    "InfiniBand's on 8 and 60 % on 16 (aws-ofi-nccl#19); at least 65 % on 2 x p5.48xlarge",
)
NVLINK = Efficiency(share=0.90, log_sd=0.20, latency_s=2.2e-6, source="NCCL in one p5.48xlarge")
PCIE = Efficiency(
    share=0.085,
    log_sd=0.50,
    latency_s=10e-6,
    source="DDP steps in one machine of 8 RTX 2080 Ti or 4 RTX 6000",
)
GLOO = Efficiency(
    share=0.46,
    log_sd=0.50,
    latency_s=100e-6,
    source="gloo over TCP, 2 to 16 x c5.18xlarge, p3.2xlarge, p3.16xlarge",
)

FABRIC_BYTES_PER_S = 100e9 / 8
"""Networks of this rate and more are taken for fabrics made for collectives (EFA, InfiniBand, RoCE)."""
NODE_LATENCY_S = 60e-6
"""For one level of a tree of nodes joined by a fabric, one way; from 2 x p5.48xlarge over EFA."""
TCP_FLOW_BYTES_PER_S = 10e9 / 8
"""What one TCP flow gets in a placement group, whatever the machine's own rate; a ring is one flow."""


@dataclass(frozen=True)
class LinkTime:
    """How long one kind of link is busy with an exchange: latency + bytes x seconds_per_byte, one a cluster."""

    latency_s: Floats
    seconds_per_byte: Floats

    def busy_s(self, bucket_bytes: Floats) -> Floats:
        """With an exchange of each bucket [bytes], one after the other [s]."""
        return len(bucket_bytes) * self.latency_s + float(bucket_bytes.sum()) * self.seconds_per_byte


@dataclass(frozen=True)
class AllReduceModel:
    """Exchange time of each cluster, and the doubt about it.

    An exchange is cut into pieces that pass the links inside the nodes and the network between them at the same
    time, so the slower of the two sets its rate, while the latencies add:

        duration = sum of latencies + bytes x max(seconds_per_byte)
    """

    inside: LinkTime
    """Links between the GPUs of a node."""
    across: LinkTime
    """Network between nodes."""
    log_sd: Floats
    """Doubt about all of it, as the standard deviation of the logarithm, one a cluster."""

    @property
    def latency_s(self) -> Floats:
        """For one AllReduce of any size [s], one a cluster."""
        return self.inside.latency_s + self.across.latency_s

    @property
    def seconds_per_byte(self) -> Floats:
        """[s/byte], one a cluster."""
        return np.maximum(self.inside.seconds_per_byte, self.across.seconds_per_byte)


def allreduce(
    node_count: Ints,
    gpu_count: Ints,
    most_gpus_per_node: Ints,
    network_bytes_per_s: Floats,
    gpu_link_bytes_per_s: Floats,
    link_is_nvlink: NDArray[np.bool_],
    on_cpu: NDArray[np.bool_],
) -> AllReduceModel:
    """AllReduce of a bucket, in the form that each cluster's links call for.

    Two nodes with NVLink inside and a fabric between exchange node by node (`hierarchical_allreduce`): NCCL takes its
    tree there, which puts half as much on the network (NVIDIA/nccl#946). Published times show it: for messages of
    1 GiB and more a ring would need 1.09 to 1.22 times the network that two p5.48xlarge have.

    All else goes round the ring through all GPUs (`ring_allreduce`): on three nodes and more NCCL takes rings for
    large messages (NVIDIA/nccl-tests#160); of four p4d.24xlarge the ring's rate explains 64 of 70 ms for 1 GiB, node
    by node 50 (NVIDIA/nccl#527). On GPUs joined by PCIe and nodes by TCP, published steps follow the number of GPUs
    and hardly that of nodes. NVLink with plain TCP was not measured, and is given the slower form.

    Args:
        node_count: nodes of each cluster
        gpu_count: GPUs of each cluster; 1 exchanges nothing
        most_gpus_per_node: of the largest node
        network_bytes_per_s: sustained rate of the slowest node's network [bytes/s]; inf for one node
        gpu_link_bytes_per_s: nominal rate of the slowest GPU link [bytes/s]; inf for one GPU a node
        link_is_nvlink: whether that GPU link is of the NVLink kind; else PCIe
        on_cpu: whether the ranks are CPUs, which exchange through gloo
    """
    ring = ring_allreduce(gpu_count, network_bytes_per_s, gpu_link_bytes_per_s, link_is_nvlink, on_cpu)
    by_node = (node_count == 2) & _is_fabric(network_bytes_per_s) & ~on_cpu
    by_node &= link_is_nvlink & (most_gpus_per_node > 1)
    if not by_node.any():
        return ring
    tree = hierarchical_allreduce(node_count, most_gpus_per_node, network_bytes_per_s, gpu_link_bytes_per_s)

    def chosen(of_tree: LinkTime, of_ring: LinkTime) -> LinkTime:
        return LinkTime(
            np.where(by_node, of_tree.latency_s, of_ring.latency_s),
            np.where(by_node, of_tree.seconds_per_byte, of_ring.seconds_per_byte),
        )

    return AllReduceModel(
        inside=chosen(tree.inside, ring.inside),
        across=chosen(tree.across, ring.across),
        log_sd=np.where(by_node, tree.log_sd, ring.log_sd),
    )


def ring_allreduce(
    gpu_count: Ints,
    network_bytes_per_s: Floats,
    gpu_link_bytes_per_s: Floats,
    link_is_nvlink: NDArray[np.bool_],
    on_cpu: NDArray[np.bool_],
) -> AllReduceModel:
    """AllReduce of a bucket over the ring through all k GPUs of each cluster.

        duration = 2 (k - 1) latency + 2 (k - 1) / k x bytes / rate
        rate = min over the links of the ring of (share of the nominal rate that an exchange gets)

    The ring passes every GPU, and every node's network once in and once out, so k counts GPUs, every link carries
    the same bytes and the slowest sets the rate (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", 2009).

    Args:
        gpu_count: k, GPUs of each cluster; 1 exchanges nothing
        network_bytes_per_s, gpu_link_bytes_per_s, link_is_nvlink, on_cpu: as for `allreduce`

    Assumes one exchange at a time and no other traffic. Below `FABRIC_BYTES_PER_S` the network is taken to
    carry plain TCP, where one flow is capped.
    """
    is_fabric = _is_fabric(network_bytes_per_s)
    network = np.where(is_fabric, network_bytes_per_s, np.minimum(network_bytes_per_s, TCP_FLOW_BYTES_PER_S))
    across = _chosen(on_cpu, GLOO, is_fabric, FABRIC, TCP)
    inside = _chosen(on_cpu, GLOO, link_is_nvlink, NVLINK, PCIE)
    network_rate = network * across["share"]
    link_rate = gpu_link_bytes_per_s * inside["share"]

    # In every step round the ring some pair of ranks crosses the network, so its latency counts each time.
    has_network = np.isfinite(network_bytes_per_s)
    latency = 2.0 * (gpu_count - 1) * np.where(has_network, across["latency_s"], inside["latency_s"])
    bytes_a_byte = 2.0 * (gpu_count - 1) / gpu_count
    return AllReduceModel(
        inside=LinkTime(np.where(has_network, 0.0, latency), bytes_a_byte / link_rate),
        across=LinkTime(np.where(has_network, latency, 0.0), bytes_a_byte / network_rate),
        log_sd=np.where(has_network & (network_rate <= link_rate), across["log_sd"], inside["log_sd"]),
    )


def hierarchical_allreduce(
    node_count: Ints, gpus_per_node: Ints, network_bytes_per_s: Floats, gpu_link_bytes_per_s: Floats
) -> AllReduceModel:
    """AllReduce of a bucket node by node: g GPUs inside each of n nodes by NVLink, nodes by a fabric.

    The GPUs of a node reduce-scatter, each exchanges its part with its like on the other nodes, and they all-gather:

        inside: 2 (g - 1) latency + 2 (g - 1) / g x bytes / (share x link rate)
        across: 2 log2(n) latency + 2 (n - 1) / n x bytes / (share x node's network rate)

    Every GPU sends 1 / g of the bytes over 1 / g of the node's network, so a node's network carries the bytes of one
    GPU, however many it has. On two nodes NCCL's tree comes to the same ("Massively Scale Your Deep Learning Training
    with NCCL 2.4", NVIDIA, 2019). Pieces pass both stages at once: two p5.48xlarge take 66 ms for 16 GiB, of which
    NVLink alone is busy 67 ms at its nominal rate and the network 43; one after the other they could not be done in
    less than 110.

    Args:
        node_count: n
        gpus_per_node: g, of the largest node
        network_bytes_per_s: sustained rate of the slowest node's network [bytes/s]
        gpu_link_bytes_per_s: nominal rate of the slowest GPU link [bytes/s]; inf for one GPU a node
    """
    gpus, nodes = gpus_per_node.astype(np.float64), node_count.astype(np.float64)
    return AllReduceModel(
        inside=LinkTime(
            latency_s=2 * (gpus - 1) * NVLINK.latency_s,
            seconds_per_byte=2 * (gpus - 1) / gpus / (NVLINK.share * gpu_link_bytes_per_s),
        ),
        across=LinkTime(
            latency_s=2 * np.ceil(np.log2(nodes)) * NODE_LATENCY_S,
            seconds_per_byte=2 * (nodes - 1) / nodes / (FABRIC.share * network_bytes_per_s),
        ),
        log_sd=np.full(len(nodes), FABRIC.log_sd),
    )


def _is_fabric(network_bytes_per_s: Floats) -> NDArray[np.bool_]:
    return np.asarray(network_bytes_per_s >= FABRIC_BYTES_PER_S)


def _chosen(
    first: NDArray[np.bool_],
    if_first: Efficiency,
    second: NDArray[np.bool_],
    if_second: Efficiency,
    other: Efficiency,
) -> dict[str, Floats]:
    """Columns of an Efficiency's numbers: the first condition that holds chooses."""
    return {
        name: np.select(
            [first, second], [getattr(if_first, name), getattr(if_second, name)], getattr(other, name)
        )
        for name in ("share", "log_sd", "latency_s")
    }
