"""ClusterTable and EstimateTable: many clusters, and what is expected of them, as columns.

A search looks at 100,000 clusters in a second; as single records they would take longer to make than to
compare. A row becomes a record when somebody wants to look at it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Self

from srifty.records.cluster import Cluster, NodeGroup
from srifty.records.estimate import IterationEstimate, JobEstimate
from srifty.records.offer import Offer
from srifty.records.spread import Z90, Spread

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

SIGMA_POINT_COUNT = 5
"""Scenarios behind each predicted spread: the centre, and one up and one down for each of two doubts."""


@dataclass(frozen=True)
class ClusterTable:
    """Clusters as columns; row i has the groups j with node_count[i, j] > 0, and those come first."""

    offers: tuple[Offer, ...]
    """What `offer_index` points into."""
    offer_index: Ints
    """[cluster, group]"""
    node_count: Ints
    """[cluster, group]; 0 where the cluster has no such group"""
    batch_per_gpu: Ints
    """[cluster, group]"""
    accumulation_count: Ints
    """[cluster]"""

    @classmethod
    def of(cls, clusters: Sequence[Cluster]) -> Self:
        """The same clusters as a table."""
        import numpy as np

        place: dict[Offer, int] = {}
        shape = (len(clusters), max((len(cluster.groups) for cluster in clusters), default=1))
        offer_index, node_count = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        batch_per_gpu = np.ones(shape, np.int64)
        for i, cluster in enumerate(clusters):
            for j, group in enumerate(cluster.groups):
                offer_index[i, j] = place.setdefault(group.offer, len(place))
                node_count[i, j] = group.node_count
                batch_per_gpu[i, j] = group.batch_per_gpu
        accumulation = np.array([cluster.groups[0].accumulation_count for cluster in clusters], np.int64)
        return cls(tuple(place), offer_index, node_count, batch_per_gpu, accumulation)

    def __len__(self) -> int:
        return len(self.accumulation_count)

    def cluster(self, row: int) -> Cluster:
        """Row as a record."""
        return Cluster(
            groups=tuple(
                NodeGroup(
                    offer=self.offers[self.offer_index[row, j]],
                    node_count=int(self.node_count[row, j]),
                    batch_per_gpu=int(self.batch_per_gpu[row, j]),
                    accumulation_count=int(self.accumulation_count[row]),
                )
                for j in range(self.node_count.shape[1])
                if self.node_count[row, j] > 0
            )
        )

    @cached_property
    def gpus_per_node(self) -> Ints:
        """[cluster, group]"""
        import numpy as np

        return np.array([offer.gpu_count for offer in self.offers], np.int64)[self.offer_index]

    @cached_property
    def gpu_count(self) -> Ints:
        """GPUs of all groups, [cluster]."""
        total: Ints = (self.node_count * self.gpus_per_node).sum(axis=1)
        return total

    @cached_property
    def global_batch(self) -> Ints:
        """Samples that one step of the optimizer sees, [cluster]."""
        per_micro_step = (self.node_count * self.gpus_per_node * self.batch_per_gpu).sum(axis=1)
        total: Ints = per_micro_step * self.accumulation_count
        return total

    @cached_property
    def usd_per_hour(self) -> Floats:
        """Price of all nodes for an hour, [cluster]."""
        import numpy as np

        price = np.array([offer.usd_per_hour for offer in self.offers], np.float64)[self.offer_index]
        total: Floats = (price * self.node_count).sum(axis=1)
        return total


@dataclass(frozen=True)
class SpreadColumns:
    """Percentiles of one predicted quantity, a row a cluster.

    Between and beyond the percentiles a normal distribution is assumed whose standard deviation differs
    above and below the median.
    """

    p10: Floats
    p50: Floats
    p90: Floats

    def spread(self, row: int) -> Spread:
        """Row as a record.

        mean = p50 + (sd_above - sd_below) / sqrt(2 pi), sd = distance of the percentile from p50 / z(0.9)
        """
        p10, p50, p90 = float(self.p10[row]), float(self.p50[row]), float(self.p90[row])
        mean = p50 + ((p90 - p50) - (p50 - p10)) / Z90 / math.sqrt(2 * math.pi)
        return Spread(p10=p10, p50=p50, p90=p90, mean=mean, sample_count=SIGMA_POINT_COUNT)

    def quantile(self, share: float) -> Floats:
        """Value that the quantity stays below with this chance, 0.5 <= share < 1."""
        return self.p50 + (self.p90 - self.p50) * (NormalDist().inv_cdf(share) / Z90)

    def scaled(self, factor: Floats) -> SpreadColumns:
        """The quantity times a factor known without doubt, a row a factor."""
        return SpreadColumns(self.p10 * factor, self.p50 * factor, self.p90 * factor)

    def chance_below(self, row: int, limit: float) -> float:
        """Chance that the quantity of a row is at most `limit`."""
        away = limit - float(self.p50[row])
        side = float(self.p90[row] - self.p50[row]) if away >= 0 else float(self.p50[row] - self.p10[row])
        if side <= 0:
            return 1.0 if away >= 0 else 0.0
        return NormalDist().cdf(away / side * Z90)


@dataclass(frozen=True)
class EstimateTable:
    """What is expected of each cluster of a table: the mean step of the optimizer, and the whole job."""

    clusters: ClusterTable
    step_count: Ints
    """Steps of the whole job."""
    step_s: SpreadColumns
    compute_s: SpreadColumns
    exposed_allreduce_s: SpreadColumns
    waiting_s: SpreadColumns
    inside_exchange_s: SpreadColumns
    """How long the links inside the nodes are busy with the exchange."""
    across_exchange_s: SpreadColumns
    """How long the network between nodes is."""
    slowest_group: Ints
    extrapolated: tuple[tuple[str, NDArray[np.bool_]], ...]
    """What lies outside the measured range, and for which clusters."""

    def __len__(self) -> int:
        return len(self.clusters)

    @cached_property
    def duration_s(self) -> SpreadColumns:
        """Length of the whole job."""
        return self.step_s.scaled(self.step_count.astype(float))

    @cached_property
    def cost_usd(self) -> SpreadColumns:
        """Price of the whole job, every node paid from the first step to the last."""
        return self.duration_s.scaled(self.clusters.usd_per_hour / 3600)

    def iteration(self, row: int) -> IterationEstimate:
        """One step of a row as a record."""
        return IterationEstimate(
            cluster=self.clusters.cluster(row),
            duration_s=self.step_s.spread(row),
            compute_s=self.compute_s.spread(row),
            exposed_allreduce_s=self.exposed_allreduce_s.spread(row),
            waiting_s=self.waiting_s.spread(row),
            inside_exchange_s=self._exchange(self.inside_exchange_s, row),
            across_exchange_s=self._exchange(self.across_exchange_s, row),
            slowest_group=int(self.slowest_group[row]),
            extrapolated=tuple(what for what, where in self.extrapolated if where[row]),
        )

    def _exchange(self, part: SpreadColumns, row: int) -> Spread | None:
        return part.spread(row) if part.p50[row] > 0 else None

    def job(
        self, row: int, *, deadline_s: float | None = None, budget_usd: float | None = None
    ) -> JobEstimate:
        """The whole job of a row as a record, with its chances to keep the limits."""
        step = self.step_s.spread(row)
        batch = int(self.clusters.global_batch[row])
        return JobEstimate(
            iteration=self.iteration(row),
            step_count=int(self.step_count[row]),
            samples_per_s=Spread(
                p10=batch / step.p90,
                p50=batch / step.p50,
                p90=batch / step.p10,
                mean=batch / step.mean,  # samples of a long run over its time: the mean step counts
                sample_count=step.sample_count,
            ),
            duration_s=self.duration_s.spread(row),
            cost_usd=self.cost_usd.spread(row),
            chance_in_time=None if deadline_s is None else self.duration_s.chance_below(row, deadline_s),
            chance_in_budget=None if budget_usd is None else self.cost_usd.chance_below(row, budget_usd),
        )
