"""AllReduceModel: how long the gradients of a bucket take to exchange, from the ring formula.

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
FABRIC = Efficiency(share=0.94, log_sd=0.35, latency_s=4.8e-6, source="NCCL over EFA, 2 x p5.48xlarge")
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
TCP_FLOW_BYTES_PER_S = 10e9 / 8
"""What one TCP flow gets in a placement group, whatever the machine's own rate; a ring is one flow."""


@dataclass(frozen=True)
class AllReduceModel:
    """Exchange time of each cluster as latency + bytes x seconds_per_byte.

    Attributes:
        latency_s: for one AllReduce of any size [s], one a cluster
        seconds_per_byte: [s/byte], one a cluster
        log_sd: doubt about both, as the standard deviation of the logarithm, one a cluster
    """

    latency_s: Floats
    seconds_per_byte: Floats
    log_sd: Floats


def ring_allreduce(
    gpu_count: Ints,
    network_bytes_per_s: Floats,
    gpu_link_bytes_per_s: Floats,
    link_is_nvlink: NDArray[np.bool_],
    on_cpu: NDArray[np.bool_],
) -> AllReduceModel:
    """AllReduce of a bucket over the ring through all GPUs of each cluster.

        duration = 2 (k - 1) latency + 2 (k - 1) / k x bytes / rate
        rate = min over the links of the ring of (share of the nominal rate that an exchange gets)

    The ring passes every GPU, and every node's network once in and once out, so k counts GPUs and the slowest
    link sets the rate (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009).

    Args:
        gpu_count: k, GPUs of each cluster; 1 exchanges nothing
        network_bytes_per_s: sustained rate of the slowest node's network [bytes/s]; inf for one node
        gpu_link_bytes_per_s: nominal rate of the slowest GPU link [bytes/s]; inf for one GPU a node
        link_is_nvlink: whether that GPU link is of the NVLink kind; else PCIe
        on_cpu: whether the ranks are CPUs, which exchange through gloo

    Assumes one exchange at a time and no other traffic. Below `FABRIC_BYTES_PER_S` the network is taken to
    carry plain TCP, where one flow is capped.
    """
    is_fabric = network_bytes_per_s >= FABRIC_BYTES_PER_S
    network = np.where(is_fabric, network_bytes_per_s, np.minimum(network_bytes_per_s, TCP_FLOW_BYTES_PER_S))
    across = _chosen(on_cpu, GLOO, is_fabric, FABRIC, TCP)
    inside = _chosen(on_cpu, GLOO, link_is_nvlink, NVLINK, PCIE)
    network_rate = network * across["share"]
    link_rate = gpu_link_bytes_per_s * inside["share"]

    # In every step round the ring some pair of ranks crosses the network, so its latency counts each time.
    has_network = np.isfinite(network_bytes_per_s)
    rate = np.minimum(network_rate, link_rate)
    latency = np.where(has_network, across["latency_s"], inside["latency_s"])
    log_sd = np.where(has_network & (network_rate <= link_rate), across["log_sd"], inside["log_sd"])
    hops = gpu_count - 1
    with np.errstate(invalid="ignore"):
        seconds_per_byte = np.where(hops > 0, 2 * hops / gpu_count / rate, 0.0)
    return AllReduceModel(
        latency_s=hops.astype(np.float64) * 2 * latency, seconds_per_byte=seconds_per_byte, log_sd=log_sd
    )


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
