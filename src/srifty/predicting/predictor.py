"""Predictor: what each of many clusters would do with a job, and how sure that is.

The door of this room: profiles go in, a table of clusters, a table of estimates comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from srifty.errors import InvalidInput, NotMeasured
from srifty.predicting.compute_model import ComputeModel
from srifty.predicting.exchange_model import LearnedExchange
from srifty.predicting.iteration_simulator import Iteration
from srifty.predicting.job_simulator import step_count
from srifty.predicting.measured_exchange import covering
from srifty.predicting.memory_model import largest_batch
from srifty.predicting.predicted_trace import trace_of
from srifty.predicting.scenarios import SLOW_DOWN, JobOnGpu, MachineColumns, scenarios, step_columns
from srifty.records.cluster import Cluster
from srifty.records.cluster_table import ClusterTable, EstimateTable, SpreadColumns
from srifty.records.exchange_model import ExchangeModel
from srifty.records.iteration_span import IterationTrace
from srifty.records.job import Job
from srifty.records.job_profile import JobProfile
from srifty.records.offer import Offer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

ROWS_AT_ONCE = 8192
"""Clusters worked on together: their columns stay in the processor's cache."""


@dataclass(frozen=True)
class Predictor:
    """Estimates from profiles of one job on several kinds of GPU."""

    profiles: tuple[JobProfile, ...]
    slow_down: Mapping[str, float] = field(default_factory=dict)
    """By GPU, the fitted factor >= 1 on compute while an exchange is in flight; `SLOW_DOWN` where it has none."""
    exchange_model: ExchangeModel | None = None
    """What was learned from measured exchanges; None: the formula alone."""

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

    @cached_property
    def exchange(self) -> LearnedExchange | None:
        """The learned exchange, ready to tell."""
        return None if self.exchange_model is None else LearnedExchange.of(self.exchange_model)

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
        machines = MachineColumns.of(clusters.offers, [self.profiles[p] for p in profile_of])
        models = self._jobs_on_gpus()
        used = np.where(clusters.node_count > 0, profile_of[clusters.offer_index], -1)
        shape = (5, len(clusters))
        parts = Iteration(np.empty(shape), np.empty(shape), np.empty(shape))
        inside, across = np.empty(shape), np.empty(shape)
        slowest = np.zeros(len(clusters), np.int64)
        outside: dict[str, NDArray[np.bool_]] = {}
        for mix, of_mix in _rows_by_mix(used):
            for start in range(0, len(of_mix), ROWS_AT_ONCE):
                rows = of_mix[start : start + ROWS_AT_ONCE]
                told = scenarios(clusters, rows, machines, [models[p] for p in mix if p >= 0], self.exchange)
                parts.compute_s[:, rows] = told.parts.compute_s
                parts.exposed_allreduce_s[:, rows] = told.parts.exposed_allreduce_s
                parts.waiting_s[:, rows] = told.parts.waiting_s
                inside[:, rows], across[:, rows] = told.inside_s, told.across_s
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
            inside_exchange_s=_spread(inside),
            across_exchange_s=_spread(across),
            slowest_group=slowest,
            extrapolated=tuple(sorted(outside.items())),
        )

    def trace(self, cluster: Cluster) -> IterationTrace:
        """The median iteration of a cluster as its spans, with the numbers of its estimate; a rank a node group.

        Raises:
            NotMeasured: as for `estimate`
        """
        table = ClusterTable.of([cluster])
        profile_of = self._checked_profiles(table)
        machines = MachineColumns.of(table.offers, [self.profiles[p] for p in profile_of])
        models = self._jobs_on_gpus()
        mix = [models[profile_of[table.offer_index[0, j]]] for j in range(len(cluster.groups))]
        return trace_of(step_columns(table, np.array([0]), machines, mix, self.exchange), cluster)

    def _jobs_on_gpus(self) -> list[JobOnGpu]:
        return [
            JobOnGpu(profile, compute, self.slow_down.get(profile.gpu, SLOW_DOWN))
            for profile, compute in zip(self.profiles, self.compute, strict=True)
        ]

    def assumptions(self, cluster: Cluster) -> tuple[str, ...]:
        """What an estimate of this cluster rests on that was not measured."""
        used = dict.fromkeys(self.profile_index(group.offer) for group in cluster.groups)
        profiles = [self.profiles[i] for i in used if i is not None]
        said = [f"{profile.gpu}: {assumption}" for profile in profiles for assumption in profile.assumptions]
        if cluster.gpu_count > 1:
            said += self._said_of_exchange(cluster)
        if len({group.offer.gpu for group in cluster.groups} - {"cpu"}) > 1:
            said.append(
                "NCCL is known to hang between some unlike GPUs (NVIDIA/nccl issues 794 and 1136): before the job, "
                "let all these machines exchange once: torchrun ... -m srifty probe --max-seconds 60 -o net.json"
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
        said += self._data_waits(cluster)
        said.append("the time to start the machines and to load the data set is not counted")
        return tuple(said)

    def _said_of_exchange(self, cluster: Cluster) -> list[str]:
        """Where the exchange times come from."""
        learned, offers = self.exchange, [group.offer for group in cluster.groups]
        setups = [] if learned is None else covering(learned, offers, cluster.node_count > 1)
        if learned is None or not setups:
            return [
                "exchange times follow from the catalogue's sustained network rates and from efficiencies "
                "measured on other machines, not on these"
            ]
        said = []
        for setup in (learned.model.setups[s] for s in setups):
            sessions = f"{setup.session_count} session{'s' if setup.session_count > 1 else ''}"
            said.append(
                f"exchange times on {' + '.join(setup.instance_types)} follow from {setup.sample_count} measured "
                f"exchanges ({setup.backend_name}, {sessions}), not from the catalogue's rate"
            )
        return [*said, *learned.model.assumptions]

    def _data_waits(self, cluster: Cluster) -> list[str]:
        """What is taken of the loader, for each kind of machine whose steps wait for it much."""
        said = []
        for group in cluster.groups:
            index = self.profile_index(group.offer)
            if (
                index is None
                or not (on_gpu := JobOnGpu(self.profiles[index], self.compute[index])).is_data_bound
            ):
                continue
            vcpu_count = group.offer.vcpu_count / group.offer.gpu_count
            measured = on_gpu.profile.cpu_count
            beside = "" if measured is None else f", the measured one {measured}"
            said.append(
                f"the wait for data, up to {100 * on_gpu.data_wait_share:.0f} % of a step, is taken to be as on the "
                f"measured machine; {group.offer.instance_type} has {vcpu_count:g} vCPUs a GPU to load with{beside}"
            )
        return list(dict.fromkeys(said))

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


def _rows_by_mix(used: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Each mix of profiles that stands in a row of `used`, and the rows that it stands in."""
    if used.shape[1] == 1:  # as nearly always: no sorting of 100,000 rows for a handful of profiles
        for profile in np.flatnonzero(np.bincount(used[:, 0] + 1)) - 1:
            yield np.array([profile]), np.flatnonzero(used[:, 0] == profile)
        return
    mixes, mix_of = np.unique(used, axis=0, return_inverse=True)
    for m, mix in enumerate(mixes):
        yield mix, np.flatnonzero(mix_of.reshape(-1) == m)


def _spread(scenarios: Floats) -> SpreadColumns:
    """Percentiles from the scenarios (centre, doubt 1 low and high, doubt 2 low and high); see `estimate`."""
    middle = scenarios[0]
    below = np.sqrt(sum(np.maximum(0, middle - scenarios[low]) ** 2 for low in (1, 3)))
    above = np.sqrt(sum(np.maximum(0, scenarios[high] - middle) ** 2 for high in (2, 4)))
    return SpreadColumns(np.maximum(0, middle - below), middle, middle + above)
