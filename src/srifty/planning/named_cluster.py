"""A cluster that a person names ("4xg4dn.12xlarge"): which offers, and how the batch is shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from srifty.errors import InvalidInput
from srifty.planning.candidates import divisors
from srifty.records.cluster import Cluster, NodeGroup
from srifty.records.cluster_text import parse_cluster_text
from srifty.records.offer import Catalog, Market, Offer


@dataclass(frozen=True)
class Where:
    """Where and how the machines are rented; no region: wherever it is cheapest."""

    regions: tuple[str, ...] = ()
    market: Market = Market.ON_DEMAND


def named_cluster(
    text: str,
    catalog: Catalog,
    batch_range: Callable[[Offer], tuple[int, int] | None],
    global_batch: int | None,
    accumulation: int | None,
    where: Where,
) -> Cluster:
    """The cluster that the text names, every GPU with an equal share of the batch.

    All machines are in one region, the one where they cost least together: a cluster over several is none.

    Args:
        text: "4xg4dn.12xlarge", "4xp3.2xlarge,2xg4dn.12xlarge"
        catalog: what can be rented
        batch_range: smallest and largest batch that a GPU of an offer trains with; None: not measured
        global_batch: samples of one step over all GPUs; None: not known, which is refused
        accumulation: micro-steps to a step; None: as few as every GPU's memory allows
        where: where and how

    Raises:
        InvalidInput: an unknown type (with the nearest known), no region with all of them, a batch that cannot
            be shared evenly
    """
    if global_batch is None:
        raise InvalidInput("the global batch is not known: give --batch [samples over all GPUs in a step]")
    named = _offers(text, catalog, where)
    gpu_count = sum(count * offer.gpu_count for count, offer in named)
    part = gpu_count * (accumulation or 1)
    share, left = divmod(global_batch, part)
    if left or not share:
        below, above = global_batch - left, global_batch - left + part
        near = f"{below} or {above}" if below else f"{above}"
        steps = f" in {accumulation} micro-steps" if accumulation else ""
        raise InvalidInput(
            f"batch {global_batch} cannot be shared evenly by the {gpu_count} GPUs of {text}{steps}; near it "
            f"is {near}"
        )
    ranges = [found for _, offer in named if (found := batch_range(offer)) is not None]
    smallest = max((low for low, _ in ranges), default=1)
    largest = min((high for _, high in ranges), default=share)
    fitting = [batch for batch in divisors(share) if smallest <= batch <= largest]
    if share < smallest:
        raise InvalidInput(
            f"batch {global_batch} leaves {share} a GPU on {text}; batch normalisation needs {smallest} or more"
        )
    # Where none fits, the estimate says what was measured.
    batch_per_gpu = share if accumulation or not fitting else fitting[-1]
    return Cluster(
        groups=tuple(
            NodeGroup(
                offer=offer,
                node_count=count,
                batch_per_gpu=batch_per_gpu,
                accumulation_count=accumulation or share // batch_per_gpu,
            )
            for count, offer in named
        )
    )


def _offers(text: str, catalog: Catalog, where: Where) -> list[tuple[int, Offer]]:
    """Node count and offer of each group, all in the region where they cost least together."""
    asked = parse_cluster_text(text)
    cheapest: list[dict[tuple[str, str], Offer]] = []
    for count, name in asked:
        of_type = catalog.only(instance_types=(name,), regions=where.regions, markets=(where.market,)).offers
        enough = [offer for offer in of_type if offer.node_limit is None or offer.node_limit >= count]
        if not enough:
            most = max(offer.node_limit or 0 for offer in of_type)
            raise InvalidInput(
                f"{count} nodes of {name} are more than the {most} that can be rented in one place"
            )
        by_region: dict[tuple[str, str], Offer] = {}
        for offer in sorted(enough, key=lambda offer: (offer.usd_per_hour, offer.place)):
            by_region.setdefault((offer.cloud, offer.region), offer)
        cheapest.append(by_region)
    shared = set.intersection(*(set(by_region) for by_region in cheapest))
    if not shared:
        raise InvalidInput(f"no region offers all of {text}; the machines of a cluster must be in one")

    def price(region: tuple[str, str]) -> tuple[float, tuple[str, str]]:
        total = sum(
            n * by_region[region].usd_per_hour for (n, _), by_region in zip(asked, cheapest, strict=True)
        )
        return total, region

    best = min(shared, key=price)
    return [(count, by_region[best]) for (count, _), by_region in zip(asked, cheapest, strict=True)]
