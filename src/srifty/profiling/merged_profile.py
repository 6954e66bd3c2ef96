"""Merged profile: a batch measured anew, put into the profile of the same job that a file holds already."""

from __future__ import annotations

from collections.abc import Iterable

from srifty.errors import InvalidInput
from srifty.records import Job, JobProfile
from srifty.records.job_profile import ContentTiming

_ALIKE = ("gpu", "hardware", "precision", "trainable_bytes", "total_bytes")
"""What two profiles of one job on one machine have in common."""
_OF_LARGEST = "max_batch is "
"""How the note begins that is about the largest batch alone."""


def same_job(before: JobProfile, job: Job, name: str) -> None:
    """Refuse a file of another job.

    Raises:
        InvalidInput: it is one
    """
    if before.job != job:
        what = f"job {before.job.name!r}, and not {job.name!r}"
        if before.job.name == job.name:
            what = f"job {job.name!r} as another way of profiling measured it"
        raise _refused(name, what)


def merged(before: JobProfile, now: JobProfile, name: str) -> JobProfile:
    """The profile with one more batch, or with a batch measured anew.

    What does not depend on the batch is that of the largest one.

    Args:
        before: what the file holds
        now: of one batch
        name: of the file, for messages

    Raises:
        InvalidInput: the two are not of one job on one kind of machine
    """
    same_job(before, now.job, name)
    if before.estimated_from is not None:
        raise _refused(name, f"a profile that is only estimated, from {before.estimated_from}")
    for field in _ALIKE:
        old, new = getattr(before, field), getattr(now, field)
        if old != new:
            raise _refused(name, f"a profile whose {field} is {old!r}, and this one's is {new!r}")
    old, new = before.versions.get("torch"), now.versions.get("torch")
    if old != new:
        raise _refused(name, f"a profile by torch {old}, and this is torch {new}")
    anew = {timing.batch for timing in now.timings}
    timings = sorted(
        [*(timing for timing in before.timings if timing.batch not in anew), *now.timings],
        key=lambda timing: timing.batch,
    )
    largest = now if now.max_batch >= before.max_batch else before
    return largest.model_copy(
        update={
            "timings": tuple(timings),
            "max_batch": timings[-1].batch,
            "min_batch": min(max(before.min_batch, now.min_batch), timings[-1].batch),
            "content_timings": (*_others(before.content_timings, anew), *now.content_timings),
            "assumptions": _assumptions(before, now, largest, anew),
            "taken_at": now.taken_at,
        }
    )


def _assumptions(before: JobProfile, now: JobProfile, largest: JobProfile, anew: set[int]) -> tuple[str, ...]:
    """Notes of both, without those of a batch that was measured anew."""
    gone = tuple(f"batch {batch}: " for batch in anew)
    kept = [note for note in before.assumptions if not note.startswith(gone)]
    told = [*kept, *now.assumptions]
    told = [note for note in told if not note.startswith(_OF_LARGEST) or note in largest.assumptions]
    return tuple(dict.fromkeys(told))


def _others(timings: Iterable[ContentTiming], anew: set[int]) -> list[ContentTiming]:
    return [timing for timing in timings if timing.batch not in anew]


def _refused(name: str, what: str) -> InvalidInput:
    return InvalidInput(f"{name} holds {what}; give another path, or remove the file")
