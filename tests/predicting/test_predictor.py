"""The predictor: laws of its estimates, what it refuses, and a second opinion by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import make_offer, make_profile

from srifty.errors import InvalidInput, NotMeasured
from srifty.predicting.iteration_trace import no_work_s
from srifty.predicting.predictor import Predictor
from srifty.predicting.scenarios import JobOnGpu, MachineColumns, buckets_on, exchange_of, scenarios
from srifty.records import Cluster, Job, NodeGroup
from srifty.records.cluster_table import ClusterTable

JOB = Job(name="job", sample_count=100_000)


def cluster(node_count=1, batch=8, accumulation=1, **offer):
    group = NodeGroup(
        offer=make_offer(**offer), node_count=node_count, batch_per_gpu=batch, accumulation_count=accumulation
    )
    return Cluster(groups=(group,))


def estimate(*clusters, profiles=None, job=JOB):
    table = Predictor(tuple(profiles or (make_profile(),))).estimate(ClusterTable.of(clusters), job)
    return [table.job(row) for row in range(len(table))]


def test_one_gpu_without_noise_takes_what_was_measured():
    (found,) = estimate(cluster(batch=16))
    assert found.iteration.duration_s.p50 == pytest.approx(0.02 + 0.16)
    assert found.iteration.exposed_allreduce_s.p90 == 0
    assert found.step_count == 6250
    assert found.duration_s.p50 == pytest.approx(6250 * 0.18)
    assert found.cost_usd.p50 == pytest.approx(6250 * 0.18 / 3600)
    assert found.samples_per_s.p50 == pytest.approx(16 / 0.18)


def test_the_parts_of_a_step_add_up():
    for found in estimate(cluster(4), cluster(2, 64), cluster(8, 4, 4), profiles=[make_profile(noise=0.1)]):
        step = found.iteration
        parts = step.compute_s.p50 + step.exposed_allreduce_s.p50 + step.waiting_s.p50
        assert parts == pytest.approx(step.duration_s.p50)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 16),
    st.integers(2, 64),
    st.integers(1, 4),
    st.sampled_from([1, 2, 8]),
    st.floats(1e8, 1e11),
)
def test_estimates_are_in_order_and_positive(node_count, batch, accumulation, gpu_count, network):
    one = cluster(node_count, batch, accumulation, gpu_count=gpu_count, network_bytes_per_s=network)
    (found,) = estimate(one, profiles=[make_profile(noise=0.05)])
    step = found.iteration
    assert 0 < step.duration_s.p10 <= step.duration_s.p50 <= step.duration_s.p90
    assert step.duration_s.p10 <= step.duration_s.mean
    assert 0 <= step.exposed_allreduce_s.p10 <= step.exposed_allreduce_s.p90
    assert step.duration_s.p50 >= step.compute_s.p50 + step.exposed_allreduce_s.p50


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 16), st.integers(2, 64), st.floats(1e8, 1e10), st.floats(1, 10))
def test_a_faster_network_never_slows_an_iteration(node_count, batch, network, factor):
    slow, fast = estimate(
        cluster(node_count, batch, network_bytes_per_s=network),
        cluster(node_count, batch, network_bytes_per_s=network * factor),
    )
    assert fast.iteration.duration_s.p50 <= slow.iteration.duration_s.p50 * (1 + 1e-12)


def test_accumulation_exchanges_once_for_many_micro_steps():
    once, four_times = estimate(cluster(2, 8, 1), cluster(2, 8, 4))
    exposed_once = once.iteration.exposed_allreduce_s.p50
    assert exposed_once > 0
    assert four_times.iteration.exposed_allreduce_s.p50 == pytest.approx(exposed_once)
    forward_and_backward = 0.9 * (0.02 + 0.08)
    assert four_times.iteration.compute_s.p50 == pytest.approx(4 * forward_and_backward + 0.1 * (0.02 + 0.08))


def test_more_ranks_wait_longer_for_the_slowest():
    waits = [
        e.iteration.waiting_s.p50
        for e in estimate(*map(cluster, (1, 2, 8, 16)), profiles=[make_profile(noise=0.1)])
    ]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] > waits[1] > 0


def test_the_band_holds_what_random_doubts_give():
    """The five-point rule against 20,000 random draws of the same two doubts, exchange partly exposed."""
    predictor = Predictor((make_profile(),))
    one = cluster(4, 16, network_bytes_per_s=4e8)
    table = ClusterTable.of([one])
    found = predictor.estimate(table, JOB).iteration(0)
    machines = MachineColumns.of(table.offers, predictor.profiles)
    told = scenarios(table, np.array([0]), machines, [JobOnGpu(predictor.profiles[0], predictor.compute[0])])
    compute_sd = np.log(told.parts.compute_s[2, 0] / told.parts.compute_s[0, 0]) / 1.2816
    exchange = exchange_of(table, np.array([0]), machines, 1)
    rng = np.random.default_rng(2)
    slower, longer = (
        np.exp(rng.normal(0, compute_sd, 20_000)),
        np.exp(rng.normal(0, exchange.log_sd[0], 20_000)),
    )
    buckets = np.array([25 * 2**20] * 4, float)
    step = 0.02 + 0.16
    forward, backward = 0.3 * step, 0.6 * step
    ends = np.zeros(20_000)
    for k in range(4):
        ready = (forward + backward * (k + 1) / 4) * slower
        ends = np.maximum(ends, ready) + longer * (
            exchange.latency_s[0] + exchange.seconds_per_byte[0] * buckets[k]
        )
    drawn = np.maximum(ends, (forward + backward) * slower) + 0.1 * step * slower
    assert found.duration_s.p50 == pytest.approx(np.quantile(drawn, 0.5), rel=0.02)
    assert found.duration_s.p10 == pytest.approx(np.quantile(drawn, 0.1), rel=0.04)
    assert found.duration_s.p90 == pytest.approx(np.quantile(drawn, 0.9), rel=0.04)


def test_the_slowest_group_sets_the_pace_of_a_mixed_cluster():
    profiles = [make_profile("T4", 0.02), make_profile("V100", 0.005)]
    mixed = Cluster(
        groups=(
            NodeGroup(offer=make_offer(gpu="V100"), node_count=1, batch_per_gpu=16),
            NodeGroup(offer=make_offer(gpu="T4"), node_count=1, batch_per_gpu=16),
        )
    )
    alone = cluster(2, 16, gpu="T4")
    of_mixed, of_alone = estimate(mixed, alone, profiles=profiles)
    assert of_mixed.iteration.slowest_group == 1
    assert of_mixed.iteration.compute_s.p50 == pytest.approx(of_alone.iteration.compute_s.p50)


def test_rows_are_told_apart_whatever_stands_beside_them():
    profiles = [make_profile("T4", 0.02, noise=0.02), make_profile("V100", 0.005)]
    clusters = [cluster(n, b, gpu=gpu) for n in (1, 3) for b in (4, 32) for gpu in ("T4", "V100")]
    together = estimate(*clusters, profiles=profiles)
    assert together == [estimate(one, profiles=profiles)[0] for one in clusters]


def test_what_lies_outside_the_measured_range_is_said_and_doubted_more():
    below, inside = estimate(cluster(batch=2), cluster(batch=8), profiles=[make_profile(batches=(4, 8, 16))])
    assert inside.iteration.extrapolated == ()
    assert below.iteration.extrapolated == ("batch below 4, the smallest measured on T4",)
    relative = [e.duration_s.p90 / e.duration_s.p50 for e in (below, inside)]
    assert relative[0] > relative[1]


def test_another_memory_of_the_same_chip_is_said_and_doubted_more():
    double = cluster(batch=8, gpu_memory_bytes=32 * 2**30)
    other, same = estimate(double, cluster(batch=8))
    assert other.iteration.extrapolated == ("the T4 that was measured has 16 GiB of memory",)
    assert other.duration_s.p90 > same.duration_s.p90


def test_the_profile_with_the_nearest_memory_is_taken():
    small, large = make_profile(seconds_a_sample=0.02), make_profile(gpu_memory_bytes=32 * 2**30)
    (found,) = estimate(cluster(batch=16, gpu_memory_bytes=32 * 2**30), profiles=[small, large])
    assert found.iteration.duration_s.p50 == pytest.approx(0.18)


def test_a_smaller_memory_takes_a_smaller_batch():
    profile = make_profile(gpu_memory_bytes=32 * 2**30)
    predictor = Predictor((profile,))
    assert predictor.batch_range(make_offer(gpu_memory_bytes=32 * 2**30)) == (1, 64)
    assert predictor.batch_range(make_offer(gpu_memory_bytes=80 * 2**30)) == (1, 64)
    smallest, largest = predictor.batch_range(make_offer())
    assert 16 < largest < 32
    assert predictor.batch_range(make_offer(gpu_memory_bytes=2**30)) == (1, 0)
    assert predictor.batch_range(make_offer(gpu="A100")) is None


def test_a_driver_s_figure_for_the_same_memory_is_the_same_memory():
    predictor = Predictor((make_profile(gpu_memory_bytes=15_843_721_216),))  # what a T4 reports
    assert predictor.batch_range(make_offer()) == (1, 64)


def test_what_was_not_measured_is_refused():
    with pytest.raises(NotMeasured, match="GPU A100 was not measured .measured: T4."):
        estimate(cluster(gpu="A100"))
    with pytest.raises(
        NotMeasured, match="batch 128 a GPU is beyond the largest known to fit on T4 with 16 GiB, 64"
    ):
        estimate(cluster(batch=128))
    with pytest.raises(NotMeasured, match="network rate of small is not known"):
        estimate(cluster(2, network_bytes_per_s=None))
    assert estimate(cluster(1, network_bytes_per_s=None))


def test_profiles_must_be_of_one_job():
    with pytest.raises(InvalidInput, match="at least one profile"):
        Predictor(())
    with pytest.raises(InvalidInput, match="different jobs: a, b"):
        Predictor((make_profile(job=Job(name="a")), make_profile(job=Job(name="b"))))
    with pytest.raises(InvalidInput, match="different size"):
        Predictor((make_profile(), make_profile("V100", trainable_bytes=5)))


def test_a_job_without_a_length_is_refused():
    with pytest.raises(InvalidInput, match="has no length"):
        estimate(cluster(), job=Job(name="job"))


def test_steps_are_counted_exactly_and_rounded_up():
    assert estimate(cluster(batch=8), job=Job(name="job", sample_count=17))[0].step_count == 3
    big = 999_999_999_999_993
    assert estimate(cluster(batch=8), job=Job(name="job", sample_count=big))[0].step_count == big // 8 + 1
    assert estimate(cluster(batch=8), job=Job(name="job", step_count=7))[0].step_count == 7


def test_buckets_cut_otherwise_on_another_gpu_are_ready_by_their_bytes():
    one_bucket = make_profile("V100", buckets=({"gradient_bytes": 100 * 2**20, "ready_at": 1.0},))
    sizes, (first, second) = buckets_on([make_profile(), one_bucket])
    assert sizes.tolist() == [25 * 2**20] * 4
    assert first.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert second.tolist() == [1.0] * 4


def test_a_model_that_trains_nothing_exchanges_nothing():
    frozen = make_profile(buckets=(), trainable_bytes=0)
    (found,) = estimate(cluster(4), profiles=[frozen])
    assert found.iteration.exposed_allreduce_s.p90 == 0


def test_two_profiles_of_one_gpu_are_refused_since_one_would_win_silently():
    with pytest.raises(InvalidInput, match="two profiles of GPU 't4' with 16 GiB"):
        Predictor((make_profile(), make_profile("t4")))


def test_the_order_of_groups_and_profiles_changes_nothing():
    fine = make_profile("T4", 0.02)
    coarse = make_profile("V100", 0.005, buckets=({"gradient_bytes": 100 * 2**20, "ready_at": 1.0},))
    groups = [NodeGroup(offer=make_offer(gpu=gpu), node_count=1, batch_per_gpu=16) for gpu in ("T4", "V100")]
    steps = {
        round(estimate(Cluster(groups=tuple(order)), profiles=profiles)[0].duration_s.p50, 9)
        for order in (groups, groups[::-1])
        for profiles in ([fine, coarse], [coarse, fine])
    }
    assert len(steps) == 1


def test_a_step_that_varies_is_told_by_what_a_long_run_takes_and_doubted_more():
    quiet = make_profile()
    timings = [
        t.model_copy(
            update={
                "forward_s": t.forward_s.model_copy(
                    update={"p90": 4 * t.forward_s.p50, "mean": 2 * t.forward_s.p50}
                )
            }
        )
        for t in quiet.timings
    ]
    wild = quiet.model_copy(update={"timings": tuple(timings)})
    calm, restless = (estimate(cluster(batch=16), profiles=[p])[0] for p in (quiet, wild))
    assert restless.duration_s.p50 > 1.2 * calm.duration_s.p50
    assert restless.duration_s.p90 / restless.duration_s.p50 > calm.duration_s.p90 / calm.duration_s.p50
    assert any("vary by" in what for what in restless.iteration.extrapolated)


def test_an_exchange_in_each_micro_step_costs_its_exposed_part_each_time():
    wasteful = make_profile(exchanges_every_micro_step=True)
    once, each = (estimate(cluster(2, 8, 4), profiles=[p])[0] for p in (make_profile(), wasteful))
    assert each.iteration.exposed_allreduce_s.p50 == pytest.approx(4 * once.iteration.exposed_allreduce_s.p50)


def test_other_work_of_a_script_counts():
    busy = make_profile(
        timings=[t.model_copy(update={"other_s": t.optimizer_s}) for t in make_profile().timings]
    )
    plain, more = (estimate(cluster(batch=16), profiles=[p])[0] for p in (make_profile(), busy))
    assert more.iteration.compute_s.p50 == pytest.approx(plain.iteration.compute_s.p50 + 0.1 * 0.18)


def test_the_parts_of_an_exchange_tell_two_nodes_of_eight_from_eight_of_two():
    """astra-sim#150: with NVLink and a fabric the same 16 GPUs exchange unlike, and the estimate says where."""
    links = {"network_bytes_per_s": 50e9, "gpu_link": "nvlink", "gpu_link_bytes_per_s": 300e9}
    few, many = (e.iteration for e in estimate(*(cluster(n, 8, gpu_count=16 // n, **links) for n in (2, 8))))
    assert many.across_exchange_s.p50 > 1.7 * few.across_exchange_s.p50
    assert few.across_exchange_s.p50 > few.inside_exchange_s.p50 > 0
    alone, one_each, single = (
        e.iteration for e in estimate(*(cluster(n, gpu_count=g) for n, g in ((1, 4), (4, 1), (1, 1))))
    )
    assert alone.across_exchange_s is None is not alone.inside_exchange_s
    assert one_each.inside_exchange_s is None is not one_each.across_exchange_s
    assert single.inside_exchange_s is None is single.across_exchange_s


def test_a_fitted_slow_down_makes_the_compute_beside_an_exchange_longer():
    table = ClusterTable.of([cluster(4, 16)])
    plain, slowed = (
        Predictor((make_profile(),), each).estimate(table, JOB).iteration(0) for each in ({}, {"T4": 1.4})
    )
    assert plain.compute_s.p50 < slowed.compute_s.p50 < 1.4 * plain.compute_s.p50


mixed = Cluster(
    groups=(
        NodeGroup(offer=make_offer(gpu="V100"), node_count=1, batch_per_gpu=32, accumulation_count=3),
        NodeGroup(offer=make_offer(gpu="T4"), node_count=2, batch_per_gpu=16, accumulation_count=3),
    )
)


@pytest.mark.parametrize("slow_down", [1.0, 1.4])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(
    "on", [cluster(4, 16), cluster(2, 8, 4), cluster(1, 8, gpu_count=8), cluster(), mixed], ids=str
)
def test_a_trace_has_the_numbers_of_the_estimate(on, each, slow_down):
    profiles = tuple(
        make_profile(gpu, seconds, noise=0.05, exchanges_every_micro_step=each)
        for gpu, seconds in (("T4", 0.02), ("V100", 0.005))
    )
    predictor = Predictor(profiles, {"T4": slow_down})
    trace = predictor.trace(on)
    found = predictor.estimate(ClusterTable.of([on]), JOB).iteration(0)
    assert trace.step_s == pytest.approx(found.duration_s.p50, rel=1e-9)
    assert no_work_s(trace.spans) == pytest.approx(found.exposed_allreduce_s.p50, abs=1e-9)
    assert len(trace.rank_names) == len(on.groups)
