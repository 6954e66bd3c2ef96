"""Pace: how many steps were seen, when hooks are due, and when enough was seen."""

from __future__ import annotations

import random
import time
from statistics import median
from typing import Any

COLD_STEPS = 2
BLOCK = 3
"""Steps with hooks on the parameters, then without, and so on: so many on average. The lengths vary, or they would
fall in with whatever comes every second, third or sixth step, such as the wait for a loader of several workers."""
FEWEST_STEPS = COLD_STEPS + 8 * BLOCK
FEWEST_SLOW_STEPS = COLD_STEPS + 4 * BLOCK
SLOW_S = 30.0
"""After this time fewer steps will do."""
MOST_STEPS = 200
FEWEST_TO_TELL = 3


class Pace:
    """The steps of this process so far, by the host's clock."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._until, self._steady_s = float(settings["until"]), float(settings["steady_s"])
        self._enough_after: int | None = settings.get("steps")
        self.step_s: list[float] = []
        # The program's own random numbers are not touched, and nothing here is secret.
        self._lengths = random.Random(1)  # noqa: S311
        self._block_ends = COLD_STEPS
        self._is_hooked = False
        self._begun_at = time.perf_counter()

    def step(self, step_s: float) -> None:
        """A step has ended."""
        self.step_s.append(step_s)
        if len(self.step_s) == COLD_STEPS:
            self._begun_at = time.perf_counter()
        if len(self.step_s) == self._block_ends:
            self._is_hooked = not self._is_hooked
            self._block_ends += self._lengths.randint(BLOCK - 1, BLOCK + 1)

    @property
    def wants_hooks(self) -> bool:
        """Whether the next step is one in which to see when gradients are ready."""
        return self._is_hooked

    def verdict(self) -> str | None:
        """Why to stop now: "enough" was seen, or it is "late" for another step; None: go on."""
        count, last = len(self.step_s), self.step_s
        if self._enough_after is not None:
            return "enough" if count >= self._enough_after else None
        if count >= FEWEST_TO_TELL and self._until - time.monotonic() < 2 * median(last[-3:]) + 1:
            return "late"
        if count >= MOST_STEPS:
            return "enough"
        taken_s = time.perf_counter() - self._begun_at
        if taken_s > SLOW_S:
            return "enough" if count >= FEWEST_SLOW_STEPS else None
        if count < FEWEST_STEPS or taken_s < self._steady_s:
            return None
        has_settled = median(last[-6:]) >= 0.95 * median(last[-12:-6])
        return "enough" if has_settled or count >= 2 * FEWEST_STEPS else None
