"""The sample profiles that ship: well-known jobs on well-known GPUs, so that one can plan without a GPU.

Each says what was measured and what was assumed; `tools/build_sample_profiles.py` makes them. For a job of
your own, `srifty profile` measures.
"""

from __future__ import annotations

from importlib.resources import files

from srifty.errors import InvalidInput
from srifty.records import JobProfile
from srifty.records.files import from_json

_ENDING = ".profile.json"


def sample_names() -> tuple[str, ...]:
    """Names of the sample jobs, in alphabetical order."""
    return tuple(sorted({_job_of(file_name) for file_name in _file_names()}))


def sample_profiles(job: str) -> tuple[JobProfile, ...]:
    """A sample job's profiles, one a kind of GPU, by the GPU's name.

    Raises:
        InvalidInput: there is no sample of that name
    """
    file_names = [file_name for file_name in _file_names() if _job_of(file_name) == job]
    if not file_names:
        raise InvalidInput(f"there is no sample job {job!r}; known are {', '.join(sample_names())}")
    folder = files("srifty.predicting") / "data"
    profiles = [
        from_json((folder / file_name).read_text(encoding="utf-8"), JobProfile, name=file_name)
        for file_name in file_names
    ]
    return tuple(sorted(profiles, key=lambda profile: profile.gpu))


def _file_names() -> list[str]:
    folder = files("srifty.predicting") / "data"
    return [entry.name for entry in folder.iterdir() if entry.name.endswith(_ENDING)]


def _job_of(file_name: str) -> str:
    """`resnet50` of `resnet50.T4.profile.json`."""
    return file_name.removesuffix(_ENDING).rpartition(".")[0]
