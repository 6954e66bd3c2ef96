"""A job by its times, from a profile."""

from __future__ import annotations

import pytest

from srifty.predicting.samples import sample_profiles
from srifty.records.emulated_job import EmulatedJob


@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_layers_hold_the_buckets_and_end_when_those_are_ready(scale):
    (profile,) = [one for one in sample_profiles("resnet50") if one.gpu == "V100"]
    job = EmulatedJob.of(profile, scale=scale)
    total = scale * sum(bucket.gradient_bytes for bucket in profile.buckets)
    assert sum(layer.parameter_bytes for layer in job.layers) == pytest.approx(total, rel=1e-4)
    assert sum(layer.forward_share for layer in job.layers) == pytest.approx(1)
    ready = max(bucket.ready_at for bucket in profile.buckets)
    assert sum(layer.backward_share for layer in job.layers) == pytest.approx(ready)
    assert job.forward_s[0] == pytest.approx(scale * profile.timings[0].forward_s.p50)
