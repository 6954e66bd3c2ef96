"""Goal, Constraints and Plan: what was asked, and what was chosen and why."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from srifty.records.cluster import Cluster
from srifty.records.estimate import JobEstimate
from srifty.records.job import Job
from srifty.records.offer import Dropped, Market
from srifty.records.record import Count, Positive, Record


class Goal(StrEnum):
    """What is made small among the clusters that meet every limit."""

    CHEAPEST = "cheapest"
    FASTEST = "fastest"


class Constraints(Record):
    """Limits that a plan must meet; an empty tuple allows everything."""

    goal: Goal = Goal.CHEAPEST
    deadline_s: Positive | None = None
    """From the first step to the last."""
    budget_usd: Positive | None = None
    markets: Annotated[tuple[Market, ...], Field(min_length=1)] = (Market.ON_DEMAND,)
    clouds: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    max_nodes: Count = 16
    max_gpus: Count | None = None
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.9
    """Deadline and budget are met with at least this chance, each."""


class Plan(Record):
    """The chosen cluster, how sure it is, and what stood beside it."""

    job: Job
    constraints: Constraints
    cluster: Cluster
    estimate: JobEstimate
    runners_up: tuple[JobEstimate, ...] = ()
    """The best cluster of each other instance type, best first: ready as fallbacks."""
    candidate_count: Annotated[int, Field(ge=1)]
    """Clusters that were compared."""
    dropped: tuple[Dropped, ...] = ()
    """What was not compared, and why that could not change the choice."""
    bound: Annotated[float, Field(ge=0)]
    """No cluster of the kind searched does better: US dollars for the cheapest, seconds for the fastest."""
    gap: Annotated[float, Field(ge=0)]
    """How far the choice may be above the bound, as a share of it; 0: provably the best."""
    reason: str
    """One sentence: why this one."""
    assumptions: tuple[str, ...] = ()
    """What the estimate rests on that was not measured."""
    catalog_taken_at: date

    @model_validator(mode="after")
    def _one_cluster(self) -> Self:
        if self.cluster != self.estimate.iteration.cluster:
            raise ValueError("cluster and estimate.iteration.cluster must be the same cluster")
        return self
