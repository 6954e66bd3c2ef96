"""The search for the largest batch of a workload on a device of this machine.

It runs before the workload is made in this process, so that the device's memory is there for the tries alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from srifty.profiling.batch_tries import LONGEST_TRY_S, BatchTries
from srifty.profiling.device import Device
from srifty.profiling.host_memory import available_bytes
from srifty.profiling.max_batch import HOST_RESERVE_SHARE, HOST_SHARE, MaxBatch, Search, on_the_cpu
from srifty.records import Job


def search_max_batch(
    job: Job,
    *,
    folder: Path,
    device: Device,
    max_batch: int | None,
    longest_step_s: float,
    tell: Callable[[str], None],
    longest_try_s: float = LONGEST_TRY_S,
) -> MaxBatch:
    """Search the largest batch, and try each batch that is to be timed.

    Args:
        job: names the workload, perhaps the batches to time and what caps a batch
        folder: where the workload's module is looked for
        device: to try on
        max_batch: no larger one is tried; None: none above 65,536
        longest_step_s: batches with longer steps are not timed, but for the first three [s]
        tell: called with what is done next
        longest_try_s: a try that takes longer counts as too slow [s]

    Raises:
        NotMeasured: no batch fits
        WorkloadFailed: the training code raised, at whichever batch
        InvalidInput: the workload cannot be found; a cap below what batch normalisation needs
    """
    assert job.workload is not None  # noqa: S101 - the profiler has checked it
    on_cpu = device.place.type == "cpu"
    available = available_bytes()
    host_limit = int(HOST_SHARE * available) if on_cpu else None
    search = Search(
        job=job,
        fits=BatchTries(
            job.workload,
            folder,
            device.place,
            host_limit_bytes=host_limit,
            host_reserve_bytes=int(HOST_RESERVE_SHARE * available),
            longest_s=longest_try_s,
        ),
        tell=tell,
        tried_by="two steps of each tried batch in a fresh process",
        where="this machine" if device.gpu == "cpu" else device.gpu,
        memory_bytes=host_limit if on_cpu else device.gpu_memory_bytes,
    )
    found = search.run(max_batch, longest_step_s)
    if not on_cpu:
        return found
    first, *others = found.assumptions
    return replace(found, assumptions=(first, on_the_cpu(found.memory_bytes), *others))
