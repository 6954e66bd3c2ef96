"""What the product says of setups beforehand, and what simpler ways would say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from benchmarks.testbed.bed import Bed
from benchmarks.testbed.setups import GBIT, BedNode, Setup, offer
from srifty import fit_network, predict
from srifty.records import AllReduceSample, Catalog, ExchangeModel, JobEstimate, JobProfile, NetworkProfile

SIZES = (1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 25)


@dataclass(frozen=True)
class Prediction:
    """Step time by the product, with its band, and by simpler ways [s]."""

    p10_s: float
    p50_s: float
    p90_s: float
    baselines: dict[str, float]


def measured_exchanges(
    bed: Bed, kinds: Sequence[BedNode], counts: Sequence[int], *, uplink_gbit: float | None = None
) -> list[AllReduceSample]:
    """Exchanges of each kind of node on so many of them: all that is known of the networks."""
    return [
        sample
        for kind in kinds
        for count in counts
        for sample in bed.exchanges([kind] * count, SIZES, repeats=3, uplink_gbit=uplink_gbit)
    ]


def learned(samples: Sequence[AllReduceSample], nodes: Sequence[BedNode]) -> ExchangeModel:
    """The product's model of these exchanges."""
    network = NetworkProfile(samples=tuple(samples), taken_at=datetime.now(UTC))
    return fit_network([network], catalog=catalog(nodes))


def catalog(nodes: Sequence[BedNode]) -> Catalog:
    """What can be rented on the bed."""
    return Catalog(
        offers=tuple(dict.fromkeys(offer(node) for node in nodes)),
        taken_at=date(2026, 1, 1),
        sources=("testbed",),
    )


def predicted(
    setups: Sequence[Setup], profiles: Mapping[str, Sequence[JobProfile]], model: ExchangeModel
) -> dict[str, Prediction]:
    """Every setup by its key."""
    nodes = [node for setup in setups for node in setup.nodes]
    offers = catalog(nodes)
    told = {}
    for setup in setups:
        needed = {node.gpu for node in setup.nodes}
        own = [profile for profile in profiles[setup.job] if profile.gpu in needed]
        (estimate,) = predict(own, [setup.cluster], model=model, catalog=offers)
        step = estimate.iteration.duration_s
        told[setup.key] = Prediction(step.p10, step.p50, step.p90, _baselines(setup, own, estimate))
    return told


def _baselines(setup: Setup, profiles: Sequence[JobProfile], estimate: JobEstimate) -> dict[str, float]:
    """Simpler ways: from the same profiles, and the links' nominal rates."""
    compute_s = estimate.iteration.compute_s.p50 + estimate.iteration.waiting_s.p50
    size = profiles[0].trainable_bytes
    count = len(setup.nodes)
    volume = 2 * (count - 1) / count * size
    slowest = min(node.rate_gbit for node in setup.nodes) * GBIT
    mean = sum(node.rate_gbit for node in setup.nodes) / count * GBIT
    exchange_s = volume / slowest
    return {
        "compute only": compute_s,
        "no overlap": compute_s + exchange_s,
        "perfect overlap": max(compute_s, exchange_s),
        "mean link": compute_s + max(0.0, volume / mean - compute_s / 2),
    }
