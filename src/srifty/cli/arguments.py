"""What people type, as numbers in the units used inside: seconds, US dollars, samples."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

from srifty.errors import InvalidInput
from srifty.records.job import LARGEST_COUNT
from srifty.records.offer import Market


class MarketChoice(StrEnum):
    """How machines may be paid for."""

    ON_DEMAND = Market.ON_DEMAND.value
    SPOT = Market.SPOT.value
    ANY = "any"

    @property
    def markets(self) -> tuple[Market, ...]:
        """The markets that it stands for."""
        return tuple(Market) if self is MarketChoice.ANY else (Market(self.value),)


SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}


def deadline_s(text: str, *, now: datetime | None = None) -> float:
    """Time that is left [s]: from a length ("12h", "1d 6h", "90min") or an instant ("2026-12-01T08:00Z").

    An instant without a zone is local time.
    """
    instant = _instant(text)
    if instant is not None:
        now = now or datetime.now(UTC)
        left = (instant - now).total_seconds()
        if left <= 0:
            raise InvalidInput(
                f"--within {text} is in the past (now: {now:%Y-%m-%d %H:%M} UTC); give a later one"
            )
        return left
    parts = re.findall(r"([\d.]+)\s*([a-z]+)", text.lower()[:60], re.ASCII)
    rest = re.sub(r"([\d.]+)\s*([a-z]+)", "", text.lower(), flags=re.ASCII).strip()
    try:
        seconds = sum(float(number) * SECONDS[unit] for number, unit in parts)
    except (KeyError, ValueError):
        parts = []
    if rest == "-" and text.strip().startswith("-") and parts:
        raise InvalidInput(f"--within {text} is in the past; give a length above 0, such as 12h")
    if not parts or rest:
        raise InvalidInput(
            f"cannot read --within {text!r}; give a length with its unit (90min, 12h, 2d) or an instant"
        )
    if not 0 < seconds < math.inf:
        raise InvalidInput(f"--within {text} leaves no time; give a length above 0, such as 12h")
    return seconds


def usd(text: str) -> float:
    """Amount of money [USD]: "200", "$1,500", "49.90USD"."""
    amount = float(_plain_number(text.lower().replace("usd", "").replace("$", "")))
    if math.isnan(amount):
        raise InvalidInput(f"cannot read --budget {text!r} as US dollars; give a number such as 200 or 49.90")
    if not 0 < amount < math.inf:
        raise InvalidInput(f"--budget is {text} USD; it must be above 0")
    return amount


def count(text: str, option: str, unit: str = "samples") -> int:
    """Whole number above 0: "1281167", "1_281_167", "1.28M", "115e6"."""
    found = re.fullmatch(r"(.*?)\s*([kmbg]?)", text.strip().lower())
    value = _plain_number(found[1]) * MULTIPLES[found[2]] if found else Decimal("nan")
    if value.is_nan() or value != int(value):
        raise InvalidInput(
            f"{option} {text!r} is not a whole number of {unit}; give one such as 1281167 or 1.28M"
        )
    if not 1 <= value <= LARGEST_COUNT:
        raise InvalidInput(f"{option} is {text} [{unit}]; it must be from 1 to {LARGEST_COUNT:.0e}")
    return int(value)


def _plain_number(text: str) -> Decimal:
    """An exact number from "1281167", "1_281_167", "1,281,167", "-0.5" or "115e6"; NaN for anything else.

    Commas stand between groups of three only: "1,5" is one and a half to many people, and never fifteen.
    """
    digits = r"(\d{1,30}|\d{1,3}(,\d{3}){1,9}|\d{1,3}(_\d{3}){1,9})(\.\d{1,30})?"
    if not re.fullmatch(
        rf"[+-]?({digits}|\.\d{{1,30}})(e\+?\d{{1,2}})?", text.strip(), re.IGNORECASE | re.ASCII
    ):
        return Decimal("nan")
    return Decimal(text.strip().replace(",", "").replace("_", ""))


def _instant(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except ValueError:
        return None
    except OverflowError:
        raise InvalidInput(
            f"--within {text} is beyond what calendars hold; give a length such as 12h"
        ) from None
