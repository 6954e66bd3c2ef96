"""The search for the largest batch: laws that it keeps with whatever memory, and examples of each ending."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srifty.errors import WorkloadFailed
from srifty.profiling.largest_batch import (
    MEMORY_SHARE,
    MOST_TRIES,
    RELATIVE_TOLERANCE,
    Bound,
    Ending,
    Found,
    Outcome,
    find_largest_batch,
)

LIMIT = 65_536


class Memory:
    """A device in which a step takes fixed + slope x batch, of which some may be lost to fragments.

    Notes what was tried.
    """

    def __init__(
        self,
        total: int,
        *,
        fixed: float = 0,
        slope: float = 1,
        fragments: float = 0,
        noise: Callable[[int], float] = lambda batch: 1,
        tells_peak: bool = True,
        smallest: int = 1,
    ) -> None:
        self.total, self.fixed, self.slope = total, fixed, slope
        self.fragments, self.noise, self.tells_peak, self.smallest = fragments, noise, tells_peak, smallest
        self.tried: list[int] = []

    def peak(self, batch: int) -> int:
        return round((self.fixed + self.slope * batch) * self.noise(batch))

    def holds(self, batch: int) -> bool:
        return self.peak(batch) * (1 + self.fragments) <= self.total

    def __call__(self, batch: int) -> Outcome:
        assert batch not in self.tried, "each batch is tried once"
        self.tried.append(batch)
        if batch < self.smallest:
            return Outcome(Ending.TOO_SMALL, smallest_batch=self.smallest)
        if not self.holds(batch):
            return Outcome(Ending.OUT_OF_MEMORY, smallest_batch=self.smallest, said="out of memory")
        peak = self.peak(batch) if self.tells_peak else None
        return Outcome(Ending.FITS, peak_memory_bytes=peak, step_s=0.1, smallest_batch=self.smallest)


def search(memory: Callable[[int], Outcome], **changes: object) -> Found:
    given = {"start": 8, "limit": LIMIT, "memory_bytes": getattr(memory, "total", None)}
    return find_largest_batch(memory, **(given | changes))  # type: ignore[arg-type]


memories = st.builds(
    Memory,
    st.integers(1_000, 10**9),
    fixed=st.floats(0, 1_000),
    slope=st.floats(0.5, 1_000),
    fragments=st.floats(0, 0.3),
    tells_peak=st.booleans(),
    smallest=st.integers(1, 2),
)
starts = st.integers(1, 2_000)
limits = st.integers(1, LIMIT)


@given(memories, starts, limits, st.booleans())
def test_the_answer_was_tried_fits_and_lies_within_the_limits(
    memory: Memory, start: int, limit: int, size_is_known: bool
) -> None:
    found = search(memory, start=start, limit=limit, memory_bytes=memory.total if size_is_known else None)
    assert len(memory.tried) <= MOST_TRIES
    assert max(memory.tried) <= limit
    assert list(found.outcomes) == memory.tried
    assert found.unstable is None
    smallest_fits = memory.holds(memory.smallest) and memory.smallest <= limit
    assert (found.batch is not None) == smallest_fits
    if found.batch is not None:
        assert found.outcomes[found.batch].fits
        assert memory.smallest <= found.batch <= limit


@given(memories, starts)
def test_the_answer_leaves_the_margin_and_is_within_tolerance_of_the_best(memory: Memory, start: int) -> None:
    found = search(memory, start=start)
    if found.batch is None:
        return
    if found.keeps_margin is False:
        assert memory.peak(memory.smallest) > MEMORY_SHARE * memory.total / (1 + memory.fragments) - 1
        return
    usable = memory.total / (1 + memory.fragments)
    step = memory.slope * max(1, found.batch * RELATIVE_TOLERANCE)
    if memory.tells_peak:
        assert memory.peak(found.batch) <= MEMORY_SHARE * (usable + step / 2) + 1
    best = [
        batch
        for batch in range(1, min(LIMIT, 40_000))
        if memory.holds(batch)
        and (
            memory.peak(batch) <= MEMORY_SHARE * usable - step
            if memory.tells_peak
            else memory.holds(int(batch / MEMORY_SHARE) + 1)
        )
    ]
    if best:
        # Up to one tolerance is given up to bisection, one to a multiple of 8 and one to what is not known.
        assert found.batch >= max(best) * (1 - 3 * RELATIVE_TOLERANCE) - 3


@given(memories, starts, st.integers(1, 12))
def test_a_search_that_must_end_early_still_answers_with_what_fits(
    memory: Memory, start: int, most_tries: int
) -> None:
    found = search(memory, start=start, most_tries=most_tries)
    assert len(memory.tried) <= most_tries
    if found.batch is not None:
        assert found.outcomes[found.batch].fits


@given(st.data(), st.integers(500, 100_000), starts)
def test_noisy_memory_ends_too_and_the_answer_lies_below_every_failure(
    data: st.DataObject, total: int, start: int
) -> None:
    factors: dict[int, float] = {}

    def noise(batch: int) -> float:
        if batch not in factors:
            factors[batch] = data.draw(st.floats(0.7, 1.4))
        return factors[batch]

    memory = Memory(total, fixed=50, slope=3, noise=noise)
    found = search(memory, start=start)
    assert len(memory.tried) <= MOST_TRIES
    failed = [b for b, outcome in found.outcomes.items() if outcome.ending is Ending.OUT_OF_MEMORY]
    fitted = [b for b, outcome in found.outcomes.items() if outcome.fits]
    if found.batch is not None:
        assert found.outcomes[found.batch].fits
        assert all(found.batch < batch for batch in failed)
    assert (found.unstable is not None) == bool(failed and fitted and min(failed) < max(fitted))


def test_from_a_start_that_fits_the_batch_is_doubled_then_bisected_by_multiples_of_eight() -> None:
    memory = Memory(1_000)
    found = search(memory)
    assert memory.tried[:8] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert found.batch == 944  # 95 % of 1000 is 950
    assert found.bound is Bound.MEMORY
    assert all(batch % 8 == 0 for batch in memory.tried)
    assert len(memory.tried) <= 15


def test_from_a_start_that_does_not_fit_the_search_goes_down() -> None:
    memory = Memory(100)
    found = search(memory, start=512)
    assert memory.tried[:4] == [512, 256, 128, 64]
    assert found.batch is not None
    assert 88 <= found.batch <= 95


def test_where_no_batch_fits_that_is_the_answer() -> None:
    memory = Memory(100, fixed=200)
    found = search(memory)
    assert found.batch is None
    assert memory.tried == [8, 4, 2, 1]


def test_a_margin_is_left_below_what_can_be_used_not_only_below_what_is_stated() -> None:
    # A quarter of the memory is lost to fragments: 800 of 1000 can be used.
    found = search(Memory(1_000, fragments=0.25))
    assert found.batch is not None
    assert 700 <= found.batch <= 0.97 * 800


def test_where_peaks_are_not_known_the_answer_is_a_step_below_the_largest_that_fits() -> None:
    memory = Memory(1_000, tells_peak=False)
    found = search(memory, memory_bytes=None)
    largest = max(batch for batch, outcome in found.outcomes.items() if outcome.fits)
    assert found.batch is not None
    assert 0.9 * largest <= found.batch <= 0.95 * largest


def test_where_only_one_sample_fits_it_is_the_answer_without_a_margin() -> None:
    found = search(Memory(100, slope=99))
    assert found.batch == 1
    assert found.keeps_margin is False


def test_where_the_model_alone_fills_the_memory_the_answer_is_a_step_below_the_largest() -> None:
    found = search(Memory(10_000, fixed=9_600))  # 400 samples fit beside it
    assert found.batch is not None
    assert 350 <= found.batch <= 0.95 * 400
    assert found.keeps_margin is False


def test_a_few_samples_that_leave_much_memory_free_keep_their_margin() -> None:
    found = search(Memory(100, slope=30))
    assert found.batch == 3
    assert found.keeps_margin


@pytest.mark.parametrize("limit", [1, 7, 100, 4096])
def test_a_limit_is_met_as_it_is(limit: int) -> None:
    found = search(Memory(10**6), limit=limit)
    assert found.batch == limit
    assert found.bound is Bound.LIMIT


def test_batch_normalisation_starts_at_two() -> None:
    memory = Memory(100, slope=30, smallest=2)
    found = search(memory, start=1)
    assert memory.tried[:2] == [1, 2]
    assert found.batch == 3
    memory = Memory(100, slope=60, smallest=2)
    assert search(memory, start=8).batch is None
    assert memory.tried == [8, 4, 2]
    assert search(Memory(100, smallest=2), limit=1).batch is None


def test_a_try_that_is_too_slow_ends_the_search_upwards() -> None:
    tried: list[int] = []

    def fits(batch: int) -> Outcome:
        tried.append(batch)
        return Outcome(Ending.FITS if batch < 100 else Ending.TOO_SLOW, peak_memory_bytes=batch)

    found = search(fits, memory_bytes=1_000)
    assert tried == [8, 16, 32, 64, 128]
    assert (found.batch, found.bound) == (64, Bound.TIME)


def test_a_failure_below_a_success_is_told_and_the_answer_lies_below_it() -> None:
    def fits(batch: int) -> Outcome:
        if batch in (944, 952) or batch > 990:
            return Outcome(Ending.OUT_OF_MEMORY)
        return Outcome(Ending.FITS, peak_memory_bytes=batch)

    found = search(fits, memory_bytes=1_000)
    assert found.unstable in (944, 952)
    assert found.batch is not None
    assert found.batch < found.unstable


def test_a_bug_ends_the_search_at_once() -> None:
    tried: list[int] = []

    def fits(batch: int) -> Outcome:
        tried.append(batch)
        if batch > 20:
            raise WorkloadFailed("a bug")
        return Outcome(Ending.FITS)

    with pytest.raises(WorkloadFailed, match="a bug"):
        search(fits)
    assert tried == [8, 16, 32]
