"""The compute model recovers what made its data, rises with the batch, and says how sure it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import make_profile

from srifty.predicting.compute_model import (
    ComputeModel,
    left_out_errors,
    piecewise_line,
    rising,
    straight_line,
)
from srifty.records import BatchTiming, Spread


def total(model, batch):
    forward, backward, optimizer, wait = model.phases(np.array([float(batch)]))
    return float((forward + backward + optimizer + wait)[0])


@given(st.floats(1e-4, 1), st.floats(1e-5, 0.1))
def test_a_line_is_recovered_exactly(constant_s, seconds_a_sample):
    model = ComputeModel.fit(make_profile(constant_s=constant_s, seconds_a_sample=seconds_a_sample))
    for batch in (2, 5, 33, 64):
        assert total(model, batch) == pytest.approx(constant_s + batch * seconds_a_sample, rel=1e-6)
    assert model.log_sd < 1e-6


def test_a_noisy_line_is_smoothed_and_a_bend_is_kept():
    batch = np.array([2.0, 4, 8, 16, 32, 64])
    noisy = (0.02 + 0.01 * batch) * np.exp(np.array([0.03, -0.03, 0.03, -0.03, 0.03, -0.03]))
    line, pieces = left_out_errors(batch, noisy, straight_line), left_out_errors(batch, noisy, piecewise_line)
    assert np.mean(line**2) < np.mean(pieces**2)
    bend = np.where(batch <= 16, 0.1, 0.1 * batch / 16)
    line, pieces = left_out_errors(batch, bend, straight_line), left_out_errors(batch, bend, piecewise_line)
    assert np.mean(line**2) > np.mean(pieces**2)


def with_steps(seconds_by_batch):
    timings = tuple(
        BatchTiming(
            batch=batch,
            forward_s=Spread.exactly(seconds * 0.3),
            backward_s=Spread.exactly(seconds * 0.7),
            optimizer_s=Spread.exactly(0.001),
        )
        for batch, seconds in seconds_by_batch.items()
    )
    return make_profile(batches=tuple(seconds_by_batch), timings=timings)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=7))
def test_time_never_falls_with_the_batch(seconds):
    profile = with_steps({2**i: s for i, s in enumerate(seconds)})
    model = ComputeModel.fit(profile)
    at = np.arange(1.0, 2.0 ** len(seconds) + 1)
    forward, backward, optimizer, _ = model.phases(at)
    for phase in (forward, backward, optimizer):
        assert np.all(np.diff(phase) >= -1e-12)
        assert np.all(phase > 0)


def test_below_the_smallest_batch_a_gpu_is_no_better_used():
    # From 20 to 28 the reading leaps; taken for the slope it would make tiny batches look free.
    model = ComputeModel.fit(with_steps({20: 0.147, 28: 0.208, 40: 0.253, 81: 0.42, 200: 0.92}))
    assert total(model, 8) / 8 > total(model, 20) / 20


def test_doubt_is_larger_where_points_do_not_agree():
    smooth = ComputeModel.fit(with_steps({b: 0.02 + 0.01 * b for b in (2, 4, 8, 16, 32)}))
    rough = ComputeModel.fit(with_steps({2: 0.05, 4: 0.05, 8: 0.2, 16: 0.2, 32: 0.9}))
    assert rough.log_sd > 0.1 > smooth.log_sd


def test_step_noise_comes_from_the_measured_spread():
    model = ComputeModel.fit(make_profile(noise=0.05))
    # Forward and backward vary apart, so the relative noise of their sum is below that of each.
    assert 0.02 < model.noise < 0.05


def test_one_measured_batch_is_enough_for_a_rough_answer():
    model = ComputeModel.fit(make_profile(batches=(32,)))
    assert total(model, 32) == pytest.approx(0.34)
    assert 0.34 / 2 < total(model, 16) < 0.34


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12))
def test_pooled_sequences_rise_and_keep_their_mean(values):
    pooled = rising(np.array(values), np.ones(len(values)))
    assert np.all(np.diff(pooled) >= 0)
    assert pooled.mean() == pytest.approx(np.mean(values), abs=1e-9)
