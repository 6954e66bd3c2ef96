"""What several rooms' tests share: ready-made offers and profiles."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from srifty.records import (
    BatchTiming,
    GpuLink,
    GradientBucket,
    Job,
    JobProfile,
    Market,
    Offer,
    Spread,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks/ is checked too


def make_offer(**fields: object) -> Offer:
    """An offer of a machine with one T4, in which any field can be set."""
    given = {
        "cloud": "aws",
        "region": "us-east-1",
        "instance_type": "small",
        "gpu": "T4",
        "gpu_count": 1,
        "gpu_memory_bytes": 16 * 2**30,
        "vcpu_count": 4,
        "network_bytes_per_s": 1.25e9,
        "market": Market.ON_DEMAND,
        "usd_per_hour": 1.0,
        "price_as_of": date(2026, 7, 1),
        "source": "test",
    }
    if fields.get("gpu_count", 1) != 1:
        given |= {"gpu_link": GpuLink.PCIE, "gpu_link_bytes_per_s": 15.75e9}
    return Offer.model_validate(given | fields)


def make_profile(
    gpu: str = "T4", seconds_a_sample: float = 0.01, constant_s: float = 0.02, **fields: object
) -> JobProfile:
    """A profile whose step takes constant + batch x seconds_a_sample, in which any field can be set."""
    batches = fields.pop("batches", (2, 4, 8, 16, 32, 64))
    noise = float(fields.pop("noise", 0.0))

    def spread(seconds: float) -> Spread:
        wide = 1.2816 * noise * seconds
        return Spread(p10=seconds - wide, p50=seconds, p90=seconds + wide, mean=seconds, sample_count=9)

    def timing(batch: int) -> BatchTiming:
        step = constant_s + batch * seconds_a_sample
        return BatchTiming(
            batch=batch,
            forward_s=spread(step * 0.3),
            backward_s=spread(step * 0.6),
            optimizer_s=spread(0.1 * step),
        )

    given = {
        "job": Job(name="job"),
        "gpu": gpu,
        "gpu_memory_bytes": 16 * 2**30,
        "max_batch": batches[-1],
        "timings": tuple(timing(batch) for batch in batches),
        "buckets": tuple(
            GradientBucket(gradient_bytes=25 * 2**20, ready_at=r) for r in (0.25, 0.5, 0.75, 1.0)
        ),
        "trainable_bytes": 100 * 2**20,
        "taken_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return JobProfile.model_validate(given | fields)


@pytest.fixture(name="make_offer")
def _make_offer():
    return make_offer


@pytest.fixture(name="make_profile")
def _make_profile():
    return make_profile
