"""Estimates and plans go by measured exchanges where there are some, and say so."""

from __future__ import annotations

import time
from datetime import date

import numpy as np
import pytest
from tests.predicting.exchange_kit import AT, session

import srifty
from srifty.predicting.predictor import Predictor
from srifty.records import Catalog, Cluster, Job, NodeGroup
from srifty.records.cluster_table import ClusterTable
from srifty.records.files import write
from srifty.records.iteration_span import Lane

pytest.importorskip("xgboost", reason="fitting needs xgboost-cpu")
from srifty.predicting.exchange_fit import fit_exchange

JOB = Job(name="job", global_batch=64, sample_count=6400)


@pytest.fixture(scope="module")
def model():
    """Machines "small" that exchange at 0.2 GB/s, a sixth of what they are sold with."""
    return fit_exchange([session("small", rate=0.2e9)], (), AT)


def cluster(*groups):
    return Cluster(groups=tuple(NodeGroup(offer=o, node_count=n, batch_per_gpu=16) for o, n in groups))


def exposed_s(predictor, *clusters):
    table = predictor.estimate(ClusterTable.of(clusters), JOB)
    return [table.iteration(row) for row in range(len(clusters))]


def test_a_measured_machine_goes_by_what_was_measured(make_offer, make_profile, model):
    profile = make_profile(seconds_a_sample=1e-5, constant_s=1e-4)
    asked = cluster((make_offer(), 4))
    (by_formula,) = exposed_s(Predictor((profile,)), asked)
    (measured,) = exposed_s(Predictor((profile,), exchange_model=model), asked)
    moved = 1.5 * profile.trainable_bytes
    assert by_formula.exposed_allreduce_s.p50 == pytest.approx(moved / (0.85 * 1.25e9), rel=0.05)
    assert measured.exposed_allreduce_s.p50 == pytest.approx(moved / 0.2e9, rel=0.06)
    band = measured.exposed_allreduce_s
    assert band.p90 / band.p10 < by_formula.exposed_allreduce_s.p90 / by_formula.exposed_allreduce_s.p10


def test_the_estimate_says_which_it_goes_by(make_offer, make_profile, model):
    predictor = Predictor((make_profile(),), exchange_model=model)
    measured = predictor.assumptions(cluster((make_offer(), 4)))
    other = predictor.assumptions(cluster((make_offer(instance_type="other"), 4)))
    assert any("follow from 250 measured exchanges (nccl 2.21.5, 1 session)" in said for said in measured)
    assert not any("catalogue's sustained" in said for said in measured)
    assert any("catalogue's sustained network rates" in said for said in other)


def test_other_machines_and_one_node_go_by_the_formula_as_before(make_offer, make_profile, model):
    offers = (make_offer(instance_type="other"), make_offer(gpu_count=4, instance_type="small"))
    asked = [cluster((offers[0], 4)), cluster((offers[1], 1))]
    without = exposed_s(Predictor((make_profile(),)), *asked)
    assert exposed_s(Predictor((make_profile(),), exchange_model=model), *asked) == without


def test_more_nodes_than_were_measured_are_said(make_offer, make_profile, model):
    (told,) = exposed_s(Predictor((make_profile(),), exchange_model=model), cluster((make_offer(), 16)))
    assert "exchange on small: 16 nodes, measured up to 8" in told.extrapolated


def test_unlike_machines_measured_alone_are_told_by_the_slower(make_offer, make_profile):
    pair = fit_exchange([session("small", rate=0.9e9), session("slow", rate=0.3e9)], (), AT)
    profile = make_profile(seconds_a_sample=1e-5, constant_s=1e-4)
    slow, small = make_offer(instance_type="slow"), make_offer()
    both, alone = exposed_s(
        Predictor((profile,), exchange_model=pair), cluster((small, 2), (slow, 2)), cluster((slow, 4))
    )
    assert both.exposed_allreduce_s.p50 == pytest.approx(alone.exposed_allreduce_s.p50, rel=1e-6)
    assert any("each was measured alone" in what for what in both.extrapolated)
    together = fit_exchange([session("small", rate=0.9e9), session("slow", rate=0.3e9)], (), AT)
    assert together == pair.model_copy(update={"fitted_at": together.fitted_at})


def test_a_cluster_of_unlike_gpus_carries_the_caveat_and_a_way_to_test_it(make_offer, make_profile):
    """Some unlike GPUs hang in NCCL (NVIDIA/nccl issue 794)."""
    predictor = Predictor((make_profile(), make_profile("V100")))
    v100 = make_offer(gpu="V100", instance_type="v")
    said = predictor.assumptions(cluster((make_offer(), 1), (v100, 1)))
    assert any("hang between some unlike GPUs" in one and "srifty probe" in one for one in said)
    assert not any("unlike GPUs" in one for one in predictor.assumptions(cluster((make_offer(), 2))))


def test_100_000_clusters_are_told_at_once(make_offer, make_profile, model):
    offers = tuple(make_offer(instance_type=f"kind{i}" if i else "small") for i in range(10))
    count = 100_000
    table = ClusterTable(
        offers,
        (np.arange(count) % 10)[:, None],
        (1 + np.arange(count) // 10 % 16)[:, None],
        (1 + np.arange(count) % 60)[:, None],
        np.ones(count, np.int64),
    )
    predictor = Predictor((make_profile(),), exchange_model=model)
    start = time.perf_counter()
    told = predictor.estimate(table, Job(name="job", step_count=10))
    assert np.isfinite(told.step_s.p90).all()
    assert time.perf_counter() - start < 10  # 0.5 s on a quiet machine


def test_verbs_take_the_model_s_file(make_offer, make_profile, model, tmp_path):
    write(model, tmp_path / "model.json")
    assert srifty.read(tmp_path / "model.json") == model
    catalog = Catalog(offers=(make_offer(),), taken_at=date(2026, 1, 1))
    asked = {"samples": 10**6, "batch": 64, "catalog": catalog}
    profile = make_profile(seconds_a_sample=1e-5, constant_s=1e-4)
    (without,) = srifty.predict(profile, "4xsmall", **asked)
    (with_model,) = srifty.predict(profile, "4xsmall", model=tmp_path / "model.json", **asked)
    assert with_model.duration_s.p50 > 3 * without.duration_s.p50
    assert any("measured exchanges" in said for said in with_model.assumptions)
    assert srifty.plan(profile, **asked).cluster.node_count >= 1
    planned = srifty.plan(profile, model=model, goal="fastest", **asked)
    assert planned.cluster.node_count == 1  # what an exchange really takes makes one machine the fastest


def test_what_was_measured_over_several_nodes_is_the_network_s_and_a_trace_shows_it(
    make_offer, make_profile, model
):
    profile = make_profile(seconds_a_sample=1e-5, constant_s=1e-4)
    predictor = Predictor((profile,), exchange_model=model)
    asked = cluster((make_offer(), 4))
    table = predictor.estimate(ClusterTable.of([asked]), JOB)
    moved_s = 1.5 * profile.trainable_bytes / 0.2e9
    assert table.across_exchange_s.p50[0] == pytest.approx(moved_s, rel=0.06)
    assert table.inside_exchange_s.p50[0] == 0
    spans = predictor.trace(asked).spans
    exchanges = [span for span in spans if span.lane is Lane.EXCHANGE]
    assert sum(span.duration_s for span in exchanges) == pytest.approx(moved_s, rel=0.06)
