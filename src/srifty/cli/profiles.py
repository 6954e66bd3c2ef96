"""Which profiles a command works on: files that were named, or the samples that ship."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from srifty.errors import InvalidInput
from srifty.records.job_profile import JobProfile


def chosen_profiles(files: Sequence[Path] | None, sample: str | None) -> tuple[JobProfile, ...]:
    """The profiles of the files, or of the sample."""
    from srifty import verbs
    from srifty.records.files import read

    if files and sample is not None:
        raise InvalidInput("give profiles or --sample, not both: a plan is for one job")
    if sample is not None:
        return verbs.sample_profiles(sample)
    if not files:
        raise InvalidInput(
            "give the job's profiles (srifty profile job.toml -o t4.profile.json makes one), or try "
            "--sample resnet50"
        )
    return tuple(read(file, JobProfile) for file in files)
