"""Optimizers: those that step, and which of their steps ends a step of the training."""

from __future__ import annotations

from typing import Any

FORGOTTEN_AFTER = 64
"""An optimizer that has not stepped for so many cuts is not in use any more."""


class Optimizers:
    """Every optimizer that has stepped, by the order of its first step."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._counts: list[int] = []
        self._stepped_at: list[int] = []
        self._last_fewest = 0

    def stepped(self, optimizer: Any, cut_count: int) -> int:
        """Note a step, and tell the optimizer's number."""
        known = [number for number, other in enumerate(self.all) if other is optimizer]
        number = known[0] if known else len(self.all)
        if not known:
            self.all.append(optimizer)
            self._counts.append(0)
            self._stepped_at.append(0)
        self._counts[number] += 1
        self._stepped_at[number] = cut_count
        return number

    def has_advanced(self, cut_count: int) -> bool:
        """Whether, of those in use, the one that steps least often has stepped again."""
        in_use = [
            count
            for number, count in enumerate(self._counts)
            if self._stepped_at[number] >= cut_count - FORGOTTEN_AFTER
        ]
        fewest = min(in_use, default=0)
        has_advanced = fewest > self._last_fewest
        self._last_fewest = fewest
        return has_advanced

    def parameters(self, first: int) -> list[Any]:
        """Parameters of the optimizers from number `first` on."""
        return [
            parameter
            for optimizer in self.all[first:]
            for group in getattr(optimizer, "param_groups", ())
            for parameter in group["params"]
        ]
