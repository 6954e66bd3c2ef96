"""Planner: of everything that can be rented, the cheapest cluster in time or the fastest within a budget.

The door of this room. It compares every candidate, so a plan's gap is 0: none of the kind searched is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from srifty.errors import InvalidInput, NoFeasiblePlan, NotMeasured
from srifty.planning.candidates import order, uniform_clusters
from srifty.planning.wording import broken_limit_message, nearest_reason, reason
from srifty.records.cluster import Cluster
from srifty.records.cluster_table import ClusterTable, EstimateTable
from srifty.records.job import Job
from srifty.records.offer import Catalog, Dropped, Offer
from srifty.records.plan import Constraints, Goal, Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

RUNNERS_UP = 9


class Estimator(Protocol):
    """What planning asks of a prediction."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that were measured."""

    def batch_range(self, offer: Offer) -> tuple[int, int] | None:
        """Smallest and largest batch that a GPU of the offer trains with; None: it was not measured."""

    def estimate(self, clusters: ClusterTable, job: Job) -> EstimateTable:
        """What each cluster would do with the job, row for row."""

    def assumptions(self, cluster: Cluster) -> tuple[str, ...]:
        """What an estimate of the cluster rests on that was not measured."""


def plan(job: Job, catalog: Catalog, constraints: Constraints, estimator: Estimator) -> Plan:
    """Choose a uniform cluster for a job.

        minimise   cost (cheapest) or duration (fastest), the median of each
        subject to P(duration <= deadline) >= confidence,  P(cost <= budget) >= confidence

    over every offer of `catalog` that the constraints' clouds, regions, instance types, GPUs and markets allow.
    Ties go to the better in the other quantity, then to fewer nodes, then by name.

    Raises:
        NotMeasured: no offer has a GPU with a profile
        NoFeasiblePlan: no cluster meets every limit; carries the nearest and the limit that it breaks most
    """
    offers = catalog.only(
        clouds=constraints.clouds,
        regions=constraints.regions,
        instance_types=constraints.instance_types,
        gpus=constraints.gpus,
        markets=constraints.markets,
    ).offers
    if job.global_batch is None:
        raise InvalidInput(f"job {job.name!r} has no global batch: give --batch [samples]")
    candidates = uniform_clusters(offers, job.global_batch, constraints, estimator.batch_range)
    if not candidates.table.offers:
        offered = sorted({offer.gpu for offer in offers})
        raise NotMeasured(
            f"no offer has a GPU that was measured (measured: {', '.join(estimator.gpus)}; offered: "
            f"{', '.join(offered)}); run 'srifty profile' on a machine with one of these, "
            f"or go by published peaks, roughly (--estimate-unmeasured)"
        )
    if len(candidates.table) == 0:
        left_out = ", ".join(f"{dropped.count} {dropped.why}" for dropped in candidates.dropped)
        raise NoFeasiblePlan(
            f"no cluster can train with a global batch of {job.global_batch} samples; left out: {left_out}\n"
            f"try a larger batch, one with more divisors such as a power of two, or more GPUs"
        )
    table = estimator.estimate(candidates.table, job)
    objective, other = table.cost_usd.p50, table.duration_s.p50
    if constraints.goal is Goal.FASTEST:
        objective, other = other, objective
    ranking = _ranking(table, objective, other)
    excess = _excess(table, constraints)
    feasible = ranking[np.max(list(excess.values()), axis=0)[ranking] <= 1] if excess else ranking
    if len(feasible) == 0:
        worst = np.max(list(excess.values()), axis=0)
        nearest = int(ranking[np.argmin(worst[ranking])])
        limit = max(excess, key=lambda name: float(excess[name][nearest]))
        found = _plan(job, catalog, constraints, estimator, table, [nearest], candidates.dropped, objective)
        why = nearest_reason(found.estimate, constraints, len(table))
        found = found.model_copy(update={"reason": why})
        raise NoFeasiblePlan(broken_limit_message(found, limit), nearest=found, broken_limit=limit)
    best = _best_of_each_type(table.clusters, feasible)[: 1 + RUNNERS_UP]
    return _plan(job, catalog, constraints, estimator, table, best, candidates.dropped, objective)


def _ranking(table: EstimateTable, objective: Floats, other: Floats) -> Ints:
    """Rows from the best to the worst; the same table always gives the same order."""
    clusters = table.clusters
    by_name = sorted(range(len(clusters.offers)), key=lambda i: order(clusters.offers[i]))
    name_rank = np.empty(len(by_name), np.int64)
    name_rank[by_name] = np.arange(len(by_name))
    names, nodes = name_rank[clusters.offer_index[:, 0]], clusters.node_count[:, 0]
    keys = (clusters.accumulation_count, names, nodes, _rounded(other), _rounded(objective))
    ranking: Ints = np.lexsort(keys)
    return ranking


def _rounded(figures: Floats) -> Floats:
    """Logarithms to ten digits: what differs by less is equal, and not decided by the last bit of a sum."""
    return np.asarray(np.round(np.log(np.maximum(figures, 1e-300)), 10), np.float64)


def _excess(table: EstimateTable, constraints: Constraints) -> dict[str, Floats]:
    """How many times each limit each cluster needs, at the asked confidence; at most 1 meets it."""
    excess = {}
    if constraints.deadline_s is not None:
        excess["within"] = table.duration_s.quantile(constraints.confidence) / constraints.deadline_s
    if constraints.budget_usd is not None:
        excess["budget"] = table.cost_usd.quantile(constraints.confidence) / constraints.budget_usd
    return excess


def _best_of_each_type(clusters: ClusterTable, ranking: Ints) -> list[int]:
    """First row of each (cloud, instance type), in the order of the ranking."""
    types = [(offer.cloud, offer.instance_type) for offer in clusters.offers]
    first: dict[tuple[str, str], int] = {}
    number = {kind: i for i, kind in enumerate(dict.fromkeys(types))}
    of_row = np.array([number[kind] for kind in types])[clusters.offer_index[ranking, 0]]
    _, at = np.unique(of_row, return_index=True)
    for row in ranking[np.sort(at)]:
        first.setdefault(types[clusters.offer_index[row, 0]], int(row))
    return list(first.values())


def _plan(
    job: Job,
    catalog: Catalog,
    constraints: Constraints,
    estimator: Estimator,
    table: EstimateTable,
    best: Sequence[int],
    dropped: tuple[Dropped, ...],
    objective: Floats,
) -> Plan:
    estimates = [
        table.job(row, deadline_s=constraints.deadline_s, budget_usd=constraints.budget_usd) for row in best
    ]
    chosen, *runners_up = estimates
    return Plan(
        job=job,
        constraints=constraints,
        cluster=chosen.iteration.cluster,
        estimate=chosen,
        runners_up=tuple(runners_up),
        candidate_count=len(table),
        dropped=dropped,
        bound=float(objective[best[0]]),
        gap=0.0,
        reason=reason(chosen, runners_up, constraints, len(table)),
        assumptions=estimator.assumptions(chosen.iteration.cluster),
        catalog_taken_at=catalog.taken_at,
    )
