"""Samples as columns: what was measured in which setup, session and point, and what is known of the machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from srifty.errors import InvalidInput
from srifty.predicting.exchange_formula import Exchanges
from srifty.predicting.ring_fit import importance
from srifty.records.exchange_model import PARAMETER_COUNT, ExchangeSetup
from srifty.records.network_profile import AllReduceSample, NetworkProfile
from srifty.records.offer import GpuLink, Offer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

Setup = tuple[tuple[str, ...], str, str | None, bool]
"""Instance types, backend, version, and whether there are several nodes."""


@dataclass(frozen=True)
class Readings:
    """Samples as columns, and the points that repeats of one exchange are."""

    exchanges: Exchanges
    log_s: Floats
    setup: Ints
    session: Ints
    point: Ints
    setups: tuple[ExchangeSetup, ...]
    """With parameters yet to be fitted."""

    def of(self, rows: Bools) -> Readings:
        """Some of the rows, and only the setups that they have."""
        kept, setup = np.unique(self.setup[rows], return_inverse=True)
        _, point = np.unique(self.point[rows], return_inverse=True)
        return Readings(
            self.exchanges.of(rows),
            self.log_s[rows],
            setup,
            self.session[rows],
            point,
            tuple(self.setups[s] for s in kept),
        )

    @property
    def row_weight(self) -> Floats:
        """Repeats of one exchange weigh together as one that counts for its size."""
        return importance(self.exchanges.message_bytes) / np.bincount(self.point)[self.point]


def points(readings: Readings) -> tuple[Ints, Floats, Floats]:
    """First row of each point, the median of its repeats, and how well that is known."""
    _, first, count = np.unique(readings.point, return_index=True, return_counts=True)
    order = np.argsort(readings.point, kind="stable")
    parts = np.split(readings.log_s[order], np.cumsum(count)[:-1])
    middle = np.array([np.median(part) for part in parts])
    apart = np.concatenate([part - m for part, m in zip(parts, middle, strict=True) if len(part) > 2] or [[]])
    noise = 1.4826 * float(np.median(np.abs(apart))) if len(apart) else 0.05
    return first, middle, noise / np.sqrt(count)


def readings_of(profiles: Sequence[NetworkProfile], offers: Sequence[Offer]) -> Readings:
    named = [(sample, name) for name, samples in _sessions(profiles) for sample in samples]
    if not named:
        raise InvalidInput(
            "nothing was exchanged: every sample has one rank; measure with two or more "
            "(torchrun --nproc-per-node 4 -m srifty probe -o net.json)"
        )
    samples = [sample for sample, _ in named]
    sessions_of: dict[Setup, set[str]] = {}
    for sample, name in named:
        sessions_of.setdefault(_setup_of(sample), set()).add(name)
    known = {offer.instance_type.casefold(): offer for offer in reversed(offers)}
    by_setup: dict[Setup, list[AllReduceSample]] = {}
    for sample in samples:
        by_setup.setdefault(_setup_of(sample), []).append(sample)
    setups = [_unfitted(key, group, known, len(sessions_of[key])) for key, group in by_setup.items()]
    place = {key: s for s, key in enumerate(by_setup)}
    setup = np.array([place[_setup_of(sample)] for sample in samples])
    rate = np.array(
        [
            (s.link_bytes_per_s if s.node_count > 1 else None) or setups[i].link_bytes_per_s
            for s, i in zip(samples, setup, strict=True)
        ]
    )
    exchanges = Exchanges(
        np.array([s.node_count for s in samples], float),
        np.array([s.gpus_per_node for s in samples], float),
        np.array([s.message_bytes for s in samples], float),
        rate,
        np.array([s.concurrency for s in samples], float),
    )
    _, session = np.unique([name for _, name in named], return_inverse=True)
    e = exchanges
    sizes = (e.node_count, e.gpus_per_node, e.message_bytes, e.concurrency)
    same = np.stack([setup, session, rate, *sizes], axis=1)
    _, point = np.unique(same, axis=0, return_inverse=True)
    log_s = np.log([s.duration_s for s in samples])
    return Readings(exchanges, log_s, setup, session, point.reshape(-1), tuple(setups))


def _sessions(profiles: Sequence[NetworkProfile]) -> list[tuple[str, list[AllReduceSample]]]:
    """Measuring sessions and their exchanges; one that was given twice, under whatever name, is no second session.

    Readings that agree to the last digit are taken for copies; a single one may agree by chance.
    """
    sessions: dict[str, list[AllReduceSample]] = {}
    copies: set[tuple[AllReduceSample, ...]] = set()
    for number, profile in enumerate(profiles):
        if profile in profiles[:number]:
            continue
        own: dict[str, list[AllReduceSample]] = {}
        for sample in profile.samples:
            own.setdefault(sample.session or "", []).append(sample)
        for name, samples in own.items():
            nameless = tuple(sample.model_copy(update={"session": None}) for sample in samples)
            if nameless not in copies:
                sessions[f"{number} {name}"] = [sample for sample in samples if sample.gpu_count > 1]
            if len(nameless) > 1:
                copies.add(nameless)
    return list(sessions.items())


def _unfitted(
    key: Setup, samples: list[AllReduceSample], known: dict[str, Offer], session_count: int
) -> ExchangeSetup:
    """What is known of a setup before it is fitted."""
    types, backend, version, has_many_nodes = key
    offers = [known[name.casefold()] for name in types if name.casefold() in known]
    is_known = len(offers) == len(types)

    def least(of: Callable[[Offer], float | int | None]) -> float | None:
        values = [value for offer in offers if (value := of(offer)) is not None]
        return float(min(values)) if is_known and len(values) == len(offers) else None

    if has_many_nodes:
        stated = [s.link_bytes_per_s for s in samples if s.link_bytes_per_s is not None]
        rate = float(np.median(stated)) if stated else least(lambda offer: offer.network_bytes_per_s)
    else:
        rate = least(lambda offer: offer.gpu_link_bytes_per_s)
    # Without a nominal rate, the best that was measured: the share is of that, and as good.
    rate = rate or max(2 * (s.gpu_count - 1) / s.gpu_count * s.message_bytes / s.duration_s for s in samples)
    rate = min(max(rate, 1.0), 1e15)
    links = {offer.gpu_link for offer in offers} - {None}
    gpus = [s.gpus_per_node for s in samples]
    vcpus = least(lambda offer: offer.vcpu_count)
    return ExchangeSetup(
        instance_types=types,
        backend=backend,
        backend_version=version,
        has_many_nodes=has_many_nodes,
        link_bytes_per_s=rate,
        latency_s=1.0,
        latency_growth=1.0,
        share=1.0,
        peer_growth=1.0,
        sharpness=1.0,
        log_covariance=((0.0,) * PARAMETER_COUNT,) * PARAMETER_COUNT,
        sample_count=len(samples),
        session_count=session_count,
        vcpu_count=None if vcpus is None else int(vcpus),
        burst_bytes_per_s=least(lambda offer: offer.network_burst_bytes_per_s) if has_many_nodes else None,
        gpu_link=str(links.pop()) if len(links) == 1 else (GpuLink.OTHER if links else None),
        node_range=_ends(s.node_count for s in samples),
        gpus_per_node_range=(min(gpus), max(gpus)),
        message_range_bytes=_ends(s.message_bytes for s in samples),
        concurrency_range=_ends(s.concurrency for s in samples),
    )


def _ends(counts: Iterable[int]) -> tuple[int, int]:
    ordered = sorted(counts)
    return ordered[0], ordered[-1]


def _setup_of(sample: AllReduceSample) -> Setup:
    types = tuple(sorted(set(sample.instance_types)))
    return types, sample.backend.casefold(), sample.backend_version, sample.node_count > 1


def key_of(setup: ExchangeSetup) -> Setup:
    return setup.instance_types, setup.backend, setup.backend_version, setup.has_many_nodes


def kind_of(setup: ExchangeSetup) -> tuple[str, bool]:
    return setup.backend, setup.has_many_nodes
