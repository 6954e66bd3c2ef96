"""Buckets of an unchanged script: the gradients' arrival, as hooks saw it, put into DDP's buckets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from srifty.profiling.attached_steps import SeenSteps, Step
from srifty.profiling.bucket_rule import Gradient, bucket_by_rule
from srifty.profiling.observation import Ddp, Observation
from srifty.records import GradientBucket

COPY_IN_S_PER_BYTE = 0.26e-9
"""DDP copies each gradient into its bucket; fitted to 13 models on one CPU with torch 2.13."""
COPY_OUT_S_PER_BYTE = COPY_IN_S_PER_BYTE / 3
"""And back at the end, in memory that is in use by then; fitted to three models on that CPU."""
_HOOKS_SLOW_BY = 1.5


@dataclass(frozen=True)
class AttachedBuckets:
    """Buckets in the order of their exchange, and what they rest on that was not measured."""

    buckets: tuple[GradientBucket, ...]
    notes: tuple[str, ...]


def attached_buckets(observed: Observation, steps: SeenSteps) -> AttachedBuckets:
    """What DDP would exchange for this script, or does where the script uses DDP, and when it is ready."""
    notes: list[str] = []
    trained = [index for index, parameter in enumerate(observed.parameters) if parameter.is_trained]
    ready_at = _arrivals(steps, has_exchange=observed.rank_count > 1)
    gradients = {index: _gradient(observed, index, ready_at.get(index)) for index in trained}
    silent_count = sum(
        index not in ready_at and not observed.parameters[index].had_gradient for index in trained
    )
    if not ready_at and silent_count == len(trained):
        silent_count = 0  # gradients that the program asks for are in no parameter
    sparse_count = sum(gradient.is_sparse for gradient in gradients.values())
    if not gradients:
        notes.append("no parameter that is trained was found: nothing is taken to be exchanged")
        return AttachedBuckets((), tuple(notes))
    if sparse_count:
        notes.append(
            f"{sparse_count} gradients are sparse (their exchange needs gloo; NCCL cannot average them)"
        )
    if silent_count:
        notes.append(
            f"{silent_count} trainable parameters get no gradient; they are exchanged all the same, as DDP does "
            f"with find_unused_parameters=True"
        )
    if observed.told["is_sharded"]:
        notes.append(
            "the script shards its parameters (FSDP): buckets are given as DDP would make them, and its own "
            "exchanges are in the measured times"
        )
    tried = _tried(observed, steps, sum(gradient.gradient_bytes for gradient in gradients.values()))
    if tried:
        return AttachedBuckets(tried, tuple(notes))
    if not ready_at:
        notes.append(
            "when gradients are ready was not seen; they are taken to be so at the end of the backward pass"
        )
        gradients = {index: replace(gradients[index], ready_at=1.0) for index in reversed(trained)}
    elif _hooks_disagree(steps):
        notes.append("steps with hooks on the gradients took far longer than others: no overlap is assumed")
        gradients = {index: replace(gradient, ready_at=1.0) for index, gradient in gradients.items()}
    if not observed.ddps:
        notes.append(
            "the script does not use DDP, and could not be tried in it: gradient buckets follow DDP's rule over the "
            "measured arrival"
        )
        if silent_count:
            notes.append("gradients of unused outputs may be ready later under DDP")
        if ready_at and observed.told["device"] == "cpu":
            copied = with_copies(list(gradients.values()), _backward_s(steps))
            gradients = dict(zip(gradients, copied, strict=True))
            notes.append("DDP's copies of gradients are taken to cost 0.26 ns a byte, as on another CPU")
        return AttachedBuckets(bucket_by_rule(list(gradients.values())), tuple(notes))
    outside = set(gradients).difference(*(ddp.parameters for ddp in observed.ddps))
    if outside:
        outside_bytes = sum(gradients[index].gradient_bytes for index in outside)
        notes.append(
            f"{len(outside)} trained parameters ({outside_bytes / 1e6:.3g} MB) are in no DDP model of the script: "
            f"they are not taken to be exchanged"
        )
    buckets = [
        bucket
        for ddp in observed.ddps
        for bucket in _of_ddp(ddp, [gradients[index] for index in ddp.parameters if index in gradients])
    ]
    return AttachedBuckets(tuple(sorted(buckets, key=lambda bucket: bucket.ready_at)), tuple(notes))


def _of_ddp(ddp: Ddp, gradients: Sequence[Gradient]) -> tuple[GradientBucket, ...]:
    """Buckets of the sizes that a DDP model of the script tells, or by its rule where it does not tell."""
    buckets = bucket_by_rule(gradients)
    sizes = _ddp_sizes(ddp.data)
    if sizes and sizes != [bucket.gradient_bytes for bucket in buckets]:
        return fill(sizes, gradients)
    return buckets


def _tried(observed: Observation, steps: SeenSteps, total_bytes: int) -> tuple[GradientBucket, ...]:
    """Buckets that DDP itself made in a trial after the profile; none where it did not come to that, or all else
    says that the passes that it saw are not those of a step.
    """
    passes = observed.ddp_trial
    if not passes or steps.closure_count:
        return ()
    sizes = passes[-1].sizes
    alike = [one for one in passes if one.sizes == sizes]
    if sum(sizes) != total_bytes or any(
        step.backward_count != steps.accumulation_count for step in steps.steady
    ):
        return ()
    ready_at = [median(shares) for shares in zip(*(one.ready_at for one in alike), strict=True)]
    return tuple(
        GradientBucket(gradient_bytes=size, ready_at=at)
        for size, at in zip(sizes, ready_at, strict=True)
        if size
    )


def with_copies(gradients: Sequence[Gradient], backward_s: float) -> list[Gradient]:
    """Arrival as a share of a backward pass that also copies gradients into buckets and out again.

        ready_i = (ready_at_i * backward + c_in * bytes arrived up to i) / (backward + (c_in + c_out) * all bytes)

    Args:
        gradients: as they arrive in a plain backward pass
        backward_s: length of that [s]

    Assumes the cost of copies c_in and c_out [s a byte] of one CPU. Without it buckets come out 10 to 37 % of
    the backward pass too early; with it, 5 % in most of the models that were compared.
    """
    total = sum(gradient.gradient_bytes for gradient in gradients)
    length_s = backward_s + (COPY_IN_S_PER_BYTE + COPY_OUT_S_PER_BYTE) * total
    arrived = 0
    moved: dict[int, float] = {}
    there = [index for index, gradient in enumerate(gradients) if gradient.ready_at is not None]
    for index in sorted(there, key=lambda index: gradients[index].ready_at or 0.0):
        arrived += gradients[index].gradient_bytes
        ready_s = (gradients[index].ready_at or 0.0) * backward_s + COPY_IN_S_PER_BYTE * arrived
        moved[index] = min(1.0, ready_s / length_s)
    return [
        replace(gradient, ready_at=moved.get(index, gradient.ready_at))
        for index, gradient in enumerate(gradients)
    ]


def fill(sizes: Sequence[int], gradients: Sequence[Gradient]) -> tuple[GradientBucket, ...]:
    """Buckets of given sizes [bytes], each ready once as many bytes have arrived as it and those before hold."""
    arrival = sorted(gradients, key=lambda gradient: gradient.ready_at or 0.0)
    buckets = []
    ends = [sum(sizes[: count + 1]) for count in range(len(sizes))]
    for size, end in zip(sizes, ends, strict=True):
        arrived, ready_at = 0, 0.0
        for gradient in arrival:
            if arrived >= end:
                break
            arrived += gradient.gradient_bytes
            ready_at = gradient.ready_at or ready_at
        if size:
            buckets.append(GradientBucket(gradient_bytes=size, ready_at=ready_at))
    return tuple(buckets)


def _gradient(observed: Observation, index: int, ready_at: float | None) -> Gradient:
    parameter = observed.parameters[index]
    return Gradient(
        gradient_bytes=parameter.size_bytes if parameter.sparse_bytes is None else parameter.sparse_bytes,
        kind=(parameter.dtype, parameter.device),
        ready_at=ready_at,
        is_sparse=parameter.sparse_bytes is not None,
    )


def outlasting_s(steps: SeenSteps) -> float:
    """Time by which real exchanges outlast the last gradient of a step [s]: the median over the hooked steps."""
    waits = []
    for step in steps.hooked:
        spans, firings = _backward_clock(step)
        if spans and firings:
            waits.append(max(0.0, spans[-1][1] - max(at for _, at in firings)))
    return median(waits) if waits else 0.0


def _arrivals(steps: SeenSteps, *, has_exchange: bool) -> dict[int, float]:
    """When each gradient was there, as a share of the backward pass: the median over the hooked steps."""
    is_last_only = steps.accumulation_count > 1 or steps.closure_count > 0
    seen: dict[int, list[float]] = defaultdict(list)
    for step in steps.hooked:
        arrival = _arrival_in(step, is_last_only=is_last_only, ends_with_last=has_exchange)
        for index, share in arrival.items():
            seen[index].append(share)
    return {index: median(shares) for index, shares in seen.items()}


def _arrival_in(step: Step, *, is_last_only: bool, ends_with_last: bool) -> dict[int, float]:
    """The last firing of each parameter's hook, on a clock that runs during backward passes only.

    With accumulation that is the last micro-step's, in which DDP exchanges. Where ranks exchange for real, the
    backward pass is taken to end with its last gradient.
    """
    spans, firings = _backward_clock(step)
    if is_last_only:
        spans = spans[-1:]
    if ends_with_last and spans and firings:
        spans[-1] = (spans[-1][0], max(spans[-1][0], max(at for _, at in firings)))
    whole_s = sum(end - start for start, end in spans)
    if whole_s <= 0:
        return {}
    arrival: dict[int, float] = {}
    for index, at in firings:
        if spans[0][0] <= at:
            passed_s = sum(min(end, max(start, at)) - start for start, end in spans)
            arrival[index] = min(passed_s / whole_s, 1.0)
    return arrival


def _backward_clock(step: Step) -> tuple[list[tuple[float, float]], list[tuple[int, float]]]:
    """Backward passes and firings of all cuts of a step, from its start [s]."""
    spans: list[tuple[float, float]] = []
    firings: list[tuple[int, float]] = []
    offset_s = 0.0
    for cut in step.cuts:
        spans += [(offset_s + start, offset_s + end) for start, end in cut.backwards]
        firings += [(index, offset_s + at) for index, at in cut.fired]
        offset_s += cut.length_s
    return spans, firings


def _backward_s(steps: SeenSteps) -> float:
    return median([step.phase_s["backward"] for step in steps.hooked]) / steps.accumulation_count


def _hooks_disagree(steps: SeenSteps) -> bool:
    """Whether even the shortest backward pass is far longer with hooks than without; noise alone is not that."""
    plain = [step.phase_s["backward"] for step in steps.steady if step.is_plain]
    hooked = [step.phase_s["backward"] for step in steps.hooked]
    return min(len(plain), len(hooked)) >= 3 and min(hooked) > _HOOKS_SLOW_BY * min(plain)


def _ddp_sizes(ddp: Mapping[str, Any]) -> list[int]:
    """Sizes of DDP's buckets as they are now [bytes]; nothing where it does not tell."""
    for name in ("rebuilt_bucket_sizes", "bucket_sizes"):
        try:
            sizes = [int(part) for part in str(ddp.get(name, "")).split(",")]
        except ValueError:
            continue
        if sum(sizes) > 0:
            return sizes
    return []
