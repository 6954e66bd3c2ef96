"""Buckets by rule: when each gradient is there in a plain backward pass, and what DDP would make of them.

For models that DDP cannot run as they are: sparse gradients, losses that use the model other than by calling
it, builds of torch without torch.distributed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from torch import nn

from srifty.profiling.bucket_rule import Gradient, bucket_by_rule
from srifty.profiling.clock import Clock, Mark
from srifty.profiling.sizes import tensor_bytes
from srifty.profiling.steps import paused_garbage_collection
from srifty.profiling.user_code import user_code
from srifty.profiling.workload import Workload
from srifty.records import GradientBucket

_FEWEST_STEPS, _MOST_STEPS = 3, 20


def buckets_by_hooks(
    workload: Workload, data: Any, clock: Clock, *, seconds: float
) -> tuple[GradientBucket, ...]:
    """Buckets by DDP's rule over measured arrival; ready_at as the median over some steps.

    Without DDP's copies into buckets the times come out early: by 10 to 37 % of the backward pass where they
    were compared.
    """
    trained = workload.trained_parameters
    arrivals: dict[int, list[float]] = {index: [] for index in range(len(trained))}
    sizes_bytes = [tensor_bytes([parameter]) for parameter in trained]
    sparse: set[int] = set()
    begin = time.perf_counter()
    with (
        _hooked(trained, clock) as marks,
        user_code("a backward pass"),
        paused_garbage_collection(),
    ):
        for number in range(_MOST_STEPS):
            if number >= _FEWEST_STEPS and time.perf_counter() - begin >= seconds:
                break
            marks.clear()
            loss = workload.checked_loss(workload.model, data)
            start = clock.mark()
            loss.backward()  # type: ignore[no-untyped-call]
            end = clock.mark()
            backward_s = max(clock.between(start, end), 1e-9)
            for index, mark in marks.items():
                arrivals[index].append(min(max(clock.between(start, mark) / backward_s, 0.0), 1.0))
                gradient = trained[index].grad
                if gradient is not None and gradient.is_sparse:
                    sparse.add(index)
                    sizes_bytes[index] = tensor_bytes([gradient])
            _drop_gradients(trained)
    return bucket_by_rule(
        [
            Gradient(
                gradient_bytes=sizes_bytes[index],
                kind=(parameter.dtype, parameter.device),
                ready_at=median(arrivals[index]) if arrivals[index] else None,
                is_sparse=index in sparse,
            )
            for index, parameter in enumerate(trained)
        ]
    )


@contextmanager
def _hooked(parameters: list[nn.Parameter], clock: Clock) -> Iterator[dict[int, Mark]]:
    """Marks by parameter, refreshed in each backward pass; hooks and gradients are gone afterwards.

    Activation checkpoints may run backward twice through a block: the last firing counts.
    """
    marks: dict[int, Mark] = {}
    handles = []
    try:
        for index, parameter in enumerate(parameters):

            def note(_: object, index: int = index) -> None:
                marks[index] = clock.mark()

            handles.append(parameter.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
        yield marks
    finally:
        for handle in handles:
            handle.remove()
        _drop_gradients(parameters)


def _drop_gradients(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
