"""What went wrong for users of other tools that an estimate must get right; each test names the public report."""

from __future__ import annotations

import pytest
from tests.conftest import make_offer, make_profile

from srifty.predicting.gpu_scaling import with_estimates
from srifty.predicting.memory_model import MEMORY_SHARE, RUNTIME_BYTES
from srifty.predicting.predictor import Predictor
from srifty.records import Cluster, Job, NodeGroup, Spread
from srifty.records.cluster_table import ClusterTable

JOB = Job(name="job", sample_count=100_000)
GIB = 2**30


def cluster(node_count=1, batch=8, accumulation=1, **offer):
    group = NodeGroup(
        offer=make_offer(**offer), node_count=node_count, batch_per_gpu=batch, accumulation_count=accumulation
    )
    return Cluster(groups=(group,))


def estimate(profile, *clusters):
    table = Predictor((profile,)).estimate(ClusterTable.of(clusters), JOB)
    return [table.job(row).iteration for row in range(len(table))]


@pytest.mark.parametrize("micro_steps", [1, 2, 8])
def test_a_forgotten_no_sync_costs_an_exposed_exchange_for_each_micro_step_but_the_last(micro_steps):
    """pytorch#43201: gradients were exchanged in every micro-step of an accumulating loop, and nobody saw it."""
    asked = cluster(4, 8, micro_steps)
    (once,) = estimate(make_profile(), asked)
    (each,) = estimate(make_profile(exchanges_every_micro_step=True), asked)
    waste = each.duration_s.p50 - once.duration_s.p50
    assert waste == pytest.approx((micro_steps - 1) * once.exposed_allreduce_s.p50)
    assert (waste > 0.01) == (micro_steps > 1)
    assert each.compute_s.p50 == pytest.approx(once.compute_s.p50)


def test_a_forgotten_no_sync_costs_nothing_where_nothing_is_exchanged():
    """pytorch#43201: one GPU has nobody to exchange with."""
    asked = cluster(1, 8, 4)
    (once,) = estimate(make_profile(), asked)
    (each,) = estimate(make_profile(exchanges_every_micro_step=True), asked)
    assert each.duration_s.model_dump() == pytest.approx(once.duration_s.model_dump(), rel=1e-12)


def with_peaks(gpu, *, fixed_gib, gib_a_sample, memory_gib, **fields):
    profile = make_profile(gpu, gpu_memory_bytes=memory_gib * GIB, **fields)
    timings = tuple(
        timing.model_copy(
            update={"peak_memory_bytes": round((fixed_gib + gib_a_sample * timing.batch) * GIB)}
        )
        for timing in profile.timings
    )
    return profile.model_copy(update={"timings": timings})


def test_each_kind_of_gpu_has_a_limit_of_its_own_from_memory_that_was_measured_elsewhere():
    """pytorch-lightning#20994: no limit was searched where the cluster has machines of several kinds."""
    profile = with_peaks("T4", fixed_gib=1, gib_a_sample=0.2, memory_gib=16)  # 64 samples take 13.8 GiB
    offers = {
        gpu: make_offer(gpu=gpu, gpu_memory_bytes=memory_gib * GIB)
        for gpu, memory_gib in (("T4", 16), ("V100", 32), ("K80", 12))
    }
    predictor = Predictor(with_estimates([profile], offers.values()))
    ranges = {gpu: predictor.batch_range(offer) for gpu, offer in offers.items()}
    assert ranges["T4"] == (1, 64)
    for gpu, memory_gib in (("V100", 32), ("K80", 12)):
        fits = (MEMORY_SHARE * memory_gib - RUNTIME_BYTES / GIB - 1) / 0.2
        assert ranges[gpu] == (1, int(fits)), gpu
    for gpu in ("V100", "K80"):
        asked = Cluster(groups=(NodeGroup(offer=offers[gpu], node_count=1, batch_per_gpu=8),))
        (found,) = (predictor.estimate(ClusterTable.of([asked]), JOB).job(0).iteration,)
        assert f"times on {gpu} are estimated from T4, not measured" in found.extrapolated
        assert any("none was measured" in assumption for assumption in predictor.assumptions(asked))


def data_bound(wait_s, **fields):
    profile = make_profile(**fields)
    timings = tuple(t.model_copy(update={"data_wait_s": Spread.exactly(wait_s)}) for t in profile.timings)
    return profile.model_copy(update={"timings": timings})


def test_the_wait_for_the_loader_is_told_apart_and_no_faster_gpu_shortens_it():
    """pytorch/examples#387: 60 % of the step was the loader; a GPU of ten times the speed gains little."""
    slow = data_bound(0.15, batches=(8, 16), seconds_a_sample=0.01)
    fast = data_bound(0.15, batches=(8, 16), seconds_a_sample=0.001, constant_s=0.002)
    (on_slow,), (on_fast,) = (estimate(profile, cluster(batch=8)) for profile in (slow, fast))
    assert on_slow.waiting_s.p50 == pytest.approx(0.15)
    assert on_slow.compute_s.p50 == pytest.approx(0.1)
    assert on_slow.duration_s.p50 / on_fast.duration_s.p50 < 0.25 / 0.15
    (said,) = [what for what in on_slow.extrapolated if "loader" in what]
    assert said.startswith("the loader on these machines; up to 60 % of a step on T4 was the wait for it")


@pytest.mark.parametrize(("gpu_count", "told"), [(1, "32 vCPUs a GPU"), (8, "4 vCPUs a GPU")])
def test_a_plan_that_waits_for_data_says_how_many_vcpus_load_for_each_gpu(gpu_count, told):
    """pytorch/examples#387: what loads are the machine's CPUs, which its GPUs share."""
    asked = cluster(batch=8, gpu_count=gpu_count, vcpu_count=32)
    (said,) = [each for each in Predictor((data_bound(0.15),)).assumptions(asked) if "vCPU" in each]
    assert f"small has {told}" in said
    assert "up to 79 % of a step" in said  # of the smallest batch, which takes 40 ms besides


def test_where_steps_hardly_wait_for_data_nothing_is_said():
    """pytorch/examples#387: the wait is told where it matters."""
    quiet = data_bound(0.005)
    assert not any("vCPU" in each for each in Predictor((quiet,)).assumptions(cluster()))
    (found,) = estimate(quiet, cluster())
    assert found.extrapolated == ()
