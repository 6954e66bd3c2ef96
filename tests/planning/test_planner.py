"""The planner finds what brute force finds, says why, and says what stands in the way."""

from __future__ import annotations

from datetime import date
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import make_offer, make_profile

from srifty.errors import InvalidInput, NoFeasiblePlan, NotMeasured
from srifty.planning.planner import plan
from srifty.predicting.predictor import Predictor
from srifty.records import Catalog, Cluster, Constraints, Goal, Job, Market, NodeGroup
from srifty.records.cluster_table import ClusterTable

PROFILES = (make_profile("T4", 0.02, noise=0.02), make_profile("V100", 0.005, noise=0.01))
PREDICTOR = Predictor(PROFILES)
JOB = Job(name="job", global_batch=64, sample_count=1_000_000)


def catalog(*offers):
    return Catalog(offers=offers, taken_at=date(2026, 11, 29))


def brute_force(job, offers, constraints):
    """Every uniform cluster one by one, each estimated alone: (objective, other) of the best, or None."""
    best = None
    for offer in offers:
        batch_range = PREDICTOR.batch_range(offer)
        if offer.market not in constraints.markets or batch_range is None:
            continue
        most = min(constraints.max_nodes, offer.node_limit or constraints.max_nodes)
        for nodes, batch in product(range(1, most + 1), range(batch_range[0], batch_range[1] + 1)):
            micro, left = divmod(job.global_batch, nodes * offer.gpu_count * batch)
            gpus = nodes * offer.gpu_count
            if left or not micro or (nodes > 1 and offer.network_bytes_per_s is None):
                continue
            if constraints.max_gpus is not None and gpus > constraints.max_gpus:
                continue
            group = NodeGroup(offer=offer, node_count=nodes, batch_per_gpu=batch, accumulation_count=micro)
            table = PREDICTOR.estimate(ClusterTable.of([Cluster(groups=(group,))]), job)
            duration, cost = table.duration_s, table.cost_usd
            if (
                constraints.deadline_s
                and duration.quantile(constraints.confidence)[0] > constraints.deadline_s
            ):
                continue
            if constraints.budget_usd and cost.quantile(constraints.confidence)[0] > constraints.budget_usd:
                continue
            figures = [float(cost.p50[0]), float(duration.p50[0])]
            if constraints.goal is Goal.FASTEST:
                figures.reverse()
            best = min(best, figures) if best else figures
    return best


offers = st.builds(
    make_offer,
    region=st.sampled_from(["r1", "r2"]),
    instance_type=st.sampled_from(["a", "b", "c"]),
    gpu=st.sampled_from(["T4", "V100", "K80"]),
    gpu_count=st.sampled_from([1, 2, 4]),
    network_bytes_per_s=st.sampled_from([None, 6e8, 1.25e9, 12.5e9]),
    market=st.sampled_from(Market),
    usd_per_hour=st.floats(0.1, 10),
    node_limit=st.sampled_from([None, 1, 3]),
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(offers, min_size=1, max_size=6),
    st.sampled_from([1, 12, 64, 96, 100]),
    st.sampled_from(Goal),
    st.none() | st.floats(100, 20_000),
    st.none() | st.floats(0.5, 50),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.integers(1, 6),
    st.none() | st.integers(1, 8),
)
def test_the_plan_is_what_brute_force_finds(
    rented, batch, goal, deadline_s, budget_usd, confidence, nodes, gpus
):
    constraints = Constraints(
        goal=goal,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        confidence=confidence,
        max_nodes=nodes,
        max_gpus=gpus,
    )
    job = JOB.model_copy(update={"global_batch": batch})
    best = brute_force(job, rented, constraints)
    try:
        found = plan(job, catalog(*rented), constraints, PREDICTOR)
    except (NoFeasiblePlan, NotMeasured, InvalidInput):
        assert best is None
        return
    figures = [found.estimate.cost_usd.p50, found.estimate.duration_s.p50]
    if goal is Goal.FASTEST:
        figures.reverse()
    assert best is not None
    assert figures == pytest.approx(best, rel=1e-12)
    assert found.gap == 0
    assert found.bound == pytest.approx(best[0])
    assert found.cluster.global_batch == batch
    for estimate in (found.estimate, *found.runners_up):
        assert deadline_s is None or estimate.duration_s.quantile(confidence) <= deadline_s * (1 + 1e-9)
        assert budget_usd is None or estimate.cost_usd.quantile(confidence) <= budget_usd * (1 + 1e-9)


def test_runners_up_are_the_best_of_each_other_type_in_order():
    rented = [
        make_offer(instance_type=name, usd_per_hour=price)
        for name, price in zip("abc", (1, 2, 3), strict=True)
    ]
    found = plan(JOB, catalog(*rented), Constraints(), PREDICTOR)
    chosen = [e.iteration.cluster.groups[0].offer.instance_type for e in (found.estimate, *found.runners_up)]
    assert chosen == ["a", "b", "c"]
    costs = [e.cost_usd.p50 for e in (found.estimate, *found.runners_up)]
    assert costs == sorted(costs)
    assert "against" in found.reason


def test_a_cheaper_place_of_the_same_machine_is_taken_and_the_other_counted():
    rented = [
        make_offer(region=region, usd_per_hour=price) for region, price in (("dear", 2.0), ("cheap", 1.0))
    ]
    found = plan(JOB, catalog(*rented), Constraints(), PREDICTOR)
    assert found.cluster.groups[0].offer.region == "cheap"
    assert [d.count for d in found.dropped if "costs no more elsewhere" in d.why] == [1]


def test_a_cheap_place_with_few_machines_does_not_hide_a_dear_one_with_many():
    rented = [
        make_offer(region="few", usd_per_hour=1.0, node_limit=1),
        make_offer(region="many", usd_per_hour=1.2),
    ]
    one = plan(JOB, catalog(*rented), Constraints(), PREDICTOR).estimate
    tight = Constraints(deadline_s=one.duration_s.p90 * 0.7)
    assert plan(JOB, catalog(*rented), tight, PREDICTOR).cluster.groups[0].offer.region == "many"


def test_the_same_question_has_the_same_answer_whatever_the_order_of_offers():
    rented = [make_offer(instance_type=name, region=region) for name in "abcd" for region in ("r1", "r2")]
    forward = plan(JOB, catalog(*rented), Constraints(), PREDICTOR)
    backward = plan(JOB, catalog(*reversed(rented)), Constraints(), PREDICTOR)
    assert forward == backward
    assert forward.cluster.groups[0].offer.instance_type == "a"


def test_a_deadline_that_nothing_meets_gives_the_nearest_plan_and_the_limit():
    with pytest.raises(NoFeasiblePlan, match="--within 10 s") as caught:
        plan(JOB, catalog(make_offer()), Constraints(deadline_s=10, max_nodes=4), PREDICTOR)
    nearest = caught.value.nearest
    assert caught.value.broken_limit == "within"
    assert nearest.cluster.node_count == 4  # the fastest misses by least
    assert "keeps to the limits" in nearest.reason
    assert "misses them by least" in nearest.reason
    assert nearest.estimate.chance_in_time == pytest.approx(0, abs=1e-6)
    assert len(str(caught.value).splitlines()) == 2


def test_of_two_limits_the_one_that_is_missed_by_more_is_named():
    free = plan(JOB, catalog(make_offer()), Constraints(), PREDICTOR).estimate
    limits = Constraints(deadline_s=free.duration_s.p90 * 2, budget_usd=free.cost_usd.p50 / 5)
    with pytest.raises(NoFeasiblePlan, match="both --within .* and --budget") as caught:
        plan(JOB, catalog(make_offer()), limits, PREDICTOR)
    assert caught.value.broken_limit == "budget"


def test_the_fastest_within_a_budget_uses_more_machines_than_the_cheapest():
    cheapest = plan(JOB, catalog(make_offer()), Constraints(), PREDICTOR)
    rich = Constraints(goal=Goal.FASTEST, budget_usd=cheapest.estimate.cost_usd.p90 * 3)
    fastest = plan(JOB, catalog(make_offer()), rich, PREDICTOR)
    assert fastest.estimate.duration_s.p50 < cheapest.estimate.duration_s.p50
    assert fastest.cluster.node_count > cheapest.cluster.node_count
    assert fastest.estimate.chance_in_budget >= 0.9


def test_a_batch_that_no_cluster_can_share_is_explained():
    wide = make_offer(gpu_count=8)
    with pytest.raises(
        NoFeasiblePlan, match=r"(?s)global batch of 7 samples.*more GPUs a machine than 7.*more divisors"
    ):
        plan(JOB.model_copy(update={"global_batch": 7}), catalog(wide), Constraints(), PREDICTOR)


def test_a_gpu_without_a_profile_is_named():
    with pytest.raises(NotMeasured, match="offered: K80"):
        plan(JOB, catalog(make_offer(gpu="K80")), Constraints(), PREDICTOR)


def test_batch_normalisation_never_gets_a_batch_of_one():
    predictor = Predictor((make_profile(min_batch=2),))
    job = JOB.model_copy(update={"global_batch": 16})
    found = plan(job, catalog(make_offer()), Constraints(goal=Goal.FASTEST), predictor)
    assert found.cluster.groups[0].batch_per_gpu >= 2


def test_an_absurd_number_of_nodes_is_searched_in_bounded_time():
    job = JOB.model_copy(update={"global_batch": 2_147_483_629})  # a prime
    found = plan(
        job, catalog(make_offer()), Constraints(max_nodes=10**9), Predictor((make_profile(min_batch=1),))
    )
    assert found.cluster.node_count == 1
    assert found.cluster.groups[0].accumulation_count == 2_147_483_629


def timing(batch, seconds):
    spread = {"p10": seconds, "p50": seconds, "p90": seconds, "mean": seconds, "sample_count": 9}
    nothing = dict.fromkeys(("p10", "p50", "p90", "mean"), 0.0) | {"sample_count": 9}
    return {"batch": batch, "forward_s": spread, "backward_s": spread, "optimizer_s": nothing}


def test_equal_costs_are_not_decided_by_the_last_bit():
    # 64 micro-steps of 1 and 1 of 64 cost the same here but for rounding; the fewest are taken.
    batches = (1, 2, 4, 8, 16, 32, 64)
    flat = make_profile(batches=batches, timings=[timing(b, 0.1 * b) for b in batches])
    found = plan(JOB, catalog(make_offer()), Constraints(max_nodes=1), Predictor((flat,)))
    assert found.cluster.groups[0].accumulation_count == 1


def test_a_plan_gains_nothing_from_batches_that_were_not_measured():
    """From 32 to 64 time grows more than in proportion; carried on below, it would make tiny batches free."""
    profile = make_profile(batches=(32, 64), timings=[timing(32, 0.015), timing(64, 0.045)])
    found = plan(JOB, catalog(make_offer()), Constraints(max_nodes=1), Predictor((profile,)))
    assert found.estimate.iteration.compute_s.p50 >= 2 * 0.03 * (1 - 1e-9)


def test_an_enormous_batch_is_searched_in_bounded_time():
    job = JOB.model_copy(update={"global_batch": 2**31})
    found = plan(job, catalog(make_offer()), Constraints(), PREDICTOR)
    assert found.cluster.global_batch == 2**31
