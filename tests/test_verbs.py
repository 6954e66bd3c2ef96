"""The Python face: whatever is given is used rightly or refused as InvalidInput."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

import srifty

PROFILES = srifty.sample_profiles("resnet50")


@pytest.mark.parametrize("samples", [1_000_000, 1e6, np.int64(1_000_000), np.float64(1e6)])
def test_any_whole_number_is_a_number_and_the_plan_can_be_kept(samples, tmp_path):
    plan = srifty.plan(PROFILES, samples=samples, batch=np.int32(256))
    srifty.write(plan, tmp_path / "plan.json")
    assert srifty.read(tmp_path / "plan.json") == plan
    assert plan.job.sample_count == 1_000_000


@pytest.mark.parametrize(
    "samples", ["1M", 1.5, True, -1, 0, float("nan"), float("inf"), [1], Decimal("1.5"), 10**30]
)
def test_what_is_no_number_of_samples_is_refused(samples):
    with pytest.raises(srifty.InvalidInput, match="samples is "):
        srifty.plan(PROFILES, samples=samples, batch=256)
    with pytest.raises(srifty.InvalidInput, match="samples is "):
        srifty.predict(PROFILES, "1xg4dn.xlarge", samples=samples, batch=64)


@pytest.mark.parametrize("batch", ["8", 2.5, -8, 0, True])
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(srifty.InvalidInput, match="batch is "):
        srifty.predict(PROFILES, "1xg4dn.xlarge", batch=batch)


def test_one_name_or_several_or_none():
    one = srifty.plan(PROFILES, samples=10**6, batch=256, clouds="aws")
    assert one == srifty.plan(PROFILES, samples=10**6, batch=256, clouds=["aws"])
    assert srifty.plan(PROFILES, samples=10**6, batch=256, clouds=None).cluster


@pytest.mark.parametrize(
    "limits",
    [
        {"deadline_s": -1},
        {"deadline_s": "1h"},
        {"budget_usd": 0},
        {"goal": "best"},
        {"markets": ["spott"]},
        {"max_nodes": 0},
    ],
)
def test_limits_that_are_none_are_refused(limits):
    with pytest.raises(srifty.InvalidInput):
        srifty.plan(PROFILES, samples=10**6, batch=256, **limits)


def test_a_cluster_given_whole_must_take_the_batch_that_is_asked():
    (found,) = srifty.predict(PROFILES, "1xg4dn.xlarge", batch=64)
    cluster = found.iteration.cluster
    assert srifty.predict(PROFILES, cluster)[0] == found
    with pytest.raises(srifty.InvalidInput, match="batch 32 is asked, but the cluster given takes 64"):
        srifty.predict(PROFILES, cluster, batch=32)


def test_many_clusters_in_one_call_keep_their_order():
    names = [f"{n}xg4dn.xlarge" for n in (4, 1, 2)]
    found = srifty.predict(PROFILES, names, batch=64)
    assert [e.iteration.cluster.node_count for e in found] == [4, 1, 2]
    assert srifty.predict(PROFILES, []) == ()


def test_the_job_s_own_length_counts():
    job = PROFILES[0].job.model_copy(update={"sample_count": 64_000, "global_batch": 64})
    own = [profile.model_copy(update={"job": job}) for profile in PROFILES]
    assert srifty.predict(own, "1xg4dn.xlarge")[0].step_count == 1000
    assert srifty.plan(own).job.sample_count == 64_000


def test_profiles_that_disagree_are_not_guessed_between():
    first = PROFILES[0].model_copy(update={"job": PROFILES[0].job.model_copy(update={"global_batch": 32})})
    with pytest.raises(srifty.InvalidInput, match="disagree on the global batch"):
        srifty.plan([first, *PROFILES[1:]], samples=10**6)


def test_a_batch_larger_than_the_job_is_refused():
    with pytest.raises(srifty.InvalidInput, match="larger than the 1000 samples"):
        srifty.plan(PROFILES, samples=1000, batch=2048)


def test_a_record_of_offers_serves_as_a_catalog(tmp_path):
    aws = srifty.offers(clouds="aws", gpus="T4", markets="on-demand")
    srifty.write(aws, tmp_path / "aws.json")
    plan = srifty.plan(PROFILES, samples=10**6, batch=256, catalog=tmp_path / "aws.json")
    assert plan == srifty.plan(PROFILES, samples=10**6, batch=256, catalog=aws)
    assert plan.cluster.groups[0].offer.gpu == "T4"
