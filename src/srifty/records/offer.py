"""Offer and Catalog: what can be rented, where, for how much, as of when."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from datetime import date
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from srifty.errors import InvalidInput
from srifty.records.record import Count, Record

Rate = Annotated[float, Field(ge=1e3, le=1e15)]
"""Bytes a second, from a slow modem to beyond any fabric."""


class Market(StrEnum):
    """How a machine is paid for; a spot machine is cheaper as a rule, and may be taken away."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


class GpuLink(StrEnum):
    """What joins the GPUs inside one machine."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    OTHER = "other"


class Offer(Record):
    """One kind of machine, in one place and market, at one price."""

    cloud: str
    region: str
    zone: str | None = None
    """None: the price holds in the whole region."""
    instance_type: str
    gpu: str
    """The chip ("A100"), without its memory, which `gpu_memory_bytes` says."""
    gpu_count: Count
    gpu_memory_bytes: Count
    """Memory of one GPU."""
    vcpu_count: Count
    memory_bytes: Count | None = None
    """Memory of the machine."""
    network_bytes_per_s: Rate | None = None
    """What the whole machine's network sustains; None: not known."""
    network_burst_bytes_per_s: Rate | None = None
    gpu_link: GpuLink | None = None
    """None where there is one GPU, or where it is not known."""
    gpu_link_bytes_per_s: Rate | None = None
    """Nominal rate of one GPU's link, one way."""
    market: Market
    usd_per_hour: Annotated[float, Field(gt=0, le=1e6)]
    """For the whole machine, not for one GPU."""
    price_as_of: date
    source: str
    interruptions_per_hour: Annotated[float, Field(ge=0)] | None = None
    node_limit: Count | None = None
    """How many such machines may be rented at once; None: no known limit."""

    @property
    def usd_per_gpu_hour(self) -> float:
        """Price of one GPU for an hour."""
        return self.usd_per_hour / self.gpu_count

    @property
    def is_cpu(self) -> bool:
        """Whether it computes on the CPU, or on a device that one emulates ("cpu-t4")."""
        return self.gpu.casefold().partition("-")[0] == "cpu"

    @property
    def place(self) -> str:
        """Zone where one is known, else region."""
        return self.zone or self.region


class Dropped(Record):
    """Rows or candidates left out, why, and how many."""

    why: str
    count: Annotated[int, Field(ge=0)]


class Catalog(Record):
    """Offers as of one day."""

    offers: tuple[Offer, ...]
    taken_at: date
    """The day the table was put together; each price has its own date."""
    sources: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    """Rows that are no offers (no price, not a whole GPU, ...)."""

    def only(
        self,
        *,
        clouds: Collection[str] = (),
        regions: Collection[str] = (),
        zones: Collection[str] = (),
        instance_types: Collection[str] = (),
        gpus: Collection[str] = (),
        markets: Collection[str] = (),
        max_usd_per_hour: float | None = None,
        min_gpu_memory_bytes: int | None = None,
    ) -> Self:
        """The catalog with only those offers that pass every filter, in their old order.

        An empty filter lets everything pass. Case does not matter in names.

        Args:
            clouds: "aws"
            regions: "us-east-1"
            zones: "use1-az4"; an on-demand price of a zone's region holds there too
            instance_types: "p3.2xlarge"
            gpus: the chip ("A100"), or the chip with its memory ("A100-80GB")
            markets: "on-demand", "spot"
            max_usd_per_hour: for a whole machine [USD/h]
            min_gpu_memory_bytes: of one GPU [bytes]

        Raises:
            InvalidInput: a name that no offer has, a limit that is no limit, or no offer left
        """
        filters: list[tuple[str, Callable[[Offer], bool]]] = []

        def keep(what: str, asked: Collection[str], passes: Callable[[Offer], bool]) -> None:
            if asked:
                filters.append((f"{what} {' or '.join(_as_names(asked))}", passes))

        known_clouds = _named("cloud", clouds, (offer.cloud for offer in self.offers))
        keep("cloud", clouds, lambda offer: offer.cloud in known_clouds)
        known_regions = _named("region", regions, (offer.region for offer in self.offers))
        keep("region", regions, lambda offer: offer.region in known_regions)
        known_zones = _named("zone", zones, (offer.zone for offer in self.offers if offer.zone))
        around = {(offer.cloud, offer.region) for offer in self.offers if offer.zone in known_zones}
        keep("zone", zones, lambda offer: offer.zone in known_zones or _holds_all_around(offer, around))
        known_types = _named("instance type", instance_types, (offer.instance_type for offer in self.offers))
        keep("instance type", instance_types, lambda offer: offer.instance_type in known_types)
        known_gpus = _gpus_named(gpus, self.offers)
        keep("GPU", gpus, lambda offer: (offer.gpu, offer.gpu_memory_bytes) in known_gpus)
        known_markets = _named("market", markets, Market)
        keep("market", markets, lambda offer: offer.market in known_markets)
        if max_usd_per_hour is not None:
            if not max_usd_per_hour > 0:
                raise InvalidInput(f"the highest price is {max_usd_per_hour} USD/h; it must be above 0")
            highest = max_usd_per_hour
            filters.append((f"at most {highest:g} USD/h a machine", lambda o: o.usd_per_hour <= highest))
        if min_gpu_memory_bytes is not None:
            least = min_gpu_memory_bytes
            what = f"at least {least / 2**30:.4g} GiB a GPU"
            filters.append((what, lambda offer: offer.gpu_memory_bytes >= least))
        return self.model_copy(update={"offers": _passing(self.offers, filters)})


def _passing(
    offers: tuple[Offer, ...], filters: list[tuple[str, Callable[[Offer], bool]]]
) -> tuple[Offer, ...]:
    for done, (what, passes) in enumerate(filters):
        left = tuple(filter(passes, offers))
        if not left:
            before = " and ".join(name for name, _ in filters[:done])
            given = f" with {before}" if before else ""
            cheapest = min((offer.usd_per_hour for offer in offers), default=math.nan)
            largest = max((offer.gpu_memory_bytes for offer in offers), default=0) / 2**30
            raise InvalidInput(
                f"no offer is left: {what} leaves none of {len(offers)} offers{given}, "
                f"which start at {cheapest:g} USD/h a machine and have up to {largest:.4g} GiB a GPU"
            )
        offers = left
    return offers


def _named(what: str, asked: Collection[str], known: Iterable[str]) -> set[str]:
    """The known names that are asked for, as the offers spell them."""
    if not asked:
        return set()
    spelt: dict[str, set[str]] = {}
    for name in known:
        spelt.setdefault(name.casefold(), set()).add(name)
    found = set()
    for name in _as_names(asked):
        if name.casefold() not in spelt:
            raise _unknown(what, name, {folded: min(names) for folded, names in spelt.items()})
        found |= spelt[name.casefold()]
    return found


def _gpus_named(asked: Collection[str], offers: tuple[Offer, ...]) -> set[tuple[str, int]]:
    """Chips, each with its memory [bytes], that are asked for as "A100" or "A100-80GB"."""
    known = {(offer.gpu, offer.gpu_memory_bytes) for offer in offers} if asked else set()
    found = set()
    for name in _as_names(asked):
        chip, memory_gb = name, None
        if parted := re.fullmatch(r"(.+?)[-_ ]?(\d+(?:\.\d+)?) ?Gi?B", name, re.IGNORECASE):
            chip, memory_gb = parted[1], float(parted[2])
        of_chip = {(gpu, size) for gpu, size in known if _chip_key(gpu) == _chip_key(chip)}
        if not of_chip:
            raise _unknown("GPU", name, {_chip_key(gpu): gpu for gpu, _ in sorted(known)})
        fitting = {each for each in of_chip if memory_gb is None or _is_about(memory_gb, each[1])}
        if not fitting:
            sizes = ", ".join(f"{size / 2**30:.4g}" for _, size in sorted(of_chip))
            raise InvalidInput(f"no {chip} with {memory_gb:g} GB of memory is offered; there is {sizes} GiB")
        found |= fitting
    return found


def _is_about(memory_gb: float, memory_bytes: int) -> bool:
    # A "24 GB" card reports 22.4 GiB in one list and 24 in another; cards of one chip differ by far more.
    return any(abs(memory_gb * unit / memory_bytes - 1) < 0.04 for unit in (10**9, 2**30))


def _chip_key(gpu: str) -> str:
    return re.sub(r"[-_ ]+", " ", gpu.strip()).casefold()


def _holds_all_around(offer: Offer, regions: set[tuple[str, str]]) -> bool:
    # A region's spot price without a zone is that of one zone, which the source does not name.
    on_demand = offer.zone is None and offer.market is Market.ON_DEMAND
    return on_demand and (offer.cloud, offer.region) in regions


def _unknown(what: str, name: str, spelt: dict[str, str]) -> InvalidInput:
    near = [spelt[folded] for folded in get_close_matches(name.casefold(), spelt)]
    hint = f"did you mean {', '.join(near)}?" if near else _listed(sorted(set(spelt.values())))
    return InvalidInput(f"unknown {what} {name!r}: {hint}")


def _listed(names: list[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"known are {', '.join(names[:most])}{more}"


def _as_names(asked: Collection[str]) -> Collection[str]:
    return (asked,) if isinstance(asked, str) else asked  # "aws" is one name, not three letters
