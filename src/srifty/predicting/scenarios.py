"""Scenarios: one iteration of many clusters, at the centre of what is believed and with each doubt moved.

This is where the compute model, the exchange model and the overlap of the two come together, on columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from srifty.predicting.allreduce_model import AllReduceModel, allreduce
from srifty.predicting.compute_model import ComputeModel
from srifty.predicting.exchange_model import LearnedExchange
from srifty.predicting.iteration_simulator import (
    ExchangeCost,
    GroupWork,
    Iteration,
    simulate,
    slowest_group,
)
from srifty.predicting.measured_exchange import with_measured
from srifty.predicting.memory_model import is_same_memory
from srifty.predicting.stragglers import wait_for_slowest
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
SLOW_DOWN = 1.0
"""Factor on compute beside an exchange, where none was fitted. Published are 1.38 (VGG19) to 1.48 (GPT-2) on 8 A100
(arXiv 2412.12487). But of 15 published pairs of job and machine, steps of several GPUs less their exposed exchange take
0.88 to 1.05 of a step of one GPU (medians; without YOLOv3, whose readings of one GPU jump), and with 1.02 to 1.4 here
predictions only get worse. So nothing is added unasked."""
SLOT_COUNT = 1
"""NCCL exchanges one bucket after another. gloo has two under way, but where links of 0.2 to 2.5 Gbit/s were measured
one exchange fills 95 % of the link, so that two share it and end no sooner than one after the other."""
DATA_BOUND_SHARE = 0.2
"""Steps that wait for their data for more of their time than this make a plan that says so."""
OTHER_MEMORY_LOG_SD = 0.10
"""The same chip with another memory has another memory bandwidth, and often another clock."""


@dataclass(frozen=True)
class JobOnGpu:
    """A job on one kind of GPU: what was measured, and the curves that follow from it."""

    profile: JobProfile
    compute: ComputeModel
    slow_down: float = SLOW_DOWN
    """Factor >= 1 on its compute while an exchange is in flight."""

    @property
    def data_wait_share(self) -> float:
        """Share of a step that is the wait for data, the largest over the measured batches."""
        model = self.compute
        optimizer = model.optimizer_s / self.profile.accumulation_count
        step = model.forward_s + model.backward_s + model.data_wait_s + model.other_s + optimizer
        return float(np.max(model.data_wait_s / step))

    @property
    def is_data_bound(self) -> bool:
        """Whether the loader is a bottleneck."""
        return self.data_wait_share > DATA_BOUND_SHARE


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
            is_cpu=np.array([offer.is_cpu for offer in offers]),
            has_other_memory=np.array(
                [not is_same_memory(profile, offer) for profile, offer in zip(profiles, offers, strict=True)]
            ),
        )


@dataclass(frozen=True)
class StepColumns:
    """What happens in one step of each of some clusters, at the centre of what is believed."""

    groups: list[GroupWork]
    exchange: AllReduceModel
    cost: ExchangeCost
    micro_steps: Ints
    exchanges_each: bool
    """Whether each micro-step exchanges, or the last alone."""
    straggler_s: Floats
    """Wait for the slowest of all ranks."""
    slowest_group: Ints
    exchange_outside: dict[str, Bools]
    """What of the exchange lies outside the measured range, and for which clusters."""

    def iteration(self, slower: Floats | float = 1.0, longer: Floats | float = 1.0) -> Iteration:
        """Parts of the step with compute and exchange times a factor."""
        cost = replace(
            self.cost,
            latency_s=self.cost.latency_s * longer,
            seconds_per_byte=self.cost.seconds_per_byte * longer,
        )
        groups = [
            GroupWork(
                wait_s=group.wait_s * slower,
                forward_s=group.forward_s * slower,
                backward_s=group.backward_s * slower,
                other_s=group.other_s * slower,
                optimizer_s=group.optimizer_s * slower,
                ready_at=group.ready_at,
            )
            for group in self.groups
        ]
        step = simulate(groups, cost, self.micro_steps, exchanges_each=self.exchanges_each)
        return replace(step, waiting_s=step.waiting_s + self.straggler_s * slower)

    @property
    def exchange_count(self) -> Ints:
        """How often a step exchanges all buckets, [cluster]."""
        return self.micro_steps if self.exchanges_each else np.ones_like(self.micro_steps)


@dataclass(frozen=True)
class Scenarios:
    """Five scenarios of some clusters: the centre, compute low and high, exchange low and high."""

    parts: Iteration
    """[scenario, cluster]"""
    inside_s: Floats
    """How long the links inside the nodes are busy with exchange in a step, [scenario, cluster]."""
    across_s: Floats
    """The same of the network between nodes."""
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
    step = step_columns(clusters, rows, machines, mix, learned)
    compute_log_sd, outside = _compute_doubt(clusters, rows, machines, mix)
    slower = np.exp(Z90 * compute_log_sd)
    longer = np.exp(Z90 * step.exchange.log_sd)
    told = [
        step.iteration(),
        step.iteration(slower=1 / slower),
        step.iteration(slower=slower),
        step.iteration(longer=1 / longer),
        step.iteration(longer=longer),
    ]
    one = np.ones(len(rows))
    factors = np.stack([one, one, one, 1 / longer, longer]) * step.exchange_count
    return Scenarios(
        parts=Iteration(
            compute_s=np.stack([each.compute_s for each in told]),
            exposed_allreduce_s=np.stack([each.exposed_allreduce_s for each in told]),
            waiting_s=np.stack([each.waiting_s for each in told]),
        ),
        inside_s=factors * step.exchange.inside.busy_s(step.cost.bucket_bytes),
        across_s=factors * step.exchange.across.busy_s(step.cost.bucket_bytes),
        slowest_group=step.slowest_group,
        extrapolated=outside | step.exchange_outside,
    )


def step_columns(
    clusters: ClusterTable,
    rows: Ints,
    machines: MachineColumns,
    mix: Sequence[JobOnGpu],
    learned: LearnedExchange | None = None,
) -> StepColumns:
    """What happens in one step of the rows, whose groups have the GPUs of `mix`, one a group."""
    batch = clusters.batch_per_gpu[rows].astype(float)
    micro_steps = clusters.accumulation_count[rows]
    bucket_bytes, ready_at = buckets_on([on_gpu.profile for on_gpu in mix])
    groups = []
    for j, on_gpu in enumerate(mix):
        forward, backward, optimizer, wait, other = on_gpu.compute.phases(batch[:, j])
        groups.append(GroupWork(wait, forward, backward, other, optimizer, ready_at[j]))
    exchanges_each = any(on_gpu.profile.exchanges_every_micro_step for on_gpu in mix)
    slowest = slowest_group(groups, micro_steps, exchanges_each=exchanges_each)
    noise = np.stack(
        [on_gpu.compute.noise * (g.forward_s + g.backward_s) for g, on_gpu in zip(groups, mix, strict=True)]
    )
    skew = np.array([on_gpu.compute.noise_skew for on_gpu in mix])
    # Ranks meet in each exchange.
    meetings = micro_steps if exchanges_each else np.ones_like(micro_steps)
    straggler = meetings * wait_for_slowest(
        clusters.gpu_count[rows],
        micro_steps // meetings,
        noise[slowest, np.arange(len(rows))],
        skew[slowest],
    )
    exchange = exchange_of(clusters, rows, machines, len(mix))
    outside: dict[str, Bools] = {}
    if learned is not None:
        exchange, outside = with_measured(exchange, learned, clusters, rows, len(mix), bucket_bytes)
    cost = ExchangeCost(
        latency_s=exchange.latency_s,
        seconds_per_byte=exchange.seconds_per_byte,
        bucket_bytes=bucket_bytes,
        slow_down=max(on_gpu.slow_down for on_gpu in mix),  # all wait for the slowest
        slot_count=SLOT_COUNT,
    )
    return StepColumns(groups, exchange, cost, micro_steps, exchanges_each, straggler, slowest, outside)


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
    return allreduce(
        node_count=clusters.node_count[rows].sum(axis=1),
        gpu_count=clusters.gpu_count[rows],
        most_gpus_per_node=np.max(
            np.where(clusters.node_count[rows] > 0, clusters.gpus_per_node[rows], 1), axis=1
        ),
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
        if on_gpu.is_data_bound:
            what = (
                f"the loader on these machines; up to {100 * on_gpu.data_wait_share:.0f} % of a step on "
                f"{profile.gpu} was the wait for it, which no faster GPU shortens"
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


def _gpu_link_bytes_per_s(offer: Offer) -> float:
    if offer.gpu_count == 1:
        return float("inf")
    if offer.gpu_link_bytes_per_s is not None:
        return offer.gpu_link_bytes_per_s
    # The least of its kind: NVLink 2, PCIe 3.0 x16.
    return 150e9 if offer.gpu_link is GpuLink.NVLINK else 15.75e9
