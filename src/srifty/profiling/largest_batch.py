"""The largest batch that fits with a margin: a search over tries, each of which tells how it ended.

A search knows nothing of processes and devices: what a try is, the caller says. So its laws can be tested
against made-up memories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

MOST_TRIES = 32
"""Enough for 13 doublings, 5 bisections, 5 more for the margin, and some tries that were not to be expected."""
MEMORY_SHARE = 0.95
"""Share of the usable memory that the largest batch takes at most: later steps may need more than the first
two (fragments, longer samples, other data)."""
RELATIVE_TOLERANCE = 1 / 32
"""How much larger a batch might still fit, as a share of the one that is found; or one sample."""
PREFERRED_MULTIPLE = 8
"""GPUs compute in tiles of 8, and global batches are shared out more easily."""


class Ending(StrEnum):
    """How a try ended; a bug in the training code is an exception and ends the search."""

    FITS = "fits"
    OUT_OF_MEMORY = "out of memory"
    TOO_SLOW = "too slow"
    TOO_SMALL = "too small"
    """The model does not train with so few samples; `smallest_batch` tells how many it needs."""
    TOO_FEW = "too few"
    """There are not so many samples to train on."""


@dataclass(frozen=True)
class Outcome:
    """What a try of one batch has told."""

    ending: Ending
    peak_memory_bytes: int | None = None
    """Most memory in use; None: not known."""
    reserve_bytes: int = 0
    """What is to be left free besides."""
    memory_bytes: int | None = None
    """What there is in all, where the try tells it."""
    step_s: float | None = None
    """Length of the last step."""
    smallest_batch: int | None = None
    """Fewest samples that the model trains with, where that was told."""
    said: str = ""
    """Why it did not fit."""

    @property
    def fits(self) -> bool:
        """Whether all steps ended."""
        return self.ending is Ending.FITS


class Bound(StrEnum):
    """What kept the batch from being larger."""

    MEMORY = "memory"
    LIMIT = "limit"
    TIME = "time"
    DATA = "data"
    TRIES = "tries"


_BOUNDS = {
    Ending.OUT_OF_MEMORY: Bound.MEMORY,
    Ending.TOO_SLOW: Bound.TIME,
    Ending.TOO_FEW: Bound.DATA,
}
"""What a try has met that did not fit."""


@dataclass(frozen=True)
class Found:
    """The answer of a search.

    Attributes:
        batch: the largest batch [samples], itself tried; None: none fits
        bound: what kept it from being larger
        keeps_margin: whether it is known to leave the margin of memory free; False: no batch does; None: not
            known, since peaks or the memory are not
        unstable: a batch that ran out of memory although a larger one had fitted; None: there was none
        outcomes: of all tries, in their order
    """

    batch: int | None
    bound: Bound
    keeps_margin: bool | None
    unstable: int | None
    outcomes: dict[int, Outcome]


def find_largest_batch(
    fits: Callable[[int], Outcome],
    *,
    start: int,
    limit: int,
    smallest: int = 1,
    memory_bytes: int | None = None,
    most_tries: int = MOST_TRIES,
) -> Found:
    """Double from the start, or halve where it does not fit; then bisect; then leave a margin.

    It is assumed that what fits goes on to fit with fewer samples. Where that is seen to be false, every batch
    from the smaller failure on counts as not fitting, and `unstable` tells.

    Bisection ends where a batch that is larger by 1/32, or by one sample, does not fit. It tries multiples of 8
    first, and among batches within that tolerance a multiple of 8 is taken: neither costs a try.

    The margin: the peak memory of the result is at most 95 % of the usable memory, which is

        usable = min(memory, (peak(b) + peak(f)) / 2)

    with b the largest batch that fits and f the smallest that does not; its peak is extrapolated from the two
    largest that fit. What a try tells to leave free besides counts as taken. (Allocators keep some memory to
    themselves, and others may be there, so the memory that a vendor states is not what can be used.) Where peaks are
    not known, or no batch leaves as much, the result is at most 95 % of b, or the smallest that fits.

    Args:
        fits: tries a batch, and is asked at most once for each; what it raises ends the search
        start: the first to try [samples]
        limit: none above is tried [samples]
        smallest: none below is tried [samples]; a try may tell more
        memory_bytes: of the device; None: not known, unless a try tells it
        most_tries: then the best so far is the answer
    """
    tries = _Tries(fits, limit, smallest, most_tries)
    stopped = tries.find(start, limit, lambda _, outcome: outcome.fits)
    fitted = tries.fitted()
    if not fitted:
        return Found(None, stopped or tries.what_failed(), None, None, tries.outcomes)
    largest, is_bounded = max(fitted), tries.lowest_failure() is not None
    usable_bytes = tries.usable_bytes(memory_bytes)
    is_known = usable_bytes is not None and fitted[largest].peak_memory_bytes is not None

    def leaves_memory(_: int, outcome: Outcome) -> bool:
        peak = outcome.peak_memory_bytes
        if peak is None or not outcome.fits:
            return False
        return peak + outcome.reserve_bytes <= MEMORY_SHARE * (usable_bytes or 0)

    def is_a_step_below(batch: int, outcome: Outcome) -> bool:
        return outcome.fits and (batch <= MEMORY_SHARE * largest or not is_bounded)

    good: list[int] = []
    if is_known:
        stopped = tries.find(largest, largest, leaves_memory) or stopped
        good = tries.fitted_and(leaves_memory)
    keeps_margin = bool(good) if is_known else None
    if not good:
        below = _a_step_below(largest, tries.smallest) if is_bounded else largest
        stopped = tries.find(below, below, is_a_step_below) or stopped
        good = tries.fitted_and(is_a_step_below)
    batch = _preferred(good, limit) if good else min(tries.fitted(), default=None)
    if batch == limit:
        bound = Bound.LIMIT
    elif not good or max(good) < largest:
        bound = Bound.MEMORY
    else:
        bound = stopped or tries.what_failed()
    return Found(batch, bound, keeps_margin, tries.unstable(), tries.outcomes)


def tolerance(batch: int) -> int:
    """How far above this batch the search does not look any more [samples]."""
    return max(1, int(batch * RELATIVE_TOLERANCE))


class _Stop(Exception):
    def __init__(self, bound: Bound) -> None:
        self.bound = bound


@dataclass
class _Tries:
    """What was tried, and what follows from it."""

    fits: Callable[[int], Outcome]
    limit: int
    smallest: int
    most_tries: int
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def outcome(self, batch: int) -> Outcome:
        """Try a batch, unless it was tried."""
        if batch not in self.outcomes:
            if len(self.outcomes) >= self.most_tries:
                raise _Stop(Bound.TRIES)
            self.outcomes[batch] = self.fits(batch)
            self.smallest = max(self.smallest, self.outcomes[batch].smallest_batch or 1)
        outcome = self.outcomes[batch]
        bound = _BOUNDS.get(outcome.ending)
        if bound in (Bound.TIME, Bound.DATA) and any(other.fits for other in self.outcomes.values()):
            raise _Stop(bound)  # those above and between would only take as long, or get as few
        return outcome

    def find(self, start: int, limit: int, is_good: Callable[[int, Outcome], bool]) -> Bound | None:
        """Try batches until the largest good one is known to within the tolerance; or tell what stopped that."""
        try:
            self._find(start, limit, is_good)
        except _Stop as stop:
            return stop.bound
        return None

    def _find(self, start: int, limit: int, is_good: Callable[[int, Outcome], bool]) -> None:
        tried = {
            batch: is_good(batch, outcome)
            for batch, outcome in self.outcomes.items()
            if batch <= limit and outcome.ending is not Ending.TOO_SMALL
        }
        bad = min((batch for batch, was_good in tried.items() if not was_good), default=None)
        good = max(
            (batch for batch, was_good in tried.items() if was_good and (bad is None or batch < bad)),
            default=None,
        )
        batch = min(max(start, self.smallest), limit)
        while good is None or bad is None:
            outcome = self.outcome(batch)
            if is_good(batch, outcome):
                good = batch
                if batch == limit:
                    break
                batch = min(2 * batch, limit)
            elif outcome.ending is Ending.TOO_SMALL:
                if not batch < self.smallest <= limit or bad == self.smallest:
                    return
                batch = self.smallest
            else:
                bad = batch if bad is None else min(bad, batch)
                if batch <= self.smallest:
                    break
                batch = max(batch // 2, self.smallest)
        while good is not None and bad is not None and bad - good > tolerance(good):
            middle = _between(good, bad)
            if is_good(middle, self.outcome(middle)):
                good = middle
            else:
                bad = middle

    def usable_bytes(self, memory_bytes: int | None) -> float | None:
        """See `find_largest_batch`."""
        failing = self.lowest_failure()
        told = (
            outcome.memory_bytes for outcome in self.outcomes.values() if outcome.memory_bytes is not None
        )
        memory_bytes = next(told, None) if memory_bytes is None else memory_bytes
        peaks = [
            (batch, outcome.peak_memory_bytes)
            for batch, outcome in sorted(self.fitted().items())
            if outcome.peak_memory_bytes is not None
        ]
        if failing is None or not peaks:
            return memory_bytes
        (before, peak_before), (largest, peak) = [(0, 0), *peaks][-2:]
        slope = max(0.0, (peak - peak_before) / (largest - before))
        seen = peak + slope * (failing - largest) / 2
        return seen if memory_bytes is None else min(seen, memory_bytes)

    def fitted(self) -> dict[int, Outcome]:
        """Those that fit, below every failure."""
        lowest = self.lowest_failure()
        return {
            batch: outcome
            for batch, outcome in self.outcomes.items()
            if outcome.fits and (lowest is None or batch < lowest)
        }

    def fitted_and(self, is_good: Callable[[int, Outcome], bool]) -> list[int]:
        """Those of them that are good as well."""
        return [batch for batch, outcome in self.fitted().items() if is_good(batch, outcome)]

    def lowest_failure(self) -> int | None:
        """The smallest batch that ran out of memory."""
        return min(self._out_of_memory(), default=None)

    def what_failed(self) -> Bound:
        """What the smallest batch that did not fit shows."""
        failed = {
            batch: _BOUNDS[outcome.ending]
            for batch, outcome in self.outcomes.items()
            if outcome.ending in _BOUNDS
        }
        return failed[min(failed)] if failed else Bound.LIMIT

    def unstable(self) -> int | None:
        """A batch that ran out of memory although a larger one fitted."""
        largest = max((batch for batch, outcome in self.outcomes.items() if outcome.fits), default=0)
        return min((batch for batch in self._out_of_memory() if batch < largest), default=None)

    def _out_of_memory(self) -> list[int]:
        return [batch for batch, outcome in self.outcomes.items() if outcome.ending is Ending.OUT_OF_MEMORY]


def _between(good: int, bad: int) -> int:
    """The middle, or the multiple of 8 next to it where one lies between."""
    middle = (good + bad) // 2
    near = round(middle / PREFERRED_MULTIPLE) * PREFERRED_MULTIPLE
    return near if good < near < bad else middle


def _a_step_below(batch: int, smallest: int) -> int:
    """Smaller by the margin, and a multiple of 8 where that is within the tolerance."""
    below = max(int(MEMORY_SHARE * batch), smallest)
    multiple = below - below % PREFERRED_MULTIPLE
    return multiple if multiple and below - multiple <= tolerance(below) else below


def _preferred(good: list[int], limit: int) -> int:
    """The largest, or a multiple of 8 within the tolerance below it; a limit is met as it is."""
    largest = max(good)
    multiple = max((batch for batch in good if batch % PREFERRED_MULTIPLE == 0), default=None)
    if largest == limit or multiple is None or largest - multiple > tolerance(multiple):
        return largest
    return multiple
