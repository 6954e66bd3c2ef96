"""DDP's real buckets: run DistributedDataParallel with one process, and watch each bucket become ready."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from srifty.errors import WorkloadFailed
from srifty.profiling.clock import Clock, Mark
from srifty.profiling.process_group import process_group_of_one
from srifty.profiling.steps import paused_garbage_collection
from srifty.profiling.workload import Workload
from srifty.records import GradientBucket

# DDP has one bucket of each kind in the first step, and its final ones from the second on.
_STEPS_BEFORE = 2
_FEWEST_STEPS, _MOST_STEPS = 3, 20


@dataclass
class _Firings:
    """The buckets of one backward pass, as they fired."""

    clock: Clock
    sizes_bytes: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def clear(self) -> None:
        self.sizes_bytes, self.marks = [], []


def watch_ddp(
    workload: Workload, data: Any, clock: Clock, *, seconds: float, find_unused_parameters: bool
) -> tuple[GradientBucket, ...]:
    """Buckets in the order of their exchange, ready_at as the median over some steps.

    Args:
        workload: what to step; its optimizer is not
        data: one batch on the device
        clock: of that device
        seconds: how long to watch, after the first steps
        find_unused_parameters: as DDP takes it, for parameters that get no gradient

    Returns:
        nothing where no bucket fired: the loss did not go through the model that it was given

    ready_at of bucket k = (firing of k - start of backward) / length of the backward pass, under DDP, whose
    copies into and out of buckets count as backward.
    """
    with (
        process_group_of_one() as group,
        _watched(workload, clock, group, find_unused_parameters) as (
            model,
            firings,
        ),
    ):
        steps: list[tuple[tuple[int, ...], list[float]]] = []
        begin = time.perf_counter()
        with paused_garbage_collection():
            for number in range(_STEPS_BEFORE + _MOST_STEPS):
                if number == _STEPS_BEFORE:
                    begin = time.perf_counter()
                if len(steps) >= _FEWEST_STEPS and time.perf_counter() - begin >= seconds:
                    break
                firings.clear()
                ready_at = _one_backward(workload, model, data, firings)
                if not firings.sizes_bytes:
                    return ()
                if number >= _STEPS_BEFORE:
                    steps.append((tuple(firings.sizes_bytes), ready_at))
    sizes_bytes = steps[-1][0]
    alike = [ready_at for sizes, ready_at in steps if sizes == sizes_bytes]
    return tuple(
        GradientBucket(gradient_bytes=size, ready_at=median(shares))
        for size, shares in zip(sizes_bytes, zip(*alike, strict=True), strict=True)
        if size
    )


@contextmanager
def _watched(
    workload: Workload, clock: Clock, group: dist.ProcessGroup, find_unused_parameters: bool
) -> Iterator[tuple[DistributedDataParallel, _Firings]]:
    """The model in DDP with our hook; afterwards the model is as before, without hooks and gradients."""
    firings = _Firings(clock)
    # init_sync: there is no other rank to agree with.
    model = DistributedDataParallel(
        workload.model,
        process_group=group,
        find_unused_parameters=find_unused_parameters,
        init_sync=False,
    )
    try:
        model.register_comm_hook(firings, _note_bucket)
        yield model, firings
    finally:
        # By hand: the reducer's hooks sit on the user's parameters and would outlive a DDP that a
        # traceback still holds.
        model._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        for parameter in workload.model.parameters():
            parameter.grad = None


def _one_backward(
    workload: Workload, model: DistributedDataParallel, data: Any, firings: _Firings
) -> list[float]:
    for parameter in workload.trained_parameters:
        parameter.grad = None
    loss = workload.checked_loss(model, data)
    start = firings.clock.mark()
    loss.backward()  # type: ignore[no-untyped-call]
    end = firings.clock.mark()
    backward_s = firings.clock.between(start, end)
    if backward_s <= 0:
        raise WorkloadFailed("the backward pass took no time")
    return [min(max(firings.clock.between(start, mark) / backward_s, 0.0), 1.0) for mark in firings.marks]


# DDP asks for these two names, and reads the annotations at run time: as text they would be refused.
def _note_bucket(state, bucket):  # type: ignore[no-untyped-def]
    """Note size and time of a bucket, and exchange nothing."""
    buffer = bucket.buffer()
    state.marks.append(state.clock.mark())
    state.sizes_bytes.append(buffer.numel() * buffer.element_size())
    exchanged: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    exchanged.set_result(buffer)
    return exchanged
