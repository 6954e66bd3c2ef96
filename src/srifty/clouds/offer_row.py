"""One row of the table of offers as the fields of an offer: here the table's units become the records' own.

Apart from the table, because what makes a row an offer is another question than what makes a file a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from typing import Any

from srifty.records.offer import GpuLink, Market

REQUIRED_COLUMNS = (
    "cloud",
    "region",
    "instance_type",
    "gpu",
    "gpu_count",
    "gpu_memory_gib",
    "vcpu_count",
    "usd_per_hour",
)
OPTIONAL_COLUMNS = (
    "zone",
    "memory_gib",
    "network_gbit_per_s",
    "network_burst_gbit_per_s",
    "gpu_link",
    "gpu_link_gbyte_per_s",
    "market",
    "price_as_of",
    "source",
    "interruptions_per_hour",
    "node_limit",
)

BYTES_PER_GIB = 2**30
BYTES_PER_GBIT = 1e9 / 8
BYTES_PER_GBYTE = 1e9

_MARKETS = {"": Market.ON_DEMAND, **{market.value: market for market in Market}}
_GPU_LINKS = {"": None, **{link.value: link for link in GpuLink}}

Row = Mapping[str, str]
Fields = dict[str, Any]


class NoOffer(Exception):
    """Why a row of the table is no offer."""


def offer_fields(row: Row, file_name: str, changed_on: date) -> Fields:
    """An offer's fields in seconds, bytes and US dollars; what they may be, `Offer` checks.

    Args:
        row: text by column; optional columns may be absent or blank
        file_name: stands for a source where the row names none
        changed_on: stands for the price's date where the row has none

    Raises:
        NoOffer: a figure is missing, or is none, or cannot be
    """
    price_as_of, source = _date(row.get("price_as_of", "")), row.get("source") or file_name
    if price_as_of is None:
        price_as_of, source = changed_on, f"{source}; price dated by the file's last change"
    return {
        "cloud": _name(row, "cloud"),
        "region": _name(row, "region"),
        "zone": row.get("zone") or None,
        "instance_type": _name(row, "instance_type"),
        "gpu": _name(row, "gpu"),
        "gpu_count": _whole_gpus(row),
        "gpu_memory_bytes": _bytes(row, "gpu_memory_gib"),
        "vcpu_count": _count(row, "vcpu_count"),
        "memory_bytes": _bytes(row, "memory_gib") if row.get("memory_gib") else None,
        "network_bytes_per_s": _rate(row, "network_gbit_per_s", BYTES_PER_GBIT),
        "network_burst_bytes_per_s": _rate(row, "network_burst_gbit_per_s", BYTES_PER_GBIT),
        "gpu_link": _choice(row, "gpu_link", _GPU_LINKS),
        "gpu_link_bytes_per_s": _rate(row, "gpu_link_gbyte_per_s", BYTES_PER_GBYTE),
        "market": _choice(row, "market", _MARKETS),
        "usd_per_hour": _price(row),
        "price_as_of": price_as_of,
        "source": source,
        "interruptions_per_hour": _at_least_0(row, "interruptions_per_hour"),
        "node_limit": _count(row, "node_limit") if row.get("node_limit") else None,
    }


def _name(row: Row, column: str) -> str:
    if not row[column]:
        raise NoOffer(f"no {column}")
    return row[column]


def _choice(row: Row, column: str, choices: Mapping[str, Any]) -> Any:
    try:
        return choices[row.get(column, "").lower()]
    except KeyError:
        raise NoOffer(f"{column} is none of {', '.join(filter(None, choices))}") from None


def _price(row: Row) -> float:
    if not row["usd_per_hour"]:
        raise NoOffer("no price")
    price = _number(row, "usd_per_hour")
    if price <= 0:
        # Zero stands for "not known" in many lists, and would win every comparison.
        raise NoOffer("a price that is not above 0")
    if price > 1e6:
        raise NoOffer("a price above 1,000,000 USD an hour")
    return price


def _whole_gpus(row: Row) -> int:
    count = _number(row, "gpu_count")
    if not 1 <= count <= 1e6 or count != int(count):
        raise NoOffer("no whole number of GPUs")
    return int(count)


def _count(row: Row, column: str) -> int:
    count = _number(row, column)
    if not 1 <= count <= 1e9 or count != int(count):
        raise NoOffer(f"{column} is not a whole number from 1")
    return int(count)


def _bytes(row: Row, column: str) -> int:
    size = _number(row, column) * BYTES_PER_GIB
    if not 1 <= size <= 2**60:
        raise NoOffer(f"{column} is not a size that a memory could have")
    return round(size)


def _rate(row: Row, column: str, bytes_per_unit: float) -> float | None:
    if not row.get(column):
        return None
    rate = _number(row, column) * bytes_per_unit
    if not 1e3 <= rate <= 1e15:
        raise NoOffer(f"{column} is not a rate that a link could have")
    return rate


def _at_least_0(row: Row, column: str) -> float | None:
    if not row.get(column):
        return None
    value = _number(row, column)
    if value < 0:
        raise NoOffer(f"{column} is below 0")
    return value


def _number(row: Row, column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        raise NoOffer(f"{column} is not a number" if row[column] else f"no {column}") from None
    if not math.isfinite(value):
        raise NoOffer(f"{column} is not a finite number")
    return value


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise NoOffer("price_as_of is not a date such as 2026-07-01") from None
