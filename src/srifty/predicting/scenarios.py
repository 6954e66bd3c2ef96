"""Scenarios: one iteration of many clusters, at the centre of what is believed and with each doubt moved.

This is where the compute model, the exchange model and the overlap of the two come together, on columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from srifty.predicting.allreduce_model import AllReduceModel, ring_allreduce
from srifty.predicting.compute_model import ComputeModel
from srifty.predicting.exchange_model import LearnedExchange
from srifty.predicting.iteration_simulator import Iteration, exposed_allreduce_s, longest_of
from srifty.predicting.measured_exchange import with_measured
from srifty.predicting.memory_model import is_same_memory
from srifty.records.cluster_table import ClusterTable
from srifty.records.job_profile import JobProfile
from srifty.records.offer import GpuLink, Offer
from srifty.records.spread import Z90

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MACHINE_LOG_SD = 0.05
"""Compute differs between machines of one kind: the paper saw up to 1.1x on shared clouds."""
MANY_GPUS_LOG_SD = 0.05
"""Several ranks share a host, and a trainer's step is not quite the same at one GPU and at many."""
UNSTABLE_NOISE = 0.2
"""Steps that vary by more than this, a band of about 50 %, make a plan that says so."""
OTHER_MEMORY_LOG_SD = 0.10
"""The same chip with another memory has another memory bandwidth, and often another clock."""


@dataclass(frozen=True)
class JobOnGpu:
    """A job on one kind of GPU: what was measured, and the curves that follow from it."""

    profile: JobProfile
    compute: ComputeModel


@dataclass(frozen=True)
class MachineColumns:
    """What a step feels of each machine, an entry an offer of the cluster table."""

    network_bytes_per_s: Floats
    """inf where it is not known; such a machine is only ever alone"""
    link_bytes_per_s: Floats
    """inf for one GPU"""
    link_is_nvlink: Bools
    is_cpu: Bools
    has_other_memory: Bools
    """whether its GPU has another memory than the one that was measured"""

    @classmethod
    def of(cls, offers: Sequence[Offer], profiles: Sequence[JobProfile]) -> Self:
        """Columns of the offers, with the profile that stands for each."""
        links = (GpuLink.PCIE, None)
        return cls(
            network_bytes_per_s=np.array([offer.network_bytes_per_s or np.inf for offer in offers]),
            link_bytes_per_s=np.array([_gpu_link_bytes_per_s(offer) for offer in offers]),
            link_is_nvlink=np.array([offer.gpu_link not in links for offer in offers]),
            is_cpu=np.array([offer.gpu.casefold() == "cpu" for offer in offers]),
            has_other_memory=np.array(
                [not is_same_memory(profile, offer) for profile, offer in zip(profiles, offers, strict=True)]
            ),
        )


@dataclass(frozen=True)
class Scenarios:
    """Five scenarios of some clusters: the centre, compute low and high, exchange low and high."""

    parts: Iteration
    """[scenario, cluster]"""
    slowest_group: Ints
    extrapolated: dict[str, Bools]
    """what lies outside the measured range, and for which clusters"""


def scenarios(
    clusters: ClusterTable,
    rows: Ints,
    machines: MachineColumns,
    mix: Sequence[JobOnGpu],
    learned: LearnedExchange | None = None,
) -> Scenarios:
    """Five scenarios of the rows, whose groups have the GPUs of `mix`, one a group.

    Where exchanges between the machines were measured, `learned` takes the place of the formula.
    """
    batch = clusters.batch_per_gpu[rows].astype(float)
    micro_steps = clusters.accumulation_count[rows]
    before = micro_steps - 1
    gpu_count = clusters.gpu_count[rows]

    bucket_bytes, ready_at = buckets_on([on_gpu.profile for on_gpu in mix])
    groups = []
    for j, on_gpu in enumerate(mix):
        forward, backward, optimizer, wait, other = on_gpu.compute.phases(batch[:, j])
        last_backward = before * (forward + backward + wait + other) + forward + wait
        groups.append(
            _Group(
                ready_s=last_backward[:, None] + ready_at[j] * backward[:, None],
                backward_end_s=last_backward + backward,
                optimizer_s=optimizer + other,
                wait_s=micro_steps * wait,
                noise_s=on_gpu.compute.noise * np.sqrt(micro_steps) * (forward + backward),
            )
        )
    ready = np.max([group.ready_s for group in groups], axis=0)
    ends = np.stack([group.backward_end_s for group in groups])
    slowest = ends.argmax(axis=0)
    at = np.arange(len(rows))
    backward_end = ends[slowest, at]
    loader_wait = np.stack([group.wait_s for group in groups])[slowest, at]
    optimizer = np.max([group.optimizer_s for group in groups], axis=0)
    noise = np.stack([group.noise_s for group in groups])[slowest, at]
    compute = backward_end - loader_wait + optimizer
    waiting = loader_wait + noise * longest_of(gpu_count)

    exchange = exchange_of(clusters, rows, machines, len(mix))
    each_time = any(on_gpu.profile.exchanges_every_micro_step for on_gpu in mix)
    exchange_count = micro_steps if each_time else np.ones_like(micro_steps)
    compute_log_sd, outside = _compute_doubt(clusters, rows, machines, mix)
    if learned is not None:
        exchange, beyond = with_measured(exchange, learned, clusters, rows, len(mix), bucket_bytes)
        outside |= beyond
    slower = np.exp(Z90 * compute_log_sd)
    longer = np.exp(Z90 * exchange.log_sd)
    told = []
    one = np.ones(len(rows))
    for c, x in ((one, one), (1 / slower, one), (slower, one), (one, 1 / longer), (one, longer)):
        exposed = exposed_allreduce_s(
            ready * c[:, None],
            exchange.latency_s * x,
            exchange.seconds_per_byte * x,
            bucket_bytes,
            backward_end * c,
        )
        told.append((compute * c, exposed * exchange_count, waiting * c))
    stacked = [np.stack(part) for part in zip(*told, strict=True)]
    return Scenarios(Iteration(*stacked), slowest, outside)


def buckets_on(profiles: Sequence[JobProfile]) -> tuple[Floats, list[Floats]]:
    """Bytes of each bucket, and when it is ready on each group's GPU, as a share of its backward pass.

    Buckets are those of the profile that cut most of them, whatever the order of the groups. On a GPU whose
    profile cut them otherwise, a bucket is ready when as large a share of all bytes is.
    """
    reference = max(profiles, key=lambda profile: (len(profile.buckets), profile.gpu))
    bucket_bytes = np.array([bucket.gradient_bytes for bucket in reference.buckets], float)
    share = np.cumsum(bucket_bytes) / max(bucket_bytes.sum(), 1.0)
    ready = []
    for profile in profiles:
        buckets = profile.buckets
        # A bucket is never exchanged before the one in front of it.
        at = np.maximum.accumulate([bucket.ready_at for bucket in buckets]) if buckets else np.array([])
        own = np.cumsum([float(bucket.gradient_bytes) for bucket in buckets])
        ready.append(np.interp(share, own / own[-1], at) if buckets else np.ones(len(share)))
    return bucket_bytes, ready


def exchange_of(
    clusters: ClusterTable, rows: Ints, machines: MachineColumns, group_count: int
) -> AllReduceModel:
    """How long a bucket takes on the slowest links of each cluster."""
    index = clusters.offer_index[rows, :group_count]
    has_many_nodes = clusters.node_count[rows].sum(axis=1) > 1
    link = machines.link_bytes_per_s[index]
    return ring_allreduce(
        gpu_count=clusters.gpu_count[rows],
        network_bytes_per_s=np.where(has_many_nodes, machines.network_bytes_per_s[index].min(axis=1), np.inf),
        gpu_link_bytes_per_s=link.min(axis=1),
        link_is_nvlink=machines.link_is_nvlink[index][np.arange(len(rows)), link.argmin(axis=1)],
        on_cpu=np.asarray(machines.is_cpu[index].any(axis=1)),
    )


def _compute_doubt(
    clusters: ClusterTable, rows: Ints, machines: MachineColumns, mix: Sequence[JobOnGpu]
) -> tuple[Floats, dict[str, Bools]]:
    """Standard deviation of the logarithm of compute time, and what lies outside the measured range."""
    machine = MACHINE_LOG_SD**2 + np.where(clusters.gpu_count[rows] > 1, MANY_GPUS_LOG_SD**2, 0.0)
    worst = np.zeros(len(rows))  # groups wait for one another: the largest doubt among them counts
    outside: dict[str, Bools] = {}
    for j, on_gpu in enumerate(mix):
        model, profile = on_gpu.compute, on_gpu.profile
        below = clusters.batch_per_gpu[rows, j] < model.smallest_batch
        above = clusters.batch_per_gpu[rows, j] > model.batch[-1]
        other_memory = machines.has_other_memory[clusters.offer_index[rows, j]]
        doubt = model.doubt(clusters.batch_per_gpu[rows, j].astype(float)) ** 2
        doubt += (profile.estimate_log_sd or 0.0) ** 2
        doubt += np.where(other_memory, OTHER_MEMORY_LOG_SD**2, 0.0)
        worst = np.maximum(worst, doubt)
        if model.noise > UNSTABLE_NOISE:
            what = (
                f"steps measured on {profile.gpu} vary by {100 * model.noise:.0f} % (one standard deviation)"
            )
            outside[what] = np.ones(len(rows), bool)
        if profile.estimated_from is not None:
            what = f"times on {profile.gpu} are estimated from {profile.estimated_from}, not measured"
            outside[what] = np.ones(len(rows), bool)
        if below.any():
            outside[f"batch below {model.smallest_batch}, the smallest measured on {profile.gpu}"] = below
        if above.any():
            outside[f"batch above {int(model.batch[-1])}, the largest timed on {profile.gpu}"] = above
        if other_memory.any() and profile.gpu_memory_bytes is not None:
            outside[
                f"the {profile.gpu} that was measured has {profile.gpu_memory_bytes / 2**30:.0f} GiB of memory"
            ] = other_memory
    return np.sqrt(machine + worst), outside


@dataclass(frozen=True)
class _Group:
    """Times of one group's GPUs [s], a row a cluster, from the start of the step."""

    ready_s: Floats
    backward_end_s: Floats
    optimizer_s: Floats
    wait_s: Floats
    noise_s: Floats


def _gpu_link_bytes_per_s(offer: Offer) -> float:
    if offer.gpu_count == 1:
        return float("inf")
    if offer.gpu_link_bytes_per_s is not None:
        return offer.gpu_link_bytes_per_s
    # The least of its kind: NVLink 2, PCIe 3.0 x16.
    return 150e9 if offer.gpu_link is GpuLink.NVLINK else 15.75e9
