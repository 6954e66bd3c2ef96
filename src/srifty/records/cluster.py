"""NodeGroup and Cluster: what is rented, and each GPU's batch."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from srifty.records.offer import Offer
from srifty.records.record import Count, Record


class NodeGroup(Record):
    """Nodes of one offer; each of their GPUs takes the same batch."""

    offer: Offer
    node_count: Count
    batch_per_gpu: Count
    """Samples that one GPU takes in one micro-step."""
    accumulation_count: Count = 1
    """Micro-steps to one step of the optimizer; gradients are exchanged in the last."""

    @property
    def gpu_count(self) -> int:
        """GPUs in the whole group."""
        return self.node_count * self.offer.gpu_count

    @property
    def global_batch(self) -> int:
        """Samples that the group contributes to one step of the optimizer."""
        return self.gpu_count * self.batch_per_gpu * self.accumulation_count

    @property
    def usd_per_hour(self) -> float:
        """Price of all the group's nodes for an hour."""
        return self.node_count * self.offer.usd_per_hour


class Cluster(Record):
    """Groups of nodes that train one job together."""

    groups: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _same_accumulation(self) -> Self:
        if len({group.accumulation_count for group in self.groups}) > 1:
            raise ValueError(
                "all groups must accumulate over the same number of micro-steps, else ranks wait for ever"
            )
        return self

    @property
    def node_count(self) -> int:
        """Nodes of all groups."""
        return sum(group.node_count for group in self.groups)

    @property
    def gpu_count(self) -> int:
        """GPUs of all groups."""
        return sum(group.gpu_count for group in self.groups)

    @property
    def global_batch(self) -> int:
        """Samples that one step of the optimizer sees."""
        return sum(group.global_batch for group in self.groups)

    @property
    def usd_per_hour(self) -> float:
        """Price of all nodes for an hour."""
        return sum(group.usd_per_hour for group in self.groups)

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes are of one instance type and all GPUs take the same batch."""
        return len({(g.offer.cloud, g.offer.instance_type, g.batch_per_gpu) for g in self.groups}) == 1

    def __str__(self) -> str:
        return " + ".join(f"{g.node_count} x {g.offer.instance_type}" for g in self.groups)
