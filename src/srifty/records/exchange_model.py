"""ExchangeModel: what was learned from measured exchanges, as a file that a person can open."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from srifty.records.record import Count, Positive, Record

NotNegative = Annotated[float, Field(ge=0, le=1e15)]


class ExchangeSetup(Record):
    """Parameters of one kind of machine with one backend, in one node or over several.

    The time of an AllReduce is ((latency)^p + (moving)^p)^(1/p), see docs/models.md.
    """

    instance_types: Annotated[tuple[str, ...], Field(min_length=1)]
    backend: str
    backend_version: str | None = None
    has_many_nodes: bool
    link_bytes_per_s: Positive
    """Nominal rate of the slowest link, of which `share` is a share: the network's, in one node the GPU link's."""
    latency_s: Positive
    """Of one hop round the ring."""
    latency_growth: Positive
    """Power of the hops with which latency grows; 1 for a ring."""
    share: Positive
    """Of the link's rate that an exchange gets between two peers."""
    peer_growth: Positive
    """Power of the peers with which that share falls."""
    sharpness: Positive
    """p: 1 where latency and moving add, large where one hides the other."""
    log_covariance: tuple[tuple[float, ...], ...]
    """Doubt about the logarithms of the five, in their order."""
    node_range: tuple[Count, Count]
    """Nodes measured, from, to."""
    gpus_per_node_range: tuple[Positive, Positive]
    message_range_bytes: tuple[Count, Count]
    concurrency_range: tuple[Count, Count]
    sample_count: Count
    session_count: Count
    vcpu_count: Count | None = None
    burst_bytes_per_s: Positive | None = None
    gpu_link: str | None = None


class TreeTable(Record):
    """One decision tree as columns, a row a node; leaves have no feature (-1)."""

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    """Go left where the feature is below."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    missing_left: tuple[bool, ...]
    """Where a row goes that lacks the feature."""
    value: tuple[float, ...]
    """Of a leaf."""


class TreeQuantile(Record):
    """Trees whose leaves add up, with a constant, to one quantile of what the formula leaves."""

    quantile: Annotated[float, Field(gt=0, lt=1)]
    base: float
    trees: tuple[TreeTable, ...] = ()


class ExchangeModel(Record):
    """How long an AllReduce takes on machines whose exchanges were measured."""

    setups: Annotated[tuple[ExchangeSetup, ...], Field(min_length=1)]
    features: tuple[str, ...]
    """Columns that the trees see, in order."""
    backends: tuple[str, ...]
    """Backend and version by their number in the column of that name."""
    residuals: tuple[TreeQuantile, ...]
    within_session_log_sd: NotNegative
    """Standard deviation of the logarithm of repeated readings in one session."""
    between_session_log_sd: NotNegative | None
    """The same from session to session; None: there was one session only, and the default is used."""
    small_band: tuple[NotNegative, NotNegative]
    """Factors below and above by which the doubt was stretched so that 80 % of readings left out lie in the band;
    for messages under 1 MiB."""
    large_band: tuple[NotNegative, NotNegative]
    """The same from 1 MiB."""
    assumptions: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    fitted_at: AwareDatetime
