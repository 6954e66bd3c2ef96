"""AllReduceSample and NetworkProfile: measured exchanges."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from srifty.records.offer import Dropped
from srifty.records.record import Count, Positive, Record


class AllReduceSample(Record):
    """One measured AllReduce: the longest time over all ranks."""

    instance_types: Annotated[tuple[str, ...], Field(min_length=1)]
    """One a node group; a uniform cluster has one."""
    node_count: Count
    gpu_count: Count
    """Ranks over all nodes."""
    backend: str
    backend_version: str | None = None
    link_bytes_per_s: Positive | None = None
    """Rate of the slowest node's link; None: not known."""
    message_bytes: Count
    duration_s: Positive
    """With several exchanges at once, until the last has ended."""
    repeat: Annotated[int, Field(ge=0)] = 0
    concurrency: Count = 1
    """Exchanges of this size at once; DDP over gloo has two."""
    session: str | None = None
    """Readings on the same machines in the same hour share one; None: the file's own."""

    @property
    def gpus_per_node(self) -> float:
        """Ranks on a node; where nodes differ, their mean."""
        return self.gpu_count / self.node_count


class NetworkProfile(Record):
    """Measured exchanges."""

    samples: Annotated[tuple[AllReduceSample, ...], Field(min_length=1)]
    versions: dict[str, str] = Field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()
    """Lines of a file that could not be read, and readings that were wrong."""
    taken_at: AwareDatetime
