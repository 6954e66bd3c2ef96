"""A profile for a GPU that was not measured is rough, wide and says so."""

from __future__ import annotations

import pytest
from tests.conftest import make_offer, make_profile

from srifty.errors import NotMeasured
from srifty.predicting.gpu_scaling import PEAKS, UNMEASURED_LOG_SD, estimated_profile, with_estimates
from srifty.predicting.predictor import Predictor
from srifty.records import Cluster, Job, NodeGroup
from srifty.records.cluster_table import ClusterTable

GIB = 2**30


def test_times_scale_by_the_ratio_of_published_peaks():
    rough = estimated_profile(make_profile("T4"), "V100", 16 * GIB)
    ratio = PEAKS["T4"].fp32_flop_per_s / PEAKS["V100"].fp32_flop_per_s
    for old, new in zip(make_profile("T4").timings, rough.timings, strict=True):
        assert new.forward_s.p50 == pytest.approx(old.forward_s.p50 * ratio)
        assert new.optimizer_s.p50 == pytest.approx(old.optimizer_s.p50 * 320 / 900)
    assert (rough.estimated_from, rough.estimate_log_sd) == ("T4", UNMEASURED_LOG_SD)
    assert "none was measured" in rough.assumptions[0]


def test_half_precision_goes_by_the_tensor_cores():
    rough = estimated_profile(make_profile("T4", precision="float32, autocast float16"), "A100", 40 * GIB)
    assert rough.timings[0].forward_s.p50 == pytest.approx(
        make_profile("T4").timings[0].forward_s.p50 * 65 / 312
    )


def test_an_estimate_says_so_and_has_a_wide_band():
    profiles = with_estimates(
        [make_profile("T4")], [make_offer(gpu="V100"), make_offer(gpu="Qualcomm AI100")]
    )
    assert [profile.gpu for profile in profiles] == ["T4", "V100"]
    group = NodeGroup(offer=make_offer(gpu="V100"), node_count=1, batch_per_gpu=8)
    table = Predictor(profiles).estimate(
        ClusterTable.of([Cluster(groups=(group,))]), Job(name="job", step_count=10)
    )
    step = table.iteration(0)
    assert step.extrapolated == ("times on V100 are estimated from T4, not measured",)
    assert step.duration_s.p90 / step.duration_s.p50 > 1.9


def test_a_smaller_memory_takes_fewer_of_the_measured_batches():
    rough = estimated_profile(make_profile("V100", gpu_memory_bytes=32 * GIB), "M60", 8 * GIB)
    assert rough.max_batch < 64
    assert rough.timings[-1].batch <= rough.max_batch


def test_what_cannot_be_estimated_is_refused():
    with pytest.raises(NotMeasured, match="no published peaks of cpu"):
        estimated_profile(make_profile("cpu"), "V100", 16 * GIB)
    with pytest.raises(NotMeasured, match="no published peaks of Abacus"):
        estimated_profile(make_profile("T4"), "Abacus", 16 * GIB)
    rough = estimated_profile(make_profile("T4"), "V100", 16 * GIB)
    with pytest.raises(NotMeasured, match="itself an estimate"):
        estimated_profile(rough, "A100", 40 * GIB)
    with pytest.raises(NotMeasured, match="no measured batch fits"):
        estimated_profile(make_profile("T4"), "V100", GIB)
