"""Candidates: the clusters worth a look, and a count of what was left out and why that is safe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from srifty.records.cluster_table import ClusterTable
from srifty.records.offer import Dropped, Offer
from srifty.records.plan import Constraints

BatchRange = Callable[[Offer], tuple[int, int] | None]
"""Smallest and largest batch that a GPU of an offer trains with; None: it was not measured."""


@dataclass(frozen=True)
class Candidates:
    """Clusters to be compared, and what was left out."""

    table: ClusterTable
    dropped: tuple[Dropped, ...]


def uniform_clusters(
    offers: Iterable[Offer], global_batch: int, constraints: Constraints, batch_range: BatchRange
) -> Candidates:
    """Every uniform cluster that trains with exactly this global batch.

        nodes x GPUs a node x batch a GPU x accumulation = global batch

    for 1 to `max_nodes` nodes, every batch within the GPU's range and every accumulation that divides.

    Of one kind of machine that is offered in several places, only the cheapest is kept: the time does not
    depend on the place, so at the same node count no other place is cheaper or faster. An offer with a limit on
    its nodes never displaces one that allows more.
    """
    offers = tuple(offers)
    allowed = [offer for offer in offers if offer.market in constraints.markets]
    ranges = {_machine(offer): batch_range(offer) for offer in {_machine(o): o for o in allowed}.values()}
    measured = [offer for offer in allowed if ranges[_machine(offer)] is not None]
    kept = _cheapest_places(measured, constraints.max_nodes)
    parts = divisors(global_batch)
    most_gpus = min(constraints.max_gpus or global_batch, global_batch)
    rows: list[tuple[int, int, int, int]] = []
    too_wide = no_network = no_share = 0
    for index, offer in enumerate(kept):
        smallest, largest = ranges[_machine(offer)] or (1, 0)
        limit = min(
            constraints.max_nodes, offer.node_limit or constraints.max_nodes, most_gpus // offer.gpu_count
        )
        too_wide += limit == 0
        if offer.network_bytes_per_s is None and limit > 1:
            no_network += limit - 1
            limit = 1
        no_share += limit
        # GPUs that share the batch evenly are a divisor of it in number: few, whatever the limit.
        for gpu_count in parts:
            node_count, odd = divmod(gpu_count, offer.gpu_count)
            if odd or not 1 <= node_count <= limit:
                continue
            share = global_batch // gpu_count
            fits = [batch for batch in parts if smallest <= batch <= largest and share % batch == 0]
            no_share -= bool(fits)
            rows.extend((index, node_count, batch, share // batch) for batch in fits)
    left_out = {
        "offers of another market": len(offers) - len(allowed),
        "offers whose GPU has no profile": len(allowed) - len(measured),
        "offers of a machine that costs no more elsewhere": len(measured) - len(kept),
        f"offers with more GPUs a machine than {most_gpus}, the most that may be used": too_wide,
        "clusters of several nodes whose network rate is not known": no_network,
        f"clusters whose GPUs cannot share {global_batch} samples evenly within their range": no_share,
    }
    columns = np.array(rows, np.int64).reshape(-1, 4)
    return Candidates(
        table=ClusterTable(
            offers=tuple(kept),
            offer_index=columns[:, 0:1],
            node_count=columns[:, 1:2],
            batch_per_gpu=columns[:, 2:3],
            accumulation_count=columns[:, 3],
        ),
        dropped=tuple(Dropped(why=why, count=count) for why, count in left_out.items() if count),
    )


def order(offer: Offer) -> tuple[str, ...]:
    """Where an offer stands among equals, so that the same question always has the same answer."""
    return offer.cloud, offer.instance_type, offer.region, offer.zone or "", offer.market.value


def _cheapest_places(offers: Iterable[Offer], max_nodes: int) -> list[Offer]:
    kept: list[Offer] = []
    most_nodes: dict[tuple[object, ...], int] = {}
    for offer in sorted(offers, key=lambda offer: (offer.usd_per_hour, *order(offer))):
        machine, limit = _machine(offer), min(offer.node_limit or max_nodes, max_nodes)
        if limit > most_nodes.get(machine, 0):
            kept.append(offer)
            most_nodes[machine] = limit
    return sorted(kept, key=order)


def _machine(offer: Offer) -> tuple[object, ...]:
    """All of an offer that a training step can feel, and how it may be taken away; not its place or price."""
    return (
        offer.cloud,
        offer.instance_type,
        offer.market,
        offer.gpu,
        offer.gpu_count,
        offer.gpu_memory_bytes,
        offer.vcpu_count,
        offer.network_bytes_per_s,
        offer.network_burst_bytes_per_s,
        offer.gpu_link,
        offer.gpu_link_bytes_per_s,
        offer.interruptions_per_hour,
    )


def divisors(number: int) -> list[int]:
    """All divisors, rising."""
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})
