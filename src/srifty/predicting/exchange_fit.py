"""Learn an ExchangeModel from measured exchanges: formula, boosted trees on what it leaves, calibrated bands.

Everything is chosen inside the measurements that are given: how many trees by readings left out, the width of the
bands by the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from srifty.errors import InvalidInput
from srifty.predicting.boosted_trees import fit_quantile, xgboost_module
from srifty.predicting.exchange_formula import PARAMETERS, log_duration
from srifty.predicting.exchange_model import (
    ASSUMED_SESSION_LOG_SD,
    FEATURES,
    LARGE_BYTES,
    LearnedExchange,
    feature_columns,
)
from srifty.predicting.exchange_readings import Readings, key_of, kind_of, points, readings_of
from srifty.predicting.left_out import Scores, folds, stretch, together
from srifty.predicting.ring_fit import fit_ring
from srifty.predicting.sessions import Sessions, session_variation
from srifty.records.exchange_model import ExchangeModel, ExchangeSetup, TreeQuantile
from srifty.records.files import checked
from srifty.records.network_profile import NetworkProfile
from srifty.records.offer import Offer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

QUANTILES = (0.1, 0.5, 0.9)
TREE_COUNTS = (0, 40, 120)
"""From which the number of trees is chosen by readings left out; none where the formula says it all."""
NEVER = datetime(2000, 1, 1, tzinfo=UTC)
"""Of models that nobody keeps."""


def fit_exchange(
    profiles: Sequence[NetworkProfile], offers: Sequence[Offer], fitted_at: datetime
) -> ExchangeModel:
    """An ExchangeModel from measured exchanges.

    Args:
        profiles: one a measuring session, or tables of several
        offers: what is known of the machines: network, GPU link, processors
        fitted_at: for the record

    Raises:
        InvalidInput: XGBoost is not installed; nothing was exchanged; times or rates that cannot be
    """
    xgboost = xgboost_module()
    readings = readings_of(profiles, offers)
    count, scores = _chosen_tree_count(readings)
    model = _with_trees(readings, _ring(readings, fitted_at), count)
    variation = _sessions(readings, model)
    versions = {name: version for profile in profiles for name, version in profile.versions.items()}
    learned = model.model_copy(
        update={
            "within_session_log_sd": variation.within_log_sd,
            "between_session_log_sd": variation.between_log_sd,
            "small_band": stretch(scores.of(~scores.is_large)),
            "large_band": stretch(scores.of(scores.is_large)),
            "versions": versions | {"xgboost": str(xgboost.__version__)},
            "assumptions": _said(readings.setups, variation, profiles, offers),
        }
    )
    _check(learned)
    return learned


def _check(learned: ExchangeModel) -> None:
    """That its file will be read again: what is not plausible comes from measurements that are not."""
    try:
        checked(ExchangeModel, **learned.model_dump())
    except InvalidInput as refused:
        raise InvalidInput(
            f"nothing plausible can be learned from these measurements ({refused}); are their units right: "
            f"message_bytes in bytes, duration_s in seconds, link_bytes_per_s in bytes a second?"
        ) from None


def _ring(readings: Readings, fitted_at: datetime) -> ExchangeModel:
    """The formula fitted, without trees."""
    first, log_s, noise = points(readings)
    kinds = sorted({kind_of(setup) for setup in readings.setups})
    ring = fit_ring(
        readings.exchanges.of(first),
        log_s,
        noise,
        readings.setup[first],
        np.array([kinds.index(kind_of(setup)) for setup in readings.setups]),
    )
    setups = tuple(
        setup.model_copy(
            update={
                **dict(zip(PARAMETERS, np.exp(np.clip(ring.parameters[s], -60, 30)).tolist(), strict=True)),
                "log_covariance": tuple(map(tuple, ring.covariance[s].tolist())),
            }
        )
        for s, setup in enumerate(readings.setups)
    )
    return ExchangeModel(
        setups=setups,
        features=tuple(FEATURES),
        backends=tuple(sorted({setup.backend_name for setup in setups})),
        residuals=tuple(TreeQuantile(quantile=share, base=0.0) for share in QUANTILES),
        within_session_log_sd=0.0,
        between_session_log_sd=0.0,
        small_band=(1.0, 1.0),
        large_band=(1.0, 1.0),
        fitted_at=fitted_at,
    )


def _with_trees(readings: Readings, ring: ExchangeModel, tree_count: int) -> ExchangeModel:
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


def _chosen_tree_count(readings: Readings) -> tuple[int, Scores]:
    """How many trees tell readings left out best, and how those with that many did."""
    parts = [(fold, readings.of(~fold)) for fold in folds(readings)]
    rings = [_ring(known, NEVER) for _, known in parts]
    scores: dict[int, Scores] = {}
    for count in TREE_COUNTS:
        told = [
            _left_out(readings, fold, known, _with_trees(known, ring, count))
            for (fold, known), ring in zip(parts, rings, strict=True)
        ]
        scores[count] = together(told)
    # Trees must pay: a tenth less error than the plain formula leaves.
    best = min(TREE_COUNTS, key=lambda count: scores[count].loss * (0.9 if count == 0 else 1.0))
    return best, scores[best]


def _left_out(readings: Readings, fold: Bools, known: Readings, model: ExchangeModel) -> Scores:
    """How readings were told that the model did not see, of setups that it knows."""
    learned = LearnedExchange.of(model)
    place = {key_of(setup): s for s, setup in enumerate(known.setups)}
    found = []
    for s, setup in enumerate(readings.setups):
        rows = np.flatnonzero(fold & (readings.setup == s))
        if len(rows) and key_of(setup) in place:
            told = learned.tell(place[key_of(setup)], readings.exchanges.of(rows))
            found.append(
                Scores(
                    readings.log_s[rows] - told.p50,
                    told.p50 - told.p10,
                    told.p90 - told.p50,
                    readings.row_weight[rows],
                    readings.exchanges.message_bytes[rows] >= LARGE_BYTES,
                )
            )
    return together(found)


def _sessions(readings: Readings, model: ExchangeModel) -> Sessions:
    """What is left of each reading, within and between sessions of its setup."""
    learned = LearnedExchange.of(model)
    left = np.empty(len(readings.log_s))
    for s in range(len(readings.setups)):
        rows = readings.setup == s
        left[rows] = readings.log_s[rows] - learned.tell(s, readings.exchanges.of(rows)).p50
    return session_variation(left, readings.setup, readings.session, readings.point)


def _columns(readings: Readings, model: ExchangeModel) -> Floats:
    columns = np.empty((len(readings.log_s), len(FEATURES)))
    for s, setup in enumerate(model.setups):
        rows = readings.setup == s
        columns[rows] = feature_columns(readings.exchanges.of(rows), setup, model)
    return columns


def _said(
    setups: Sequence[ExchangeSetup],
    variation: Sessions,
    profiles: Sequence[NetworkProfile],
    offers: Sequence[Offer],
) -> tuple[str, ...]:
    """What the model takes for granted, for the estimates that rest on it."""
    said = [f"left out: {one.count}, {one.why}" for profile in profiles for one in profile.dropped]
    if variation.between_log_sd is None:
        said.append(
            f"each machine's exchanges were measured in one session, so how much sessions differ is assumed: "
            f"{100 * ASSUMED_SESSION_LOG_SD:.0f} %"
        )
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
