"""AllReduceSample and NetworkProfile: measured exchanges."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

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
    repeat: Annotated[int, Field(ge=0)] = 0


class NetworkProfile(Record):
    """Exchanges measured in one session."""

    samples: Annotated[tuple[AllReduceSample, ...], Field(min_length=1)]
    versions: dict[str, str] = Field(default_factory=dict)
    taken_at: AwareDatetime
