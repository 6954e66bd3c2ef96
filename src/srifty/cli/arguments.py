"""What people type, as numbers in the units used inside: seconds, US dollars, samples."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from srifty.errors import InvalidInput

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
    parts = re.findall(r"([\d.]+)\s*([a-z]+)", text.lower())
    rest = re.sub(r"([\d.]+)\s*([a-z]+)", "", text.lower()).strip()
    try:
        seconds = sum(float(number) * SECONDS[unit] for number, unit in parts)
    except (KeyError, ValueError):
        parts = []
    if rest == "-" and parts:
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
    cleaned = text.lower().replace("usd", "").replace("$", "").replace(",", "").replace("_", "").strip()
    try:
        amount = float(cleaned)
    except ValueError:
        raise InvalidInput(
            f"cannot read --budget {text!r} as US dollars; give a number such as 200"
        ) from None
    if not 0 < amount < math.inf:
        raise InvalidInput(f"--budget is {text} USD; it must be above 0")
    return amount


def count(text: str, option: str, unit: str = "samples") -> int:
    """Whole number above 0: "1281167", "1_281_167", "1.28M", "115e6"."""
    found = re.fullmatch(r"([+-]?[\d_,]*\.?\d+(?:e\+?\d{1,2})?)\s*([kmbg]?)", text.strip().lower())
    value = float(found[1].replace("_", "").replace(",", "")) * MULTIPLES[found[2]] if found else math.nan
    if found and re.fullmatch(r"\d+", found[1]) and not found[2]:
        value = int(found[1])  # exact beyond 2^53
    if math.isnan(value) or value != int(value):
        raise InvalidInput(
            f"{option} {text!r} is not a whole number of {unit}; give one such as 1281167 or 1.28M"
        )
    if value < 1:
        raise InvalidInput(f"{option} is {text} [{unit}]; it must be at least 1")
    return int(value)


def _instant(text: str) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return instant.astimezone(UTC)
