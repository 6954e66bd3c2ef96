"""Predictor: what each of many clusters would do with a job, and how sure that is.

The door of this room: profiles go in, a table of clusters, a table of estimates comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from srifty.errors import InvalidInput, NotMeasured
from srifty.predicting.allreduce_model import AllReduceModel, ring_allreduce
from srifty.predicting.compute_model import ComputeModel
from srifty.predicting.iteration_simulator import Iteration, exposed_allreduce_s, longest_of
from srifty.predicting.job_simulator import step_count
from srifty.predicting.memory_model import is_same_memory, largest_batch
from srifty.records.cluster import Cluster
from srifty.records.cluster_table import ClusterTable, EstimateTable, SpreadColumns
from srifty.records.job import Job
from srifty.records.job_profile import JobProfile
from srifty.records.offer import GpuLink, Offer
from srifty.records.spread import Z90

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ROWS_AT_ONCE = 8192
"""Clusters worked on together: their columns stay in the processor's cache."""

MACHINE_LOG_SD = 0.05
"""Compute differs between machines of one kind: the paper saw up to 1.1x on shared clouds."""
MANY_GPUS_LOG_SD = 0.05
"""Several ranks share a host, and a trainer's step is not quite the same at one GPU and at many."""
UNSTABLE_NOISE = 0.2
"""Steps that vary by more than this, a band of about 50 %, make a plan that says so."""
OTHER_MEMORY_LOG_SD = 0.10
"""The same chip with another memory has another memory bandwidth, and often another clock."""


@dataclass(frozen=True)
class Predictor:
    """Estimates from profiles of one job on several kinds of GPU."""

    profiles: tuple[JobProfile, ...]

    def __post_init__(self) -> None:
        if not self.profiles:
            raise InvalidInput("at least one profile is needed; 'srifty profile' makes one")
        names = sorted({profile.job.name for profile in self.profiles})
        if len(names) > 1:
            raise InvalidInput(f"profiles are of different jobs: {', '.join(names)}; give those of one job")
        kinds = [(profile.gpu.casefold(), profile.gpu_memory_bytes) for profile in self.profiles]
        twice = {kind for kind in kinds if kinds.count(kind) > 1}
        if twice:
            gpu, memory = min(twice, key=str)
            size = f" with {memory / 2**30:.0f} GiB" if memory else ""
            raise InvalidInput(f"there are two profiles of GPU {gpu!r}{size}; give the one that is to count")
        sizes = sorted({profile.trainable_bytes for profile in self.profiles})
        if sizes[-1] > sizes[0] * 1.01:
            raise InvalidInput(
                f"profiles of {names[0]!r} train models of different size, from {sizes[0]} to {sizes[-1]} "
                f"bytes; profile the same model on each GPU"
            )

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that were measured."""
        return tuple(sorted({profile.gpu for profile in self.profiles}))

    @cached_property
    def compute(self) -> tuple[ComputeModel, ...]:
        """One model a profile."""
        return tuple(ComputeModel.fit(profile) for profile in self.profiles)

    def profile_index(self, offer: Offer) -> int | None:
        """Which profile stands for this offer's GPU: of the same chip, the one with the nearest memory."""
        same_chip = [i for i, p in enumerate(self.profiles) if p.gpu.casefold() == offer.gpu.casefold()]

        def distance(i: int) -> float:
            measured = self.profiles[i].gpu_memory_bytes
            return 0.0 if measured is None else abs(np.log(measured / offer.gpu_memory_bytes))

        return min(same_chip, key=distance, default=None)

    def batch_range(self, offer: Offer) -> tuple[int, int] | None:
        """Smallest and largest batch that one GPU of this offer trains with; None: the GPU was not measured.

        The pair is empty (largest < smallest) where not even the smallest fits in the memory.
        """
        index = self.profile_index(offer)
        if index is None:
            return None
        profile = self.profiles[index]
        return profile.min_batch, largest_batch(profile, offer.gpu_memory_bytes)

    def estimate(self, clusters: ClusterTable, job: Job) -> EstimateTable:
        """Estimates of the clusters, row for row.

        Each spread comes from five scenarios: the centre, and compute time and exchange time each moved to
        its own 10th and 90th percentile. The two doubts are independent, so their effects add as squares:

            p90 = p50 + sqrt(sum over the doubts of max(0, f(doubt at its p90) - p50)^2),   p10 alike

        Raises:
            NotMeasured: a GPU without a profile, a batch beyond the largest that fits, several nodes of which
                one's network rate is not known
            InvalidInput: the job says neither samples nor steps
        """
        steps = step_count(job, clusters.global_batch)
        profile_of = self._checked_profiles(clusters)
        used = np.where(clusters.node_count > 0, profile_of[clusters.offer_index], -1)
        shape = (5, len(clusters))
        parts = Iteration(np.empty(shape), np.empty(shape), np.empty(shape))
        slowest = np.zeros(len(clusters), np.int64)
        outside: dict[str, NDArray[np.bool_]] = {}
        mixes, mix_of = np.unique(used, axis=0, return_inverse=True)
        for m, mix in enumerate(mixes):
            of_mix = np.flatnonzero(mix_of.reshape(-1) == m)
            for start in range(0, len(of_mix), ROWS_AT_ONCE):
                rows = of_mix[start : start + ROWS_AT_ONCE]
                told = self._scenarios(clusters, rows, [int(p) for p in mix if p >= 0])
                parts.compute_s[:, rows] = told.parts.compute_s
                parts.exposed_allreduce_s[:, rows] = told.parts.exposed_allreduce_s
                parts.waiting_s[:, rows] = told.parts.waiting_s
                slowest[rows] = told.slowest_group
                for what, where in told.extrapolated.items():
                    outside.setdefault(what, np.zeros(len(clusters), bool))[rows] = where
        return EstimateTable(
            clusters=clusters,
            step_count=steps,
            step_s=_spread(parts.step_s),
            compute_s=_spread(parts.compute_s),
            exposed_allreduce_s=_spread(parts.exposed_allreduce_s),
            waiting_s=_spread(parts.waiting_s),
            slowest_group=slowest,
            extrapolated=tuple(sorted(outside.items())),
        )

    def assumptions(self, cluster: Cluster) -> tuple[str, ...]:
        """What an estimate of this cluster rests on that was not measured."""
        used = dict.fromkeys(self.profile_index(group.offer) for group in cluster.groups)
        profiles = [self.profiles[i] for i in used if i is not None]
        said = [f"{profile.gpu}: {assumption}" for profile in profiles for assumption in profile.assumptions]
        if cluster.gpu_count > 1:
            said.append(
                "exchange times follow from the catalogue's sustained network rates and from efficiencies "
                "measured on other machines, not on these"
            )
        if any(profile.gpu == "cpu" for profile in profiles):
            hardware = next(profile.hardware for profile in profiles if profile.gpu == "cpu")
            said.append(
                f"every CPU on offer is taken to be as fast as the measured one ({hardware or 'not named'})"
            )
        if any(g.offer.gpu_count > 1 and g.offer.gpu_link_bytes_per_s is None for g in cluster.groups):
            said.append(
                "the rate of the link between a machine's GPUs is not known, so the least of its kind is taken"
            )
        said.append("the time to start the machines and to load the data set is not counted")
        return tuple(said)

    def _checked_profiles(self, clusters: ClusterTable) -> Ints:
        """Profile of each offer of the table, after a check of every row against what was measured."""
        index = [self.profile_index(offer) for offer in clusters.offers]
        missing = {offer.gpu for offer, i in zip(clusters.offers, index, strict=True) if i is None}
        if missing:
            raise NotMeasured(
                f"GPU {', '.join(sorted(missing))} was not measured (measured: {', '.join(self.gpus)}); "
                f"run 'srifty profile' on a machine that has one"
            )
        most = np.array(
            [
                largest_batch(self.profiles[i or 0], offer.gpu_memory_bytes)
                for i, offer in zip(index, clusters.offers, strict=True)
            ]
        )
        beyond = (clusters.node_count > 0) & (clusters.batch_per_gpu > most[clusters.offer_index])
        if beyond.any():
            row, group = (int(i) for i in np.argwhere(beyond)[0])
            offer = clusters.offers[clusters.offer_index[row, group]]
            raise NotMeasured(
                f"batch {clusters.batch_per_gpu[row, group]} a GPU is beyond the largest known to fit on "
                f"{offer.gpu} with {offer.gpu_memory_bytes / 2**30:.0f} GiB, "
                f"{most[clusters.offer_index[row, group]]} [samples]; take a smaller batch, accumulate, or "
                f"run 'srifty profile' with larger batches"
            )
        unknown = np.array([offer.network_bytes_per_s is None for offer in clusters.offers])
        blind = (clusters.node_count.sum(axis=1) > 1) & (
            unknown[clusters.offer_index] & (clusters.node_count > 0)
        ).any(axis=1)
        if blind.any():
            offer = clusters.cluster(int(np.flatnonzero(blind)[0])).groups[0].offer
            raise NotMeasured(
                f"the network rate of {offer.instance_type} is not known, so several of them cannot be "
                f"estimated; give it in a table of your own (--catalog)"
            )
        return np.array(index, np.int64)

    def _scenarios(self, clusters: ClusterTable, rows: Ints, mix: list[int]) -> _Scenarios:
        """Five scenarios of the rows, whose groups use the profiles `mix`, one a group."""
        batch = clusters.batch_per_gpu[rows].astype(float)
        micro_steps = clusters.accumulation_count[rows]
        before = micro_steps - 1
        gpu_count = clusters.gpu_count[rows]

        bucket_bytes, ready_at = self._buckets(mix)
        groups = []
        for j, p in enumerate(mix):
            forward, backward, optimizer, wait, other = self.compute[p].phases(batch[:, j])
            last_backward = before * (forward + backward + wait) + forward + wait
            groups.append(
                _Group(
                    ready_s=last_backward[:, None] + ready_at[j] * backward[:, None],
                    backward_end_s=last_backward + backward,
                    optimizer_s=optimizer + other,
                    wait_s=micro_steps * wait,
                    noise_s=self.compute[p].noise * np.sqrt(micro_steps) * (forward + backward),
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

        exchange = self._exchange(clusters, rows, len(mix))
        each_time = any(self.profiles[p].exchanges_every_micro_step for p in mix)
        exchange_count = micro_steps if each_time else np.ones_like(micro_steps)
        compute_log_sd, outside = self._compute_doubt(clusters, rows, mix)
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
        return _Scenarios(Iteration(*stacked), slowest, outside)

    def _buckets(self, mix: list[int]) -> tuple[Floats, list[Floats]]:
        """Bytes of each bucket, and when it is ready on each group's GPU, as a share of its backward pass.

        Buckets are those of the profile that cut most of them, whatever the order of the groups. On a GPU whose
        profile cut them otherwise, a bucket is ready when as large a share of all bytes is.
        """
        reference = max(mix, key=lambda p: (len(self.profiles[p].buckets), self.profiles[p].gpu, -p))
        bucket_bytes = np.array([b.gradient_bytes for b in self.profiles[reference].buckets], float)
        share = np.cumsum(bucket_bytes) / max(bucket_bytes.sum(), 1.0)
        ready = []
        for p in mix:
            buckets = self.profiles[p].buckets
            # A bucket is never exchanged before the one in front of it.
            at = np.maximum.accumulate([bucket.ready_at for bucket in buckets]) if buckets else np.array([])
            own = np.cumsum([float(bucket.gradient_bytes) for bucket in buckets])
            ready.append(np.interp(share, own / own[-1], at) if buckets else np.ones(len(share)))
        return bucket_bytes, ready

    def _exchange(self, clusters: ClusterTable, rows: Ints, group_count: int) -> AllReduceModel:
        offers = clusters.offers
        index = clusters.offer_index[rows, :group_count]
        many_nodes = clusters.node_count[rows].sum(axis=1) > 1
        network = np.array([offer.network_bytes_per_s or np.inf for offer in offers])
        nvlink = np.array(
            [offer.gpu_link is not GpuLink.PCIE and offer.gpu_link is not None for offer in offers]
        )
        link = np.array([_gpu_link_bytes_per_s(offer) for offer in offers])
        slowest_link = link[index].argmin(axis=1)
        at = np.arange(len(rows))
        return ring_allreduce(
            gpu_count=clusters.gpu_count[rows],
            network_bytes_per_s=np.where(many_nodes, network[index].min(axis=1), np.inf),
            gpu_link_bytes_per_s=link[index].min(axis=1),
            link_is_nvlink=nvlink[index][at, slowest_link],
            on_cpu=np.any(np.array([offer.gpu.casefold() == "cpu" for offer in offers])[index], axis=1),
        )

    def _compute_doubt(
        self, clusters: ClusterTable, rows: Ints, mix: list[int]
    ) -> tuple[Floats, dict[str, NDArray[np.bool_]]]:
        """Standard deviation of the logarithm of compute time, and what lies outside the measured range."""
        machine = MACHINE_LOG_SD**2 + np.where(clusters.gpu_count[rows] > 1, MANY_GPUS_LOG_SD**2, 0.0)
        worst = np.zeros(len(rows))  # groups wait for one another: the largest doubt among them counts
        outside: dict[str, NDArray[np.bool_]] = {}
        for j, p in enumerate(mix):
            model, profile = self.compute[p], self.profiles[p]
            below = clusters.batch_per_gpu[rows, j] < model.smallest_batch
            above = clusters.batch_per_gpu[rows, j] > model.batch[-1]
            other_memory = np.array([not is_same_memory(profile, offer) for offer in clusters.offers])[
                clusters.offer_index[rows, j]
            ]
            doubt = model.doubt(clusters.batch_per_gpu[rows, j].astype(float)) ** 2
            doubt += (profile.estimate_log_sd or 0.0) ** 2
            doubt += np.where(other_memory, OTHER_MEMORY_LOG_SD**2, 0.0)
            worst = np.maximum(worst, doubt)
            if model.noise > UNSTABLE_NOISE:
                what = f"steps measured on {profile.gpu} vary by {100 * model.noise:.0f} % (one standard deviation)"
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


@dataclass(frozen=True)
class _Scenarios:
    parts: Iteration
    """[scenario, cluster]"""
    slowest_group: Ints
    extrapolated: dict[str, NDArray[np.bool_]]


def _spread(scenarios: Floats) -> SpreadColumns:
    """Percentiles from the scenarios (centre, doubt 1 low and high, doubt 2 low and high); see `estimate`."""
    middle = scenarios[0]
    below = np.sqrt(sum(np.maximum(0, middle - scenarios[low]) ** 2 for low in (1, 3)))
    above = np.sqrt(sum(np.maximum(0, scenarios[high] - middle) ** 2 for high in (2, 4)))
    return SpreadColumns(np.maximum(0, middle - below), middle, middle + above)


def _gpu_link_bytes_per_s(offer: Offer) -> float:
    if offer.gpu_count == 1:
        return float("inf")
    if offer.gpu_link_bytes_per_s is not None:
        return offer.gpu_link_bytes_per_s
    # The least of its kind: NVLink 2, PCIe 3.0 x16.
    return 150e9 if offer.gpu_link is GpuLink.NVLINK else 15.75e9
