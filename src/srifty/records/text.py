"""Quantities as people read them, each with its unit; the same wherever they stand."""

from __future__ import annotations

UNITS_OF_TIME = (
    ("us", 1e-6, 1e-3),
    ("ms", 1e-3, 1.0),
    ("s", 1.0, 120.0),
    ("min", 60.0, 7200.0),
    ("h", 3600.0, 259200.0),
)
"""Name, length [s], and from which length [s] on the next one is used."""


def unit_of_time(seconds: float) -> tuple[str, float]:
    """The unit in which a length of time reads best, and its length [s]."""
    for unit, size, limit in UNITS_OF_TIME:
        if seconds < limit:
            return unit, size
    return "d", 86400.0


def duration_text(seconds: float) -> str:
    """A length of time with three figures that matter: "850 ms", "3.2 h", "2.5 d"."""
    if seconds == 0:
        return "0 s"
    unit, size = unit_of_time(seconds)
    return f"{figures(seconds / size)} {unit}"


def figures(value: float) -> str:
    """Three figures that matter: "1,240", "31.4", "0.052"; an exponent only for what is tiny or huge."""
    if value != 0 and not 1e-3 <= abs(value) < 1e12:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def usd_text(amount: float) -> str:
    """Money: whole dollars from 100 on, cents below, and two figures that matter below ten cents."""
    if amount >= 100:
        return f"{amount:,.0f}"
    return f"{amount:.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.2g}"


def percent_text(share: float) -> str:
    """A share with what matters of it: "90 %", "99.5 %"."""
    return f"{100 * share:.6g} %"


def chance_text(chance: float) -> str:
    """A chance that is never rounded into certainty: "93 %", "over 99 %", "under 1 %"."""
    if chance > 0.99:
        return "over 99 %"
    return f"{100 * chance:.0f} %" if chance >= 0.01 else "under 1 %"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 bucket", "1,352 offers"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def size_text(size_bytes: float) -> str:
    """Bytes in the unit in which they read best: "256 MiB", "1.5 GiB"."""
    for unit, length in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= length:
            return f"{size_bytes / length:.4g} {unit}"
    return f"{size_bytes:.4g} bytes"
