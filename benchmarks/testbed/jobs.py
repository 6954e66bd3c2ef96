"""Jobs of the testbed: shipped profiles, scaled down, and measured anew on the device that emulates them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from srifty import profile
from srifty.predicting.samples import sample_profiles
from srifty.records import Job, JobProfile
from srifty.records.emulated_job import EmulatedJob
from srifty.records.files import write

SCALE = 1 / 8
"""Of bytes and of times: a step on links of 1 Gbit/s has the proportions of one on 8 Gbit/s."""
_MODULE = """
from pathlib import Path
from srifty.profiling.emulated_model import EmulatedDevice, emulated_workload
from srifty.records.emulated_job import EmulatedJob
from srifty.records.files import read


def make():
    job = read(Path(__file__).parent / "emulated.json", EmulatedJob)
    return emulated_workload(job, EmulatedDevice(speed={speed}))
"""


def emulated(sample: str, gpu: str, *, scale: float = SCALE) -> EmulatedJob:
    """The job of a shipped profile, as a device that sleeps emulates it."""
    (found,) = [one for one in sample_profiles(sample) if one.gpu == gpu]
    return EmulatedJob.of(found, scale=scale)


def profiled(job: EmulatedJob, batches: tuple[int, ...], *, speed: float, gpu: str) -> JobProfile:
    """What `srifty profile` measures of the job on a device of that speed, under the name `gpu`."""
    with tempfile.TemporaryDirectory(prefix="srifty-emulated-") as folder:
        write(job, Path(folder) / "emulated.json")
        (Path(folder) / "emulated_job.py").write_text(_MODULE.format(speed=speed), encoding="utf-8")
        text = (
            f'name = "{job.name}"\nworkload = "emulated_job:make"\nbatches = {list(batches)}\n'
            f"sample_count = 1000000\n"
        )
        (Path(folder) / "job.toml").write_text(text, encoding="utf-8")
        measured = profile(Path(folder) / "job.toml", device="cpu")
    named = Job(name=job.name, sample_count=1_000_000)
    return measured.model_copy(update={"gpu": gpu, "job": named})
