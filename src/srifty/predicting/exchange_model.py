"""A learned ExchangeModel at work: how long AllReduce takes on machines that were measured, and how sure that is.

It needs numpy alone: the formula is a line of arithmetic, and the trees are tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from srifty.predicting.boosted_trees import evaluate
from srifty.predicting.exchange_formula import PARAMETERS, Exchanges, log_duration, slopes
from srifty.records.exchange_model import FEATURE_NAMES, ExchangeModel, ExchangeSetup
from srifty.records.spread import Z90
from srifty.records.text import size_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

FEATURES = dict(zip(FEATURE_NAMES, (1, 1, 1, -1, -1, -1, 1, 0, 0), strict=True))
"""What the trees see, and whether what they say may only rise (1) or only fall (-1) with it."""
GPU_LINKS = ("pcie", "nvlink", "other")
ASSUMED_SESSION_LOG_SD = 0.15
"""From one session to another where one was measured: up to 1.8x on shared clouds (Srifty, arXiv 2011.14243), taken
for four standard deviations."""
OCTAVE_LOG_SD = 0.10
"""Doubt that each doubling beyond the measured range adds."""
LARGE_BYTES = 2**20
"""Messages from here on are those that training exchanges; their readings scatter less than smaller ones'."""
FADES_OVER_OCTAVES = 2.0
"""Doublings beyond the measured range after which nothing is left of what the trees add."""


@dataclass(frozen=True)
class Told:
    """What is expected of exchanges: percentiles of the logarithm of time [log s], and where each row is beyond."""

    p10: Floats
    p50: Floats
    p90: Floats
    outside: dict[str, Bools]


@dataclass(frozen=True)
class LearnedExchange:
    """An ExchangeModel as arrays."""

    model: ExchangeModel
    parameters: Floats
    """Logarithms, [setup, parameter]."""
    covariance: Floats

    @classmethod
    def of(cls, model: ExchangeModel) -> Self:
        """The arrays of a record."""
        return cls(
            model,
            np.log([[getattr(setup, name) for name in PARAMETERS] for setup in model.setups]),
            np.array([setup.log_covariance for setup in model.setups]),
        )

    def setup_of(self, instance_types: frozenset[str], backend: str, has_many_nodes: bool) -> int | None:
        """The setup that stands for such a cluster, in the newest version measured; None: not measured."""
        wanted = {name.casefold() for name in instance_types}
        found = [
            (version_key(setup.backend_version), s)
            for s, setup in enumerate(self.model.setups)
            if {name.casefold() for name in setup.instance_types} == wanted
            and setup.backend.casefold() == backend
            and setup.has_many_nodes == has_many_nodes
        ]
        return max(found)[1] if found else None

    def exchanges(
        self, setup: int, node_count: Floats, gpus_per_node: Floats, message_bytes: Floats
    ) -> Exchanges:
        """Columns of exchanges one at a time, over the link that the setup was measured with."""
        one = np.ones(len(message_bytes))
        return Exchanges(
            node_count, gpus_per_node, message_bytes, one * self.model.setups[setup].link_bytes_per_s, one
        )

    def tell(self, setup: int, exchanges: Exchanges) -> Told:
        """Percentiles of each exchange's time.

            p50 = formula x exp(r),   r: what the trees add
            p90 = p50 x exp(sqrt(stretch^2 x ((z v)^2 + (r90 - r50)^2) + (z s)^2)),   p10 alike

        v is the doubt about the parameters and of a distance beyond the measured range, s the variation from
        session to session, z the normal distribution's 90th percentile. The bands were stretched until 80 % of
        measurements left out, of sessions that were seen, lay inside (Romano, Patterson and Candes, "Conformalized
        quantile regression", 2019, with out-of-fold scores).

        Beyond the measured range r fades to zero, upwards no faster than the formula rises, so that more bytes
        and more peers are never told faster.
        """
        one = self.model.setups[setup]
        ranges = {
            "node_count": one.node_range,
            "gpus_per_node": one.gpus_per_node_range,
            "message_bytes": one.message_range_bytes,
            "concurrency": one.concurrency_range,
        }
        clipped = {name: np.clip(getattr(exchanges, name), *ranges[name]) for name in ranges}
        above = {name: np.log2(getattr(exchanges, name) / np.maximum(clipped[name], 1e-9)) for name in ranges}
        beyond = np.maximum(sum(np.maximum(octaves, 0) for octaves in above.values()), 0)
        short = np.maximum(sum(np.maximum(-octaves, 0) for octaves in above.values()), 0)
        inside = Exchanges(rate_bytes_per_s=exchanges.rate_bytes_per_s, **clipped)

        columns = feature_columns(inside, one, self.model)
        quantiles = np.sort([evaluate(each, columns) for each in self.model.residuals], axis=0)
        middle = quantiles[len(quantiles) // 2]
        own = np.broadcast_to(self.parameters[setup], (len(exchanges), len(PARAMETERS)))
        centre = self._centre(exchanges, clipped, own, middle, beyond, short)

        slope = slopes(exchanges, own)
        variance = np.einsum("ij,jk,ik->i", slope, self.covariance[setup], slope)
        variance = Z90**2 * (variance + (OCTAVE_LOG_SD * (beyond + short)) ** 2)
        between = self.model.between_session_log_sd
        sessions = (Z90 * (ASSUMED_SESSION_LOG_SD if between is None else between)) ** 2
        is_large = exchanges.message_bytes >= LARGE_BYTES
        lower, upper = (
            np.sqrt(
                np.where(is_large, self.model.large_band[i], self.model.small_band[i]) ** 2
                * (variance + (side - middle) ** 2)
                + sessions
            )
            for i, side in enumerate((quantiles[0], quantiles[-1]))
        )
        return Told(centre - lower, centre, centre + upper, _outside(exchanges, ranges, above, one))

    def _centre(
        self,
        exchanges: Exchanges,
        clipped: dict[str, Floats],
        own: Floats,
        residual: Floats,
        beyond: Floats,
        short: Floats,
    ) -> Floats:
        """Formula and residual, which fades outside; see `tell`."""
        plain = log_duration(exchanges, own)

        def within(from_above: bool) -> Floats:
            limit = np.minimum if from_above else np.maximum
            fields = {name: limit(getattr(exchanges, name), clipped[name]) for name in clipped}
            return log_duration(Exchanges(rate_bytes_per_s=exchanges.rate_bytes_per_s, **fields), own)

        fade_above = np.clip(1 - beyond / FADES_OVER_OCTAVES, 0, 1)
        fade_below = np.clip(1 - short / FADES_OVER_OCTAVES, 0, 1)
        slower = np.maximum(plain, within(from_above=True) + residual * fade_below)
        faster = np.minimum(plain, within(from_above=False) + residual * fade_above)
        return np.where(residual >= 0, slower, faster)


def feature_columns(exchanges: Exchanges, setup: ExchangeSetup, model: ExchangeModel) -> Floats:
    """What the trees see, [row, feature]; sizes as powers of two, NaN where one is not known."""
    fixed = {
        "burst_bytes_per_s": setup.burst_bytes_per_s,
        "vcpu_count": setup.vcpu_count,
    }
    columns = {name: np.full(len(exchanges), np.log2(value or np.nan)) for name, value in fixed.items()}
    columns["link_bytes_per_s"] = np.log2(exchanges.rate_bytes_per_s)
    for name in ("node_count", "gpus_per_node", "message_bytes", "concurrency"):
        columns[name] = np.log2(getattr(exchanges, name))
    link = GPU_LINKS.index(setup.gpu_link) if setup.gpu_link in GPU_LINKS else np.nan
    columns["gpu_link"] = np.full(len(exchanges), link)
    columns["backend"] = np.full(len(exchanges), float(model.backends.index(setup.backend_name)))
    return np.stack([columns[name] for name in model.features], axis=1)


def version_key(version: str | None) -> tuple[int, ...]:
    """Versions by their numbers: 2.9 stands before 2.18; an unknown one before all."""
    digits = "".join(letter if letter.isdigit() else " " for letter in (version or "").split("+")[0])
    return tuple(int(part) for part in digits.split())


def _outside(
    exchanges: Exchanges,
    ranges: dict[str, tuple[float, float]],
    above: dict[str, Floats],
    setup: ExchangeSetup,
) -> dict[str, Bools]:
    """What lies outside the measured range, in words, and for which rows."""
    types = " + ".join(setup.instance_types)
    found: dict[str, Bools] = {}
    for name, (least, most) in ranges.items():
        values = getattr(exchanges, name)
        for is_out, limit, word in (
            (above[name] > 1e-9, most, "up to"),
            (above[name] < -1e-9, least, "from"),
        ):
            # Each number of peers is told by itself, of the messages the one that is farthest out.
            out = np.unique(values[is_out])
            if name == "message_bytes":
                out = out[-1:] if word == "up to" else out[:1]
            for value in out.tolist():
                rows = is_out if name == "message_bytes" else values == value
                found[f"exchange on {types}: {_in_words(name, value, limit, word)}"] = np.asarray(rows)
    return found


def _in_words(name: str, value: float, limit: float, word: str) -> str:
    if name == "message_bytes":
        return f"message of {size_text(value)}, measured {word} {size_text(limit)}"
    unit = {"node_count": "nodes", "gpus_per_node": "GPUs a node", "concurrency": "exchanges at once"}[name]
    return f"{value:.4g} {unit}, measured {word} {limit:.4g}"
