"""Offer and Catalog: what can be rented, where, for how much, as of when."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from srifty.records.record import Record

Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(ge=1)]


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
    gpu_count: PositiveInt
    gpu_memory_bytes: PositiveInt
    """Memory of one GPU."""
    vcpu_count: PositiveInt
    memory_bytes: PositiveInt | None = None
    """Memory of the machine."""
    network_bytes_per_s: Positive | None = None
    """What the whole machine's network sustains; None: not known."""
    network_burst_bytes_per_s: Positive | None = None
    gpu_link: GpuLink | None = None
    """None where there is one GPU, or where it is not known."""
    gpu_link_bytes_per_s: Positive | None = None
    """Nominal rate of one GPU's link, one way."""
    market: Market
    usd_per_hour: Positive
    """For the whole machine, not for one GPU."""
    price_as_of: date
    source: str
    interruptions_per_hour: Annotated[float, Field(ge=0)] | None = None
    node_limit: PositiveInt | None = None
    """How many such machines may be rented at once; None: no known limit."""

    @property
    def usd_per_gpu_hour(self) -> float:
        """Price of one GPU for an hour."""
        return self.usd_per_hour / self.gpu_count

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
