import csv
import math

import numpy as np
import pytest

from build_sample_profiles import (
    BUCKET_LIMITS_BYTES,
    GPUS,
    JOBS,
    SHIPPED,
    data_folder,
    flat_to,
    gradient_buckets,
    sample_profiles,
    step_spread,
)
from model_layers import MODELS, Layer
from srifty.records.files import to_json

has_data = pytest.mark.skipif(
    not (data_folder() / "ddp_step_times").is_dir(),
    reason="the folder of measured step times is not here; set SRIFTY_DATA to it",
)


def bucket_bytes_by_torch(layers):
    """What DDP itself makes of the gradients in the order of their arrival."""
    torch = pytest.importorskip("torch")
    distributed = pytest.importorskip("torch.distributed")
    counts = [count for layer in reversed(layers) for count in reversed(layer.parameter_counts)]
    gradients = [torch.empty(count, device="meta") for count in counts]
    groups, _ = distributed._compute_bucket_assignment_by_size(gradients, list(BUCKET_LIMITS_BYTES))
    return [sum(4 * counts[index] for index in group) for group in groups]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_buckets_are_those_that_ddp_makes(name):
    layers = MODELS[name]()
    assert [b.gradient_bytes for b in gradient_buckets(layers)] == bucket_bytes_by_torch(layers)


def test_buckets_are_those_that_ddp_makes_of_any_layers():
    random_source = np.random.default_rng(7)
    for _ in range(50):
        layers = tuple(
            Layer(f"layer{index}", (int(10 ** random_source.uniform(0, 7.3)), 512), multiply_adds=1)
            for index in range(random_source.integers(1, 41))
        )
        assert [b.gradient_bytes for b in gradient_buckets(layers)] == bucket_bytes_by_torch(layers)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_buckets_are_ready_one_after_another_and_the_last_at_the_end(name):
    ready_at = [bucket.ready_at for bucket in gradient_buckets(MODELS[name]())]
    assert ready_at == sorted(ready_at)
    assert ready_at[-1] == 1


def test_the_spread_is_recovered_from_repeated_readings():
    random_source = np.random.default_rng(3)
    rows = [
        {
            "model": "bert",
            "num_replicas": "1",
            "step_time_s_run1": str(math.exp(random_source.normal(0, 0.02))),
            "step_time_s_run2": str(math.exp(random_source.normal(0, 0.02))),
        }
        for _ in range(5000)
    ]
    assert step_spread(rows) == pytest.approx(0.02, rel=0.05)


def test_steps_are_flat_up_to_the_batch_where_they_begin_to_grow():
    assert flat_to({8: 0.100, 16: 0.101, 32: 0.104, 64: 0.200}) == 32
    assert flat_to({8: 0.100, 16: 0.190}) == 8
    assert flat_to({8: 0.100, 16: 0.099}) == 16


@has_data
def test_the_shipped_files_are_what_the_tool_makes():
    made = {name: to_json(profile) for name, profile in sample_profiles(data_folder()).items()}
    shipped = {path.name: path.read_text(encoding="utf-8") for path in SHIPPED.glob("*.profile.json")}
    assert made == shipped


@has_data
def test_the_phases_of_a_profile_add_up_to_the_measured_step():
    with (data_folder() / "ddp_step_times" / "step_times.csv").open(newline="") as file:
        step_s = {
            (row["model"], row["session"], float(row["batch_per_gpu_samples"])): float(row["step_time_s"])
            for row in csv.DictReader(file)
            if row["num_replicas"] == "1"
        }
    profiles = sample_profiles(data_folder())
    for job in JOBS:
        for gpu in GPUS:
            for timing in profiles[f"{job.name}.{gpu.name}.profile.json"].timings:
                phases_s = timing.forward_s.p50 + timing.backward_s.p50 + timing.optimizer_s.p50
                assert phases_s == pytest.approx(step_s[job.row_model, gpu.session, timing.batch], abs=3e-8)
