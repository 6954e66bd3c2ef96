"""Learn an ExchangeModel from measured exchanges: formula, boosted trees on what it leaves, calibrated bands.

Everything is chosen inside the measurements that are given: how many trees by readings left out, the width of the
bands by the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from srifty.errors import InvalidInput
from srifty.predicting.boosted_trees import fit_quantile, xgboost_module
from srifty.predicting.exchange_formula import PARAMETERS, Exchanges, log_duration
from srifty.predicting.exchange_model import (
    FEATURES,
    LARGE_BYTES,
    LearnedExchange,
    backend_name,
    feature_columns,
)
from srifty.predicting.ring_fit import fit_ring, importance
from srifty.predicting.sessions import Sessions, session_variation
from srifty.records.exchange_model import ExchangeModel, ExchangeSetup, TreeQuantile
from srifty.records.network_profile import AllReduceSample, NetworkProfile
from srifty.records.offer import GpuLink, Offer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

QUANTILES = (0.1, 0.5, 0.9)
TREE_COUNTS = (0, 40, 120)
"""From which the number of trees is chosen by readings left out; none where the formula says it all."""
FOLD_COUNT = 8
BAND = 0.9
"""Share of readings left out below p90, and above p10."""
LEAST_STRETCH = 0.25
FEWEST_SCORES = 10
NEVER = datetime(2000, 1, 1, tzinfo=UTC)
"""Of models that nobody keeps."""

Setup = tuple[tuple[str, ...], str, str | None, bool]
"""Instance types, backend, version, and whether there are several nodes."""


@dataclass(frozen=True)
class _Readings:
    """Samples as columns, and the points that repeats of one exchange are."""

    exchanges: Exchanges
    log_s: Floats
    setup: Ints
    session: Ints
    point: Ints
    setups: tuple[ExchangeSetup, ...]
    """With parameters yet to be fitted."""

    def of(self, rows: Bools) -> _Readings:
        """Some of the rows, and only the setups that they have."""
        kept, setup = np.unique(self.setup[rows], return_inverse=True)
        _, point = np.unique(self.point[rows], return_inverse=True)
        return _Readings(
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


@dataclass(frozen=True)
class Scores:
    """Readings left out: error (measured - told) and half bands in the logarithm, and the weight of each."""

    error: Floats
    below: Floats
    above: Floats
    weight: Floats
    is_large: Bools

    def of(self, rows: Bools) -> Scores:
        """Some of them; all where those are too few to calibrate by."""
        rows = rows if rows.sum() >= FEWEST_SCORES else np.ones(len(rows), bool)
        return Scores(
            self.error[rows], self.below[rows], self.above[rows], self.weight[rows], self.is_large[rows]
        )

    @property
    def loss(self) -> float:
        """Mean absolute error."""
        return float((self.weight * np.abs(self.error)).sum() / max(self.weight.sum(), 1e-9))


def fit_exchange(
    profiles: Sequence[NetworkProfile], offers: Sequence[Offer], fitted_at: datetime
) -> ExchangeModel:
    """An ExchangeModel from measured exchanges.

    Args:
        profiles: one a measuring session, or tables of several
        offers: what is known of the machines: network, GPU link, processors
        fitted_at: for the record

    Raises:
        InvalidInput: XGBoost is not installed; nothing was exchanged
    """
    xgboost = xgboost_module()
    readings = _readings(profiles, offers)
    count, scores = _chosen_tree_count(readings)
    model = _with_trees(readings, _ring(readings, fitted_at), count)
    variation = _sessions(readings, model)
    versions = {name: version for profile in profiles for name, version in profile.versions.items()}
    model = model.model_copy(
        update={
            "within_session_log_sd": variation.within_log_sd,
            "between_session_log_sd": variation.between_log_sd,
        }
    )
    return model.model_copy(
        update={
            "small_band": _stretch(scores.of(~scores.is_large)),
            "large_band": _stretch(scores.of(scores.is_large)),
            "versions": versions | {"xgboost": str(xgboost.__version__)},
            "assumptions": _said(readings.setups, model, offers),
        }
    )


def _ring(readings: _Readings, fitted_at: datetime) -> ExchangeModel:
    """The formula fitted, without trees."""
    points, log_s, noise = _points(readings)
    kinds = sorted({_kind(setup) for setup in readings.setups})
    ring = fit_ring(
        readings.exchanges.of(points),
        log_s,
        noise,
        readings.setup[points],
        np.array([kinds.index(_kind(setup)) for setup in readings.setups]),
    )
    setups = tuple(
        setup.model_copy(
            update={
                **dict(zip(PARAMETERS, np.exp(ring.parameters[s]).tolist(), strict=True)),
                "log_covariance": tuple(map(tuple, ring.covariance[s].tolist())),
            }
        )
        for s, setup in enumerate(readings.setups)
    )
    return ExchangeModel(
        setups=setups,
        features=tuple(FEATURES),
        backends=tuple(sorted({backend_name(setup) for setup in setups})),
        residuals=tuple(TreeQuantile(quantile=share, base=0.0) for share in QUANTILES),
        within_session_log_sd=0.0,
        between_session_log_sd=0.0,
        small_band=(1.0, 1.0),
        large_band=(1.0, 1.0),
        fitted_at=fitted_at,
    )


def _with_trees(readings: _Readings, ring: ExchangeModel, tree_count: int) -> ExchangeModel:
    """The same with trees on what the formula leaves."""
    parameters = LearnedExchange.of(ring).parameters[readings.setup]
    left = readings.log_s - log_duration(readings.exchanges, parameters)
    columns = _columns(readings, ring)
    trees = tuple(
        fit_quantile(
            columns,
            left,
            readings.row_weight,
            quantile=share,
            rises_with=tuple(FEATURES.values()),
            round_count=tree_count,
        )
        for share in QUANTILES
    )
    return ring.model_copy(update={"residuals": trees})


def _chosen_tree_count(readings: _Readings) -> tuple[int, Scores]:
    """How many trees tell readings left out best, and how those with that many did."""
    folds = [(fold, readings.of(~fold)) for fold in _folds(readings)]
    rings = [_ring(known, NEVER) for _, known in folds]
    scores: dict[int, Scores] = {}
    for count in TREE_COUNTS:
        told = [
            _left_out(readings, fold, known, _with_trees(known, ring, count))
            for (fold, known), ring in zip(folds, rings, strict=True)
        ]
        scores[count] = _together(told)
    # Trees must pay: a tenth less error than the plain formula leaves.
    best = min(TREE_COUNTS, key=lambda count: scores[count].loss * (0.9 if count == 0 else 1.0))
    return best, scores[best]


def _left_out(readings: _Readings, fold: Bools, known: _Readings, model: ExchangeModel) -> Scores:
    """How readings were told that the model did not see, of setups that it knows."""
    learned = LearnedExchange.of(model)
    place = {_key(setup): s for s, setup in enumerate(known.setups)}
    found = []
    for s, setup in enumerate(readings.setups):
        rows = np.flatnonzero(fold & (readings.setup == s))
        if len(rows) and _key(setup) in place:
            told = learned.tell(place[_key(setup)], readings.exchanges.of(rows))
            found.append(
                Scores(
                    readings.log_s[rows] - told.p50,
                    told.p50 - told.p10,
                    told.p90 - told.p50,
                    readings.row_weight[rows],
                    readings.exchanges.message_bytes[rows] >= LARGE_BYTES,
                )
            )
    return _together(found)


def _together(scores: Sequence[Scores]) -> Scores:
    nothing = Scores(*(np.zeros(0),) * 4, np.zeros(0, bool))
    names = ("error", "below", "above", "weight", "is_large")
    return Scores(*(np.concatenate([getattr(one, name) for one in (nothing, *scores)]) for name in names))


def _folds(readings: _Readings) -> list[Bools]:
    """Parts to leave out: whole sizes of cluster, as they are asked for later; else whole sizes of message."""
    e = readings.exchanges
    layouts = np.stack([readings.setup, e.node_count, e.gpus_per_node], axis=1)
    kinds, layout = np.unique(layouts, axis=0, return_inverse=True)
    layout = layout.reshape(-1)
    of_setup = np.bincount(kinds[:, 0].astype(int), minlength=len(readings.setups))
    if (of_setup > 1).any():
        # One layout of each setup at a time, so that the others of its setup are there to tell it.
        turn = np.array([int((kinds[:i, 0] == kinds[i, 0]).sum()) for i in range(len(kinds))])
        usable = of_setup[kinds[:, 0].astype(int)] > 1
        group = np.where(usable, turn % FOLD_COUNT, -1)[layout]
    else:
        sizes, size = np.unique(e.message_bytes, return_inverse=True)
        if len(sizes) < 3:
            return []
        group = size.reshape(-1) % min(FOLD_COUNT, len(sizes))
    return [group == g for g in range(int(group.max()) + 1)]


def _stretch(scores: Scores) -> tuple[float, float]:
    """Factors for the half bands below and above, so that both hold what they say of readings left out."""
    if not len(scores.error):
        return 1.0, 1.0
    share = min(1.0, BAND * (1 + 1 / len(scores.error)))
    return (
        max(LEAST_STRETCH, _quantile(-scores.error / scores.below, scores.weight, share)),
        max(LEAST_STRETCH, _quantile(scores.error / scores.above, scores.weight, share)),
    )


def _quantile(values: Floats, weight: Floats, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) >= share * weight.sum() * (1 - 1e-12)
    return float(values[order][reached.argmax()])


def _sessions(readings: _Readings, model: ExchangeModel) -> Sessions:
    """What is left of each reading, within and between sessions of its setup."""
    learned = LearnedExchange.of(model)
    left = np.empty(len(readings.log_s))
    for s in range(len(readings.setups)):
        rows = readings.setup == s
        left[rows] = readings.log_s[rows] - learned.tell(s, readings.exchanges.of(rows)).p50
    return session_variation(left, readings.setup, readings.session, readings.point)


def _columns(readings: _Readings, model: ExchangeModel) -> Floats:
    columns = np.empty((len(readings.log_s), len(FEATURES)))
    for s, setup in enumerate(model.setups):
        rows = readings.setup == s
        columns[rows] = feature_columns(readings.exchanges.of(rows), setup, model)
    return columns


def _points(readings: _Readings) -> tuple[Ints, Floats, Floats]:
    """First row of each point, the median of its repeats, and how well that is known."""
    _, first, count = np.unique(readings.point, return_index=True, return_counts=True)
    order = np.argsort(readings.point, kind="stable")
    parts = np.split(readings.log_s[order], np.cumsum(count)[:-1])
    middle = np.array([np.median(part) for part in parts])
    apart = np.concatenate([part - m for part, m in zip(parts, middle, strict=True) if len(part) > 2] or [[]])
    noise = 1.4826 * float(np.median(np.abs(apart))) if len(apart) else 0.05
    return first, middle, noise / np.sqrt(count)


def _readings(profiles: Sequence[NetworkProfile], offers: Sequence[Offer]) -> _Readings:
    named = [
        (sample, f"{number} {sample.session or ''}")
        for number, profile in enumerate(profiles)
        if profile not in profiles[:number]  # a file given twice is no second session
        for sample in profile.samples
        if sample.gpu_count > 1
    ]
    if not named:
        raise InvalidInput(
            "nothing was exchanged: every sample has one rank; measure with two or more "
            "(torchrun --nproc-per-node 4 -m srifty probe -o net.json)"
        )
    samples = [sample for sample, _ in named]
    sessions_of: dict[Setup, set[str]] = {}
    for sample, name in named:
        sessions_of.setdefault(_setup(sample), set()).add(name)
    known = {offer.instance_type.casefold(): offer for offer in reversed(offers)}
    by_setup: dict[Setup, list[AllReduceSample]] = {}
    for sample in samples:
        by_setup.setdefault(_setup(sample), []).append(sample)
    setups = [_unfitted(key, group, known, len(sessions_of[key])) for key, group in by_setup.items()]
    place = {key: s for s, key in enumerate(by_setup)}
    setup = np.array([place[_setup(sample)] for sample in samples])
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
    return _Readings(exchanges, log_s, setup, session, point.reshape(-1), tuple(setups))


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
        log_covariance=(),
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


def _setup(sample: AllReduceSample) -> Setup:
    types = tuple(sorted(set(sample.instance_types)))
    return types, sample.backend.casefold(), sample.backend_version, sample.node_count > 1


def _key(setup: ExchangeSetup) -> Setup:
    return setup.instance_types, setup.backend, setup.backend_version, setup.has_many_nodes


def _kind(setup: ExchangeSetup) -> tuple[str, bool]:
    return setup.backend, setup.has_many_nodes


def _said(setups: Sequence[ExchangeSetup], model: ExchangeModel, offers: Sequence[Offer]) -> tuple[str, ...]:
    """What the model takes for granted, for the estimates that rest on it."""
    said = []
    if model.between_session_log_sd is None:
        said.append("exchanges were measured in one session, so how much sessions differ is assumed: 15 %")
    known = {offer.instance_type.casefold() for offer in offers}
    versions: dict[tuple[str, str], set[str]] = {}
    for setup in setups:
        types = " + ".join(setup.instance_types)
        versions.setdefault((types, setup.backend), set()).add(setup.backend_version or "unknown version")
        if not all(name.casefold() in known for name in setup.instance_types):
            said.append(f"{types} is in no table of offers; nothing is known of it but its exchanges")
    for (types, backend), found in sorted(versions.items()):
        if len(found) > 1:
            said.append(
                f"{backend} was measured on {types} in {len(found)} versions ({', '.join(sorted(found))}), which "
                f"are kept apart; the newest tells what to expect"
            )
    return tuple(dict.fromkeys(said))
