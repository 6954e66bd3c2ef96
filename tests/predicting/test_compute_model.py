"""The compute model recovers what made its data, rises with the batch, and says how sure it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import make_profile

from srifty.predicting.compute_model import (
    LEFT_OUT_LOG_SD,
    ComputeModel,
    chosen_curve,
    knee,
    next_batch,
    pieces,
    rising,
)
from srifty.records import BatchTiming, Spread


def total(model, batch):
    return float(sum(phase[0] for phase in model.phases(np.array([float(batch)]))))


@given(st.floats(1e-4, 1), st.floats(1e-5, 0.1))
def test_a_line_is_recovered_exactly(constant_s, seconds_a_sample):
    model = ComputeModel.fit(make_profile(constant_s=constant_s, seconds_a_sample=seconds_a_sample))
    for batch in (2, 5, 33, 64):
        assert total(model, batch) == pytest.approx(constant_s + batch * seconds_a_sample, rel=1e-6)
    assert model.log_sd < LEFT_OUT_LOG_SD


@given(st.floats(1e-4, 0.1), st.floats(4, 64), st.sampled_from([1.0, 1.5, 2.0, 3.0, 5.0]))
def test_a_knee_is_recovered_from_the_data(slope, knee_batch, p):
    level = slope * knee_batch
    batch = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
    at = np.array([3.0, 24, 100])
    made = (level**p + (slope * batch) ** p) ** (1 / p)
    truth = (level**p + (slope * at) ** p) ** (1 / p)
    assert knee(batch, made, at) == pytest.approx(truth, rel=0.02)


def test_the_data_choose_between_pieces_and_a_knee():
    batch = np.array([2.0, 4, 8, 16, 32, 64])
    assert chosen_curve(batch, np.hypot(0.1, 0.01 * batch)) is knee
    two_kernels = np.where(batch <= 8, 0.05 + 0.01 * batch, 0.3 + 0.03 * batch)
    assert chosen_curve(batch, two_kernels) is pieces


def test_a_slower_kernel_is_put_where_it_was_seen():
    # Up to 64 samples 10 ms each; at 128, with little memory left, 25 ms each.
    batch, seconds = np.array([16.0, 32, 64, 128]), np.array([0.16, 0.32, 0.64, 3.2])
    assert pieces(batch, seconds, np.array([96.0, 127.0, 128.0])) == pytest.approx([0.96, 1.27, 3.2])


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
    for phase in model.phases(at)[:3]:
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
    at = np.array([8.0, 12.0, 64.0, 128.0])
    measured, between, beyond, further = smooth.doubt(at)
    assert 0 == measured < between < beyond < further


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
    pooled = rising(np.array(values))
    assert np.all(np.diff(pooled) >= 0)
    assert pooled.mean() == pytest.approx(np.mean(values), abs=1e-9)


def test_the_next_batch_is_where_a_knee_could_hide_most():
    profile = with_steps({4: 0.1, 64: 0.2})
    assert next_batch(profile, at_most=256) == 256
    profile = with_steps({1: 0.1, 256: 1.0})
    assert next_batch(profile, at_most=256) == 16
    # Between 1 and 16 it is level, so nothing hides there; between 16 and 256 much may.
    assert next_batch(with_steps({1: 0.1, 16: 0.1, 256: 1.0}), at_most=256) == 64
    assert next_batch(with_steps({1: 0.1, 2: 0.2, 3: 0.3}), at_most=3) is None


def test_probes_that_are_placed_so_find_the_curve():
    truth = {b: max(0.1, 0.004 * b) for b in range(1, 257)}
    known = {1: truth[1]}
    for _ in range(6):
        batch = next_batch(with_steps(dict(sorted(known.items()))), at_most=256)
        known[batch] = truth[batch]
    model = ComputeModel.fit(with_steps(dict(sorted(known.items()))))
    errors = [abs(total(model, b) / (truth[b] + 0.001) - 1) for b in truth]
    assert np.mean(errors) < 0.04
