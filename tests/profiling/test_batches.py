"""Batches that the profiler chooses itself."""

from __future__ import annotations

from torch import nn

from srifty.profiling.batches import batches_up_to, doubling_batches, smallest_batch


def test_batch_normalisation_needs_two_samples() -> None:
    assert smallest_batch(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))) == 2
    assert smallest_batch(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))) == 1


def test_frozen_batch_normalisation_needs_no_second_sample() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model[1].eval()
    assert smallest_batch(model) == 1


def test_batches_double_until_steps_are_long_and_five_from_end_to_end_are_kept() -> None:
    batches, too_large = doubling_batches(1, step_s=lambda batch: batch * 0.001, longest_s=0.1)
    assert batches == [1, 4, 16, 32, 128]
    assert too_large is None


def test_a_slow_model_gets_three_batches_all_the_same() -> None:
    assert doubling_batches(2, step_s=lambda batch: 10.0, longest_s=0.1) == ([2, 4, 8], None)


def test_no_batch_is_above_the_global_batch() -> None:
    assert doubling_batches(1, step_s=lambda batch: 0.0, longest_s=1, largest=48)[0][-1] == 32
    assert doubling_batches(2, step_s=lambda batch: 0.0, longest_s=1, largest=1)[0] == [2]


def test_the_first_batch_that_does_not_fit_ends_the_search_and_is_told() -> None:
    def step_s(batch: int) -> float | None:
        return 0.0 if batch <= 4 else None

    assert doubling_batches(1, step_s=step_s, longest_s=1) == ([1, 2, 4], 8)


def test_where_the_largest_is_known_it_and_doublings_below_are_timed() -> None:
    assert batches_up_to(480, smallest=1) == [1, 4, 16, 64, 256, 480]
    assert batches_up_to(512, smallest=2) == [2, 8, 32, 64, 256, 512]
    assert batches_up_to(264, smallest=1) == [1, 4, 16, 32, 128, 264]  # 256 would tell nothing more
    assert batches_up_to(3, smallest=2) == [2, 3]
    assert batches_up_to(1, smallest=1) == [1]
