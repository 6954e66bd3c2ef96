"""Measured exchanges in the place of the formula's, for those clusters of a table whose machines were measured.

The iteration simulator takes an exchange as latency + bytes x seconds a byte; what was learned is no line, so a line
is laid through it at the sizes of the job's own buckets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from srifty.predicting.allreduce_model import AllReduceModel, LinkTime
from srifty.predicting.exchange_model import LearnedExchange, Told
from srifty.records.cluster_table import ClusterTable
from srifty.records.offer import Offer
from srifty.records.spread import Z90

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def with_measured(
    by_formula: AllReduceModel,
    learned: LearnedExchange,
    clusters: ClusterTable,
    rows: Ints,
    group_count: int,
    bucket_bytes: Floats,
) -> tuple[AllReduceModel, dict[str, Bools]]:
    """The exchange of each row, measured where its machines were, and what lies outside the measured range.

    Args:
        by_formula: what stands where nothing was measured, a row a row of `rows`
        learned: what was learned from measured exchanges
        clusters, rows, group_count: the clusters, the rows asked for, and how many groups each has
        bucket_bytes: of the job [bytes]

    What was measured over several nodes is the network's time; the links inside the nodes keep the formula's, as far
    as that fits into what was measured. Unlike machines that were measured one by one but not together are told by the
    slower kind.
    """
    outside: dict[str, Bools] = {}
    if not len(bucket_bytes):
        return by_formula, outside
    latency, per_byte = np.zeros(len(rows)), np.zeros(len(rows))
    told = np.zeros(len(rows), bool)
    log_sd = by_formula.log_sd.copy()
    nodes = clusters.node_count[rows].sum(axis=1)
    gpus = clusters.gpu_count[rows]
    mixes, mix_of = np.unique(clusters.offer_index[rows, :group_count], axis=0, return_inverse=True)
    for m, mix in enumerate(mixes):
        offers = [clusters.offers[i] for i in mix]
        for many in (False, True):
            own = np.flatnonzero((mix_of.reshape(-1) == m) & ((nodes > 1) == many) & (gpus > 1))
            setups = covering(learned, offers, many)
            if not len(own) or not setups:
                continue
            layouts, layout = np.unique(np.stack([nodes[own], gpus[own]]), axis=1, return_inverse=True)
            lines = [_line(learned, setup, layouts, bucket_bytes) for setup in setups]
            total = np.stack([line[0] * len(bucket_bytes) + line[1] * bucket_bytes.sum() for line in lines])
            slowest = total.argmax(axis=0)
            at = np.arange(layouts.shape[1])
            layout = layout.reshape(-1)
            told[own] = True
            latency[own] = np.stack([line[0] for line in lines])[slowest, at][layout]
            per_byte[own] = np.stack([line[1] for line in lines])[slowest, at][layout]
            log_sd[own] = np.stack([line[2] for line in lines])[slowest, at][layout]
            for _, _, _, words in lines:
                for what, where in words.items():
                    outside.setdefault(what, np.zeros(len(rows), bool))[own] |= where[layout]
            if len(setups) > 1:
                types = " and ".join(sorted({offer.instance_type for offer in offers}))
                what = f"exchange between {types}: each was measured alone, not together"
                outside.setdefault(what, np.zeros(len(rows), bool))[own] = True
    is_inside = nodes == 1
    inside = LinkTime(
        np.where(told, np.where(is_inside, latency, 0.0), by_formula.inside.latency_s),
        np.where(
            told,
            np.where(is_inside, per_byte, np.minimum(by_formula.inside.seconds_per_byte, per_byte)),
            by_formula.inside.seconds_per_byte,
        ),
    )
    across = LinkTime(
        np.where(told, np.where(is_inside, 0.0, latency), by_formula.across.latency_s),
        np.where(told, np.where(is_inside, 0.0, per_byte), by_formula.across.seconds_per_byte),
    )
    return AllReduceModel(inside, across, log_sd), outside


def covering(learned: LearnedExchange, offers: Sequence[Offer], has_many_nodes: bool) -> list[int]:
    """The setups that tell the exchange between these machines; none where one of them was not measured."""
    backend = "gloo" if any(offer.is_cpu for offer in offers) else "nccl"
    types = frozenset(offer.instance_type for offer in offers)
    whole = learned.setup_of(types, backend, has_many_nodes)
    if whole is not None:
        return [whole]
    each = [learned.setup_of(frozenset({name}), backend, has_many_nodes) for name in sorted(types)]
    return [setup for setup in each if setup is not None] if None not in each else []


def _line(
    learned: LearnedExchange, setup: int, layouts: Ints, bucket_bytes: Floats
) -> tuple[Floats, Floats, Floats, dict[str, Bools]]:
    """Latency [s], seconds a byte, doubt, and what is outside, a layout each.

    All buckets together take what was learned. The slope is that between the smallest and the largest bucket; of
    buckets of one size, that to half their size.
    """
    sizes, count = np.unique(bucket_bytes, return_counts=True)
    asked = sizes if len(sizes) > 1 else np.array([sizes[0] / 2, sizes[0]])
    nodes, gpus = (np.repeat(each.astype(float), len(asked)) for each in layouts)
    told = learned.tell(
        setup, learned.exchanges(setup, nodes, gpus / nodes, np.tile(asked, layouts.shape[1]))
    )
    seconds = np.exp(told.p50).reshape(-1, len(asked))
    width = ((told.p90 - told.p10) / (2 * Z90)).reshape(-1, len(asked))
    slope = np.maximum(seconds[:, -1] - seconds[:, 0], 0) / (asked[-1] - asked[0])
    own = slice(None) if len(sizes) > 1 else slice(1, None)
    total = (seconds[:, own] * count).sum(axis=1)
    latency = np.maximum(total - slope * bucket_bytes.sum(), 0) / len(bucket_bytes)
    exact = total / np.maximum(latency * len(bucket_bytes) + slope * bucket_bytes.sum(), 1e-300)
    doubt = (width[:, own] * seconds[:, own] * count).sum(axis=1) / total
    return latency * exact, slope * exact, doubt, _of_layouts(told, len(asked), own)


def _of_layouts(told: Told, size_count: int, own: slice) -> dict[str, Bools]:
    found: dict[str, Bools] = {}
    for what, where in told.outside.items():
        of_layout: Bools = np.any(where.reshape(-1, size_count)[:, own], axis=1)
        if of_layout.any():
            found[what] = of_layout
    return found
