from importlib.resources import files

import pytest

from srifty.errors import InvalidInput
from srifty.predicting.samples import sample_names, sample_profiles

EVERY_PROFILE = [profile for name in sample_names() for profile in sample_profiles(name)]
every_profile = pytest.mark.parametrize(
    "profile", EVERY_PROFILE, ids=[f"{profile.job.name}.{profile.gpu}" for profile in EVERY_PROFILE]
)


def test_three_jobs_ship_each_on_three_gpus():
    assert sample_names() == ("bert-base", "resnet18", "resnet50")
    for name in sample_names():
        assert [profile.gpu for profile in sample_profiles(name)] == ["A100", "T4", "V100"]
        assert {profile.job.name for profile in sample_profiles(name)} == {name}


@pytest.mark.parametrize("name", ["resnet", "resnet50.T4", "", "../resnet50"])
def test_an_unknown_sample_is_refused_with_the_known_ones(name):
    with pytest.raises(InvalidInput, match="known are bert-base, resnet18, resnet50"):
        sample_profiles(name)


@every_profile
def test_buckets_hold_every_gradient_once(profile):
    assert sum(bucket.gradient_bytes for bucket in profile.buckets) == profile.trainable_bytes


@every_profile
def test_a_sample_says_what_it_assumes_and_where_it_comes_from(profile):
    assert len(profile.assumptions) >= 6
    assert all(said[0].isupper() or said.startswith(profile.job.name) for said in profile.assumptions)
    assert all(said.endswith(".") and len(said) <= 220 for said in profile.assumptions)
    assert any("petuum/adaptdl" in said or "siasosp23" in said for said in profile.assumptions)


@every_profile
def test_a_sample_knows_only_batches_that_were_measured(profile):
    assert profile.max_batch == profile.timings[-1].batch
    assert len(profile.timings) >= 5


@every_profile
def test_the_optimizer_is_a_small_part_of_the_step(profile):
    for timing in profile.timings:
        assert 0 < timing.optimizer_s.p50 < 0.05 * (timing.forward_s.p50 + timing.backward_s.p50)


def test_all_gpus_exchange_the_same_gradients():
    for name in sample_names():
        assert len({profile.buckets for profile in sample_profiles(name)}) == 1


def test_the_samples_stay_small():
    folder = files("srifty.predicting") / "data"
    sizes_bytes = [
        len(entry.read_bytes()) for entry in folder.iterdir() if entry.name.endswith(".profile.json")
    ]
    assert len(sizes_bytes) == 9
    assert sum(sizes_bytes) < 80_000
