"""The search for the largest batch of an unchanged command, and what it says of the profile's largest batch.

The search counts what stands for {batch}. A script may share that among micro-steps or ranks; a profile counts samples
of one micro-step on one GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from srifty.profiling.attached_tries import AttachedTries
from srifty.profiling.host_memory import available_bytes
from srifty.profiling.max_batch import HOST_RESERVE_SHARE, HOST_SHARE, MaxBatch, Search, on_the_cpu
from srifty.records import Job, JobProfile

_LONGEST_TIMED_SHARE = 0.1
"""Batches whose step takes more of the time of a run are not timed, but for the first three."""


def search_command(
    job: Job, *, folder: Path, max_batch: int | None, max_seconds: float, tell: Callable[[str], None]
) -> MaxBatch:
    """Search the largest batch of a command, and try each batch that is to be timed.

    Args:
        job: names the command, perhaps the batches to time and what caps a batch
        folder: where it runs
        max_batch: no larger one is tried; None: none above 65,536
        max_seconds: a try that takes longer counts as too slow [s]
        tell: called with what is done next

    Raises:
        NotMeasured: no batch fits; nothing stepped
        WorkloadFailed: the script failed, at whichever batch
        InvalidInput: its Python cannot be reached; a cap below what batch normalisation needs
    """
    available = available_bytes()
    tries = AttachedTries(
        job.command,
        folder,
        longest_s=max_seconds,
        host_limit_bytes=int(HOST_SHARE * available),
        host_reserve_bytes=int(HOST_RESERVE_SHARE * available),
    )
    search = Search(
        job=job,
        fits=tries,
        tell=tell,
        tried_by="three steps of the script at each tried batch",
        where="this machine",
        memory_bytes=None,
        called="--batch",
    )
    found = search.run(max_batch, _LONGEST_TIMED_SHARE * max_seconds)
    if tries.device != "cpu":
        return found
    first, *others = found.assumptions
    return replace(found, assumptions=(first, on_the_cpu(tries.host_limit_bytes), *others))


def with_max_batch(profile: JobProfile, searched: MaxBatch, largest_timed: int) -> JobProfile:
    """The profile with the largest batch that was found.

    Args:
        profile: of the batches that were timed
        searched: what was found
        largest_timed: what stood for {batch} in the last of the profile's timings
    """
    measured = profile.timings[-1].batch
    max_batch = max(measured, searched.batch * measured // largest_timed)
    notes = list(profile.assumptions)
    if max_batch != searched.batch:
        notes.append(
            f"max_batch is {max_batch} [samples of a micro-step on one GPU]: --batch {searched.batch} is {max_batch} "
            f"samples a micro-step"
        )
    return profile.model_copy(update={"max_batch": max_batch, "assumptions": tuple(notes)})
