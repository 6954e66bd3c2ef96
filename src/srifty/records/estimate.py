"""IterationEstimate and JobEstimate: how long, how much, and where the time goes; predicted, not measured."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from srifty.records.cluster import Cluster
from srifty.records.record import Record
from srifty.records.spread import Spread

Chance = Annotated[float, Field(ge=0, le=1)]


class IterationEstimate(Record):
    """The mean step of the optimizer on a cluster, and the doubt about it.

    duration = compute + waiting + exposed AllReduce holds for the medians; spreads do not add.
    """

    cluster: Cluster
    duration_s: Spread
    compute_s: Spread
    """Forward and backward of every micro-step, and the optimizer, on the slowest group."""
    exposed_allreduce_s: Spread
    """The part of the gradient exchange that outlasts the backward pass."""
    waiting_s: Spread
    """For the slowest of n ranks, and for the loader."""
    inside_exchange_s: Spread | None = None
    """How long the links between the GPUs of a node are busy with the exchange, hidden or exposed; None: there is
    none."""
    across_exchange_s: Spread | None = None
    """How long the network between nodes is busy with it, at the same time as the links inside; None: there is none."""
    slowest_group: Annotated[int, Field(ge=0)]
    """Index into `cluster.groups`."""
    extrapolated: tuple[str, ...] = ()
    """What lies outside the measured range."""


class JobEstimate(Record):
    """A whole job on a cluster."""

    iteration: IterationEstimate
    step_count: Annotated[int, Field(ge=1)]
    samples_per_s: Spread
    duration_s: Spread
    cost_usd: Spread
    interruption_count: Annotated[float, Field(ge=0)] = 0.0
    """Expected number over the job."""
    chance_in_time: Chance | None = None
    """None: no deadline was given."""
    chance_in_budget: Chance | None = None
    """None: no budget was given."""
    assumptions: tuple[str, ...] = ()
    """What the estimate rests on that was not measured, and where its exchange times come from."""
