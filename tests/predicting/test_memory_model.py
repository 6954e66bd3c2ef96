"""The largest batch on another memory: measured peaks are followed, and not farther than they carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import make_profile

from srifty.predicting.memory_model import (
    FARTHEST,
    MEMORY_SHARE,
    RUNTIME_BYTES,
    SAME_MEMORY,
    MemoryLine,
    largest_batch,
)
from srifty.records import JobProfile

GIB = 2**30
MIB = 2**20


def profile_with_peaks(peaks: dict[int, int | None], **fields: object) -> JobProfile:
    made = make_profile(batches=tuple(peaks), **fields)
    timings = [
        timing.model_copy(update={"peak_memory_bytes": peaks[timing.batch]}) for timing in made.timings
    ]
    return made.model_copy(update={"timings": tuple(timings)})


def on_a_line(fixed: int, slope: int, *batches: int, **fields: object) -> JobProfile:
    return profile_with_peaks({batch: fixed + slope * batch for batch in batches}, **fields)


def test_fixed_part_and_slope_are_recovered():
    line = MemoryLine.fit(on_a_line(700 * MIB, 50 * MIB, 8, 16, 32, 64))
    assert line is not None
    assert line.fixed_bytes == pytest.approx(700 * MIB)
    assert line.slope_bytes == line.fitted_bytes == pytest.approx(50 * MIB)


def test_with_less_memory_the_batch_follows_the_measured_peaks():
    # 16 GiB nearly filled by a batch of 256
    profile = on_a_line(2 * GIB, 50 * MIB, 64, 128, 256)
    limit = MEMORY_SHARE * 8 * GIB - RUNTIME_BYTES
    expected = int((limit - 2 * GIB) / (50 * MIB))
    assert largest_batch(profile, 8 * GIB) == expected
    assert largest_batch(profile, 3 * GIB) == 0


def test_less_memory_never_takes_more_than_the_measured_batch():
    small = on_a_line(GIB, MIB, 2, 4, 8)
    assert largest_batch(small, 12 * GIB) == small.max_batch == 8


@pytest.mark.parametrize("share", [1 / SAME_MEMORY + 0.01, 1.0, SAME_MEMORY - 0.01])
def test_the_same_memory_takes_the_batch_that_is_known_to_fit(share):
    profile = on_a_line(2 * GIB, 50 * MIB, 64, 128, 256)
    assert largest_batch(profile, int(share * 16 * GIB)) == 256


def test_more_memory_takes_more_where_memory_ended_the_measured_job():
    profile = on_a_line(2 * GIB, 50 * MIB, 64, 128, 256)
    limit = MEMORY_SHARE * 32 * GIB - RUNTIME_BYTES
    assert largest_batch(profile, 32 * GIB) == int((limit - 2 * GIB) / (50 * MIB)) > 256


def test_more_memory_takes_no_more_where_something_else_ended_the_measured_job():
    profile = on_a_line(2 * GIB, 5 * MIB, 64, 128, 256)  # a fifth of the memory
    assert largest_batch(profile, 80 * GIB) == 256


def test_no_line_is_followed_beyond_four_times_what_was_measured():
    profile = on_a_line(GIB, 50 * MIB, 64, 128, 256)
    assert largest_batch(profile, 1000 * GIB) == FARTHEST * 256


def test_one_peak_is_no_line_and_the_old_rule_holds():
    peaks = {64: None, 128: None, 256: 14 * GIB}
    without = profile_with_peaks(dict.fromkeys(peaks))
    for memory in (8 * GIB, 16 * GIB, 80 * GIB):
        assert largest_batch(profile_with_peaks(peaks), memory) == largest_batch(without, memory)
    assert largest_batch(without, 80 * GIB) == 256


def test_peaks_that_bend_upwards_are_not_underestimated_beyond_the_last():
    # The optimizer's phase takes 8 GiB at any batch, the forward pass 40 MiB a sample from 300 on.
    peaks = {batch: max(8 * GIB, 2 * GIB + 40 * MIB * batch) for batch in (8, 16, 32, 64, 128, 256, 320)}
    line = MemoryLine.fit(profile_with_peaks(peaks))
    assert line is not None
    for batch in (320, 400, 800):
        assert line.memory_bytes(batch) >= 2 * GIB + 40 * MIB * batch - 1


def test_peaks_that_do_not_grow_tell_nothing_of_more_memory():
    flat = profile_with_peaks(dict.fromkeys((8, 16, 32), 14 * GIB))
    assert largest_batch(flat, 80 * GIB) == 32
    assert largest_batch(flat, 8 * GIB) == 0


@given(
    fixed=st.integers(0, 8 * GIB),
    slope=st.integers(0, 100 * MIB),
    noise=st.lists(st.floats(0.9, 1.1), min_size=5, max_size=5),
    memories=st.lists(st.integers(1, 200 * GIB), min_size=2, max_size=2),
)
def test_more_memory_never_takes_fewer_samples(fixed, slope, noise, memories):
    batches = (8, 16, 32, 64, 100)
    peaks = {batch: int((fixed + slope * batch) * n) for batch, n in zip(batches, noise, strict=True)}
    profile = profile_with_peaks(peaks)
    less, more = (largest_batch(profile, memory) for memory in sorted(memories))
    assert 0 <= less <= more <= FARTHEST * 100
