"""Gradient buckets: what a job will exchange, and when each part is ready; from DDP itself where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from srifty.profiling.clock import Clock
from srifty.profiling.hook_buckets import buckets_by_hooks
from srifty.profiling.memory import OutOfMemory, is_out_of_memory
from srifty.profiling.user_code import user_code
from srifty.profiling.workload import Workload
from srifty.records import GradientBucket


@dataclass(frozen=True)
class MeasuredBuckets:
    """Buckets in the order of their exchange, and what they rest on that was not measured."""

    buckets: tuple[GradientBucket, ...]
    assumptions: tuple[str, ...] = ()


def measure_buckets(workload: Workload, data: Any, clock: Clock, *, seconds: float) -> MeasuredBuckets:
    """The buckets that DDP makes, watched in DDP itself, or by its rule where the model does not run in it.

    Args:
        workload: what to step; the optimizer is not stepped, and the model is left without hooks and gradients
        data: one batch on the device
        clock: of that device
        seconds: how long to watch

    Raises:
        WorkloadFailed: the training code raised, without DDP
        OutOfMemory: a step, or DDP's copy of the gradients beside it, does not fit
    """
    silent_count, sparse_count = _look(workload, data)
    notes = []
    if silent_count:
        notes.append(
            f"{silent_count} trainable parameters get no gradient; they are exchanged all the same, as DDP does "
            f"with find_unused_parameters=True"
        )
    if sparse_count:
        return _by_rule(
            workload,
            data,
            clock,
            seconds,
            [
                *notes,
                f"{sparse_count} gradients are sparse (their exchange needs gloo; NCCL cannot average them)",
            ],
        )
    if not torch.distributed.is_available():
        return _by_rule(workload, data, clock, seconds, [*notes, "this torch has no torch.distributed"])
    try:
        buckets = _watch(workload, data, clock, seconds, find_unused=silent_count > 0)
    except OutOfMemory:
        raise
    except (Exception, SystemExit) as error:
        # The same step has just run without DDP, so what fails is DDP or how the loss uses the model.
        if is_out_of_memory(error):
            raise OutOfMemory(str(error)) from None
        why = f"in DistributedDataParallel the step fails ({type(error).__name__}: {_first_line(error)})"
    else:
        if buckets:
            return MeasuredBuckets(buckets, tuple(notes))
        why = "the loss does not call the model that it is given"
    return _by_rule(workload, data, clock, seconds, [*notes, why])


def _look(workload: Workload, data: Any) -> tuple[int, int]:
    """How many trained parameters get no gradient in a plain backward pass, and how many a sparse one."""
    trained = workload.trained_parameters
    try:
        with user_code("a backward pass"):
            for parameter in trained:
                parameter.grad = None
            workload.checked_loss(workload.model, data).backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in trained]
    finally:
        for parameter in trained:
            parameter.grad = None
    return (
        sum(gradient is None for gradient in gradients),
        sum(gradient is not None and gradient.is_sparse for gradient in gradients),
    )


def _watch(
    workload: Workload, data: Any, clock: Clock, seconds: float, *, find_unused: bool
) -> tuple[GradientBucket, ...]:
    from srifty.profiling.ddp_buckets import watch_ddp  # fails to import without torch.distributed

    try:
        return watch_ddp(workload, data, clock, seconds=seconds, find_unused_parameters=find_unused)
    except RuntimeError as error:
        if find_unused or "find_unused_parameters" not in str(error):
            raise
    # Which parameters are used changes from step to step.
    return watch_ddp(workload, data, clock, seconds=seconds, find_unused_parameters=True)


def _by_rule(
    workload: Workload, data: Any, clock: Clock, seconds: float, notes: list[str]
) -> MeasuredBuckets:
    buckets = buckets_by_hooks(workload, data, clock, seconds=seconds)
    notes.append(
        "gradient buckets follow DDP's rule over a plain backward pass; they may be ready later in DDP"
    )
    return MeasuredBuckets(buckets, tuple(notes))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:120]
