"""RunState, Node, Run and Event: a plan on its way."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from srifty.records.offer import Offer
from srifty.records.plan import Plan
from srifty.records.record import Record
from srifty.records.spread import Spread

Count = Annotated[int, Field(ge=0)]
Usd = Annotated[float, Field(ge=0)]


class RunState(StrEnum):
    """starting -> running <-> replanning -> finished | stopped | failed."""

    STARTING = "starting"
    RUNNING = "running"
    REPLANNING = "replanning"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


class NodeState(StrEnum):
    """starting -> running -> lost | ended."""

    STARTING = "starting"
    RUNNING = "running"
    LOST = "lost"
    ENDED = "ended"


class Node(Record):
    """One rented machine."""

    node_id: str
    """The provider's name for it."""
    offer: Offer
    state: NodeState
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None


class Run(Record):
    """Where a run stands."""

    run_id: str
    plan: Plan
    state: RunState
    nodes: tuple[Node, ...] = ()
    samples_done: Count = 0
    cost_usd: Usd = 0.0
    started_at: AwareDatetime


class StepsTimed(Record):
    """Steps that a rank has done since its last report."""

    kind: Literal["steps_timed"] = "steps_timed"
    at: AwareDatetime
    node_id: str
    first_step: Count
    step_s: Spread


class NodeLost(Record):
    """A node is gone or no longer answers."""

    kind: Literal["node_lost"] = "node_lost"
    at: AwareDatetime
    node_id: str
    why: str


class PriceChanged(Record):
    """An offer's price moved."""

    kind: Literal["price_changed"] = "price_changed"
    at: AwareDatetime
    offer: Offer
    old_usd_per_hour: Usd


class Replanned(Record):
    """Another plan took the place of the running one."""

    kind: Literal["replanned"] = "replanned"
    at: AwareDatetime
    plan: Plan
    why: str


class StateChanged(Record):
    """The run went from one state to another."""

    kind: Literal["state_changed"] = "state_changed"
    at: AwareDatetime
    old: RunState
    new: RunState
    why: str = ""


Event = Annotated[
    StepsTimed | NodeLost | PriceChanged | Replanned | StateChanged, Field(discriminator="kind")
]
"""What happened in a run; `kind` tells which."""
