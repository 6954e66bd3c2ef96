"""Spread: a quantity that varies, since one figure for a time on a shared cloud is never the truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Annotated, Self

from pydantic import Field, model_validator

from srifty.records.record import Record

Z90 = NormalDist().inv_cdf(0.9)
"""The 90th percentile of a normal distribution, in standard deviations."""


class Spread(Record):
    """Tenth, fiftieth and ninetieth percentile and mean of a quantity; the unit is in the field's name.

    Spreads are never added: a sum of 90th percentiles is no 90th percentile.
    """

    p10: float
    p50: float
    p90: float
    mean: float
    sample_count: Annotated[int, Field(ge=1)]
    """How many readings (measured) or scenarios (predicted) stand behind it."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.p10 <= self.p50 <= self.p90:
            raise ValueError(f"percentiles must rise: p10 {self.p10}, p50 {self.p50}, p90 {self.p90}")
        return self

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Spread of readings; percentiles interpolate linearly between ordered readings."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("a spread needs at least one reading")
        return cls(
            p10=_percentile(ordered, 0.1),
            p50=_percentile(ordered, 0.5),
            p90=_percentile(ordered, 0.9),
            mean=sum(ordered) / len(ordered),
            sample_count=len(ordered),
        )

    @classmethod
    def exactly(cls, value: float) -> Self:
        """Spread of a quantity known without doubt."""
        return cls(p10=value, p50=value, p90=value, mean=value, sample_count=1)

    def quantile(self, share: float) -> float:
        """Value that the quantity stays below with this chance, 0 < share < 1.

        Between and beyond the percentiles a normal distribution is assumed whose standard deviation differs
        above and below the median.
        """
        side = self.p90 - self.p50 if share >= 0.5 else self.p50 - self.p10
        return self.p50 + side * NormalDist().inv_cdf(share) / Z90


def _percentile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    # In this form rounding cannot lift the result above the upper reading.
    return min(ordered[below] + (ordered[above] - ordered[below]) * (position - below), ordered[above])
