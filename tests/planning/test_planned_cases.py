"""What went wrong for users of other tools that a plan must get right; each test names the public report."""

from __future__ import annotations

import io
from datetime import date

import pytest
from rich.console import Console
from tests.conftest import make_offer, make_profile

from srifty.planning.planner import plan
from srifty.predicting.predictor import Predictor
from srifty.records import Catalog, Constraints, Job, Spread
from srifty.reporting.plan_table import plan_table


def planned(*offers, job, profiles, **limits):
    catalog = Catalog(offers=offers, taken_at=date(2026, 11, 29))
    return plan(job, catalog, Constraints(**limits), Predictor(tuple(profiles)))


def shown(found, width=100):
    screen = Console(file=io.StringIO(), width=width)
    screen.print(plan_table(found, today=date(2026, 11, 29), width=width))
    return screen.file.getvalue()


@pytest.mark.parametrize(("global_batch", "max_nodes"), [(256, 2), (4096, 4), (64, 1)])
def test_the_batch_of_a_gpu_and_the_micro_steps_are_shown_and_keep_the_global_batch(global_batch, max_nodes):
    """transformers#21950: the size found was never shown, and accumulation did not keep the global batch."""
    profile = make_profile(batches=(2, 4, 8, 16))
    job = Job(name="job", global_batch=global_batch, sample_count=1_000_000)
    found = planned(make_offer(gpu_count=2), job=job, profiles=[profile], max_nodes=max_nodes)
    for estimate in (found.estimate, *found.runners_up):
        (group,) = estimate.iteration.cluster.groups
        assert group.batch_per_gpu <= 16
        assert group.accumulation_count > 1
        samples = group.node_count * group.offer.gpu_count * group.batch_per_gpu * group.accumulation_count
        assert samples == global_batch
    (group,) = found.cluster.groups
    assert f"{group.batch_per_gpu} x {group.accumulation_count}" in shown(found)
    assert f"global batch {global_batch}" in shown(found)


def test_with_batch_normalisation_no_gpu_has_a_share_of_one_and_what_is_left_out_is_said():
    """pytorch#4534, pytorch#22192: a share of one sample does not train, and small ones have other statistics."""
    job = Job(name="job", global_batch=8, sample_count=10_000)
    many = make_offer(gpu_count=8, instance_type="large", usd_per_hour=0.01)  # cheap, but one sample a GPU
    found = planned(many, make_offer(), job=job, profiles=[make_profile(min_batch=2)])
    assert all(
        group.batch_per_gpu >= 2
        for estimate in (found.estimate, *found.runners_up)
        for group in estimate.iteration.cluster.groups
    )
    assert found.cluster.groups[0].offer.instance_type == "small"
    assert any("cannot share 8 samples evenly within their range" in each.why for each in found.dropped)


def test_a_plan_for_a_job_that_waits_for_its_loader_says_so_first_and_counts_vcpus():
    """pytorch/examples#387: money went into a faster GPU, and the loader was the bottleneck."""
    profile = make_profile(batches=(8, 16))
    waiting = tuple(t.model_copy(update={"data_wait_s": Spread.exactly(0.15)}) for t in profile.timings)
    job = Job(name="job", global_batch=8, sample_count=10_000)
    found = planned(
        make_offer(vcpu_count=6), job=job, profiles=[profile.model_copy(update={"timings": waiting})]
    )
    step = found.estimate.iteration
    assert step.waiting_s.p50 / step.duration_s.p50 == pytest.approx(0.6)
    text = " ".join(shown(found).split())
    assert "60 % of a step on T4 was the wait for it, which no faster GPU shortens" in text
    assert "small has 6 vCPUs a GPU to load with" in text
    assert text.index("no faster GPU") < text.index("is the cheapest")
