"""DDP's rule for buckets, for where DDP itself cannot be asked."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from srifty.records import GradientBucket

MIB = 1024 * 1024
LIMITS_BYTES = (1 * MIB, 25 * MIB)


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient.

    Attributes:
        gradient_bytes: what is exchanged for it
        kind: dtype and device; a bucket holds one kind
        ready_at: share of the backward pass at which it was there; None: it never was
        is_sparse: sparse gradients are exchanged one by one
    """

    gradient_bytes: int
    kind: Hashable
    ready_at: float | None
    is_sparse: bool = False


def bucket_by_rule(gradients: Sequence[Gradient]) -> tuple[GradientBucket, ...]:
    """Buckets that DDP makes of these gradients, given in the order of the model's parameters.

    From the second step on DDP fills buckets in the order in which gradients arrive, and a bucket is full once
    it holds 1 MiB (the first of its kind) or 25 MiB (the others). Where some parameters get no gradient
    (`find_unused_parameters`) it never learns that order and fills buckets by registration, last ones first.
    A bucket is ready with its last gradient, and not before the bucket ahead of it, as DDP exchanges in order.

    Source: torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size; found the same as real
    DDP for the models in the tests.
    """
    if any(gradient.ready_at is None for gradient in gradients):
        assigned = _fill(gradients, range(len(gradients)))
        assigned = sorted(assigned, key=min, reverse=True)
    else:
        arrival = sorted(range(len(gradients)), key=lambda index: gradients[index].ready_at or 0.0)
        assigned = _fill(gradients, arrival)
    buckets = []
    ready_at = 0.0
    for members in assigned:
        ready_at = max([ready_at, *(gradients[index].ready_at or 0.0 for index in members)])
        size = sum(gradients[index].gradient_bytes for index in members)
        if size:
            buckets.append(GradientBucket(gradient_bytes=size, ready_at=ready_at))
    return tuple(buckets)


def _fill(gradients: Sequence[Gradient], order: Sequence[int]) -> list[list[int]]:
    """Indices of gradients by bucket: full ones as they became full, then what is left."""
    closed: list[list[int]] = []
    filling: dict[Hashable, list[int]] = {}
    closed_count: dict[Hashable, int] = {}
    for index in order:
        gradient = gradients[index]
        if gradient.is_sparse:
            closed.append([index])
            continue
        members = filling.setdefault(gradient.kind, [])
        members.append(index)
        limit = LIMITS_BYTES[min(closed_count.get(gradient.kind, 0), len(LIMITS_BYTES) - 1)]
        if sum(gradients[member].gradient_bytes for member in members) >= limit:
            closed.append(filling.pop(gradient.kind))
            closed_count[gradient.kind] = closed_count.get(gradient.kind, 0) + 1
    return closed + list(filling.values())
