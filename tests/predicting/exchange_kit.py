"""Exchanges made from a known network, so that tests can ask whether it is found again."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from srifty.records import AllReduceSample, NetworkProfile

AT = datetime(2026, 1, 1, tzinfo=UTC)
SIZES = tuple(2**power for power in range(10, 29, 2))


def seconds(nodes, size, *, gpus=1, latency_s=50e-6, rate=1.0e9, growth=0.0):
    """The ring, of which more nodes lose a share of the rate."""
    k = nodes * gpus
    return 2 * (k - 1) * latency_s + 2 * (k - 1) / k * size / rate * (nodes / 2) ** growth


def session(
    instance_type="small",
    nodes=(2, 3, 4, 6, 8),
    sizes=SIZES,
    *,
    noise=0.0,
    factor=1.0,
    repeats=5,
    seed=0,
    gpus=1,
    backend="nccl",
    version="2.21.5",
    link=1.25e9,
    name=None,
    **network,
):
    """A NetworkProfile of one session; `noise` within it, `factor` on all of it."""
    draw = np.random.default_rng(seed)
    return NetworkProfile(
        samples=tuple(
            AllReduceSample(
                instance_types=(instance_type,),
                node_count=n,
                gpu_count=n * gpus,
                backend=backend,
                backend_version=version,
                link_bytes_per_s=link,
                message_bytes=size,
                duration_s=factor
                * seconds(n, size, gpus=gpus, **network)
                * float(np.exp(noise * draw.standard_normal())),
                repeat=repeat,
                session=name,
            )
            for n in nodes
            for size in sizes
            for repeat in range(repeats)
        ),
        taken_at=AT,
    )
