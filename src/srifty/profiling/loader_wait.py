"""Loader wait: how long a training waits for its next batch, while steps are taken in between.

A loader that works ahead does so behind the steps, so the wait is a property of both, and is seen only in a loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch

from srifty.errors import WorkloadFailed
from srifty.profiling.clock import Clock, Mark
from srifty.profiling.steps import paused_garbage_collection
from srifty.profiling.user_code import user_code
from srifty.profiling.workload import Workload, moved_to

COLD_WAITS = 4
"""Left out at first: whatever the loader has ready before the first step is used up, and steps become warm."""
FEWEST_WAITS, MOST_WAITS = 6, 50


def loader_waits(
    workload: Workload, batch: int, device: torch.device, clock: Clock, *, seconds: float
) -> list[float]:
    """Waits for the next batch [s], each from the end of one step to the start of the next.

    On a GPU they are waits of the GPU: while it is busy with earlier steps the host waits at nobody's cost. The
    first of an epoch is left out, since workers start then. Moving data to the device is no part of the wait.

    Args:
        workload: has a loader
        batch: samples on the device
        device: where the steps run
        clock: of that device
        seconds: how long to go on; for 6 to 50 waits

    Returns:
        the waits; empty where an epoch has one batch alone

    Raises:
        WorkloadFailed: the loader or a step raised, or an epoch is empty
        OutOfMemory: a step does not fit
    """
    waits: list[tuple[Mark, Mark]] = []
    begin = time.perf_counter()

    def is_over() -> bool:
        count = len(waits) - COLD_WAITS
        is_late = time.perf_counter() - begin >= seconds
        return count >= MOST_WAITS or (count >= FEWEST_WAITS and is_late)

    with paused_garbage_collection():
        while not is_over():
            seen = 0
            with _epoch(workload, batch) as epoch:
                while not is_over():
                    start = clock.mark()
                    with user_code(f"loader({batch})"):
                        data = next(epoch, _END)
                    if data is _END:
                        break
                    if seen:
                        waits.append((start, clock.mark()))
                    seen += 1
                    _step(workload, moved_to(device, data))
            if seen == 0:
                raise WorkloadFailed(f"loader({batch}) gave no batch: expected one epoch of data")
            if seen == 1 and not waits:
                return []
    return [clock.between(start, end) for start, end in waits[COLD_WAITS:]]


_END = object()


@contextmanager
def _epoch(workload: Workload, batch: int) -> Iterator[Iterator[Any]]:
    """The loader's batches; a generator among them is closed afterwards, so that no thread of its is left."""
    assert workload.loader is not None  # noqa: S101 - nobody asks for the waits of what is not there
    with user_code(f"loader({batch})"):
        epoch = iter(workload.loader(batch))
    if not hasattr(epoch, "close"):
        yield epoch
        return
    with closing(epoch):  # type: ignore[type-var]
        yield epoch


def _step(workload: Workload, data: Any) -> None:
    with user_code("a training step"):
        workload.checked_loss(workload.model, data).backward()  # type: ignore[no-untyped-call]
        workload.optimizer.step()
        workload.optimizer.zero_grad()
