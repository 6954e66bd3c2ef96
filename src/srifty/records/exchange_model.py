"""ExchangeModel: what was learned from measured exchanges, as a file that a person can open."""

from __future__ import annotations

import itertools
from typing import Annotated, Self

from pydantic import AwareDatetime, Field, model_validator

from srifty.records.record import Count, Positive, Record

NotNegative = Annotated[float, Field(ge=0, le=1e15)]
LogSd = Annotated[float, Field(ge=0, le=10)]
Power = Annotated[float, Field(gt=1e-9, le=10)]

PARAMETER_COUNT = 5
"""Parameters of the exchange formula; another formula is another version of the format."""
FEATURE_NAMES = (
    "node_count",
    "gpus_per_node",
    "message_bytes",
    "link_bytes_per_s",
    "burst_bytes_per_s",
    "vcpu_count",
    "concurrency",
    "gpu_link",
    "backend",
)
"""Columns that trees may see."""
QUANTILE_COUNT = 3
LARGEST_RESIDUAL = 50.0
"""Of the logarithm of a time; within it, its exponential is a number."""


class ExchangeSetup(Record):
    """Parameters of one kind of machine with one backend, in one node or over several.

    The time of an AllReduce is ((latency)^p + (moving)^p)^(1/p), see docs/models.md.
    """

    instance_types: Annotated[tuple[str, ...], Field(min_length=1)]
    backend: str
    backend_version: str | None = None
    has_many_nodes: bool
    link_bytes_per_s: Annotated[float, Field(ge=1, le=1e15)]
    """Nominal rate of the slowest link, of which `share` is a share: the network's, in one node the GPU link's."""
    latency_s: Annotated[float, Field(ge=1e-9, le=1e4)]
    """Of one hop round the ring."""
    latency_growth: Power
    """Power of the hops with which latency grows; 1 for a ring."""
    share: Annotated[float, Field(ge=1e-6, le=20)]
    """Of the link's rate that an exchange gets between two peers."""
    peer_growth: Power
    """Power of the peers with which that share falls."""
    sharpness: Annotated[float, Field(ge=0.01, le=100)]
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

    @property
    def backend_name(self) -> str:
        """Backend and version in one word."""
        return f"{self.backend} {self.backend_version or ''}".strip()

    @model_validator(mode="after")
    def _plausible(self) -> Self:
        _check_covariance(self.log_covariance)
        for name in ("node_range", "gpus_per_node_range", "message_range_bytes", "concurrency_range"):
            least, most = getattr(self, name)
            if least > most:
                raise ValueError(f"{name} is from {least} to {most}; it must rise")
        if (self.node_range[1] > 1) != self.has_many_nodes or (self.node_range[0] > 1) != self.has_many_nodes:
            raise ValueError(f"node_range is {self.node_range}, has_many_nodes {self.has_many_nodes}")
        if self.session_count > self.sample_count:
            raise ValueError(
                f"session_count is {self.session_count}, sample_count {self.sample_count}; it is less"
            )
        return self


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

    @model_validator(mode="after")
    def _is_tree(self) -> Self:
        count = len(self.feature)
        for name in ("threshold", "left", "right", "missing_left", "value"):
            if len(getattr(self, name)) != count or not count:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} rows, feature {count}; a tree has as many"
                )
        seen, to_see = {0}, [0]
        while to_see:
            node = to_see.pop()
            for child in (self.left[node], self.right[node]) if self.feature[node] >= 0 else ():
                if not 0 < child < count or child in seen:
                    raise ValueError(f"left and right of row {node} are no tree")
                seen.add(child)
                to_see.append(child)
        if any(abs(value) > 1e30 for value in self.threshold):
            raise ValueError("threshold holds a number beyond 1e30")
        return self


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
    within_session_log_sd: LogSd
    """Standard deviation of the logarithm of repeated readings in one session."""
    between_session_log_sd: LogSd | None
    """The same from session to session; None: there was one session only, and the default is used."""
    small_band: tuple[NotNegative, NotNegative]
    """Factors below and above by which the doubt was stretched so that 80 % of readings left out lie in the band;
    for messages under 1 MiB."""
    large_band: tuple[NotNegative, NotNegative]
    """The same from 1 MiB."""
    assumptions: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    fitted_at: AwareDatetime

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        keys = [
            (one.instance_types, one.backend, one.backend_version, one.has_many_nodes) for one in self.setups
        ]
        if len(set(keys)) < len(keys):
            types = next(" + ".join(key[0]) for key in keys if keys.count(key) > 1)
            raise ValueError(f"setups: one of {types} stands there twice")
        unknown = [name for name in self.features if name not in FEATURE_NAMES]
        if unknown or not self.features or len(set(self.features)) < len(self.features):
            raise ValueError(
                f"features must be some of {', '.join(FEATURE_NAMES)}, each once"
                + (f"; {unknown[0][:40]!r} is none" if unknown else "")
            )
        missing = [one.backend_name for one in self.setups if one.backend_name not in self.backends]
        if missing:
            raise ValueError(f"backends lacks {missing[0][:40]!r}, which setups have")
        shares = [one.quantile for one in self.residuals]
        if len(shares) != QUANTILE_COUNT or any(a >= b for a, b in itertools.pairwise(shares)):
            raise ValueError(
                f"residuals holds {len(shares)} quantiles; expected are {QUANTILE_COUNT} that rise"
            )
        for number, one in enumerate(self.residuals):
            most = abs(one.base) + sum(max(map(abs, tree.value)) for tree in one.trees)
            if most > LARGEST_RESIDUAL:
                raise ValueError(
                    f"residuals.{number}: base and trees add up to {most:g}, as a logarithm; "
                    f"at most {LARGEST_RESIDUAL:g} is plausible"
                )
        columns = [column for one in self.residuals for tree in one.trees for column in tree.feature]
        if columns and not -1 <= min(columns) <= max(columns) < len(self.features):
            raise ValueError(
                f"residuals: trees see column {max(columns)}, and features has {len(self.features)}"
            )
        return self


def _check_covariance(rows: tuple[tuple[float, ...], ...]) -> None:
    """That it is square, symmetric, and gives no doubt below zero (Cholesky's decomposition exists)."""
    sides = [len(row) for row in rows]
    if sides != [PARAMETER_COUNT] * PARAMETER_COUNT:
        raise ValueError(f"log_covariance must have {PARAMETER_COUNT} rows of {PARAMETER_COUNT} numbers")
    slack = 1e-9 * max(1.0, *(abs(row[i]) for i, row in enumerate(rows)))
    if any(abs(rows[i][j] - rows[j][i]) > slack for i in range(PARAMETER_COUNT) for j in range(i)):
        raise ValueError("log_covariance is not symmetric")
    if not all(abs(value) <= 1e6 for row in rows for value in row):
        raise ValueError("log_covariance holds a number beyond 1e6")
    left = [list(row) for row in rows]
    for k in range(PARAMETER_COUNT):
        if left[k][k] < -slack:
            raise ValueError(f"log_covariance gives a variance below 0 ({left[k][k]:.3g}, row {k + 1})")
        for i in range(k + 1, PARAMETER_COUNT):
            for j in range(k + 1, PARAMETER_COUNT):
                left[i][j] -= left[i][k] * left[k][j] / max(left[k][k], slack)
