"""Build the sample profiles that ship, so that a newcomer can plan without a GPU.

The step times were measured and published by others (one mean a batch); what a profile needs beyond them is
assumed, and each profile says so. Run again whenever a record or an assumption changes:

    python tools/build_sample_profiles.py [FOLDER] [-o FOLDER]

FOLDER holds `ddp_step_times/step_times.csv` and `repeated_configs.csv`; without it, $SRIFTY_DATA, or
`../shared/data` beside the repository.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist, median

from model_layers import MODELS, Layer
from srifty.records import BatchTiming, GradientBucket, Job, JobProfile, Spread
from srifty.records.files import write

REPOSITORY = Path(__file__).resolve().parent.parent
SHIPPED = REPOSITORY / "src" / "srifty" / "predicting" / "data"

BYTES_A_VALUE = 4  # fp32: parameters, gradients and optimizer state
BUCKET_LIMITS_BYTES = (1 << 20, 25 << 20)  # DDP's defaults: the first bucket, and every other
FLAT_EXPONENT = 0.3
NORMAL = NormalDist()


@dataclass(frozen=True)
class SampleJob:
    """A job whose steps were measured, and how its trainer was set (the training scripts of the source)."""

    name: str
    """Also the name of its model."""
    row_model: str
    """Its name in the table of step times."""
    min_batch: int
    optimizer_accesses: int
    """Values read and written for each parameter in one step of the optimizer."""
    optimizer_state_count: int
    """Values that the optimizer keeps for each parameter."""
    trained: str
    """How, in the words of the assumption."""


@dataclass(frozen=True)
class SampleGpu:
    """A GPU on which the jobs were measured."""

    name: str
    session: str
    """Its name in the table of step times."""
    memory_bytes: int
    """Nominal."""
    memory_bytes_per_s: float
    """Published bandwidth (NVIDIA's data sheets)."""
    hardware: str
    source: str
    published_year: int


# SGD with momentum reads parameter, gradient and momentum and writes two of them back; Adam reads four
# (parameter, gradient, two moments) and writes three. TF32: at 140 samples a second bert-base does
# 30e12 floating-point operations a second, beyond the A100's 19.5e12 in true fp32.
JOBS = (
    SampleJob(
        "bert-base",
        "bert",
        min_batch=1,
        optimizer_accesses=7,
        optimizer_state_count=2,
        trained="on SQuAD at 384 tokens a sample with AdamW, in fp32, which an A100 runs as TF32",
    ),
    SampleJob(
        "resnet18",
        "cifar10",
        min_batch=2,
        optimizer_accesses=5,
        optimizer_state_count=1,
        trained="on CIFAR-10, in the form for 32 x 32 pixels, with SGD and momentum, in fp32, which an A100 "
        "runs as TF32",
    ),
    SampleJob(
        "resnet50",
        "imagenet",
        min_batch=2,
        optimizer_accesses=5,
        optimizer_state_count=1,
        trained="on ImageNet at 224 x 224 pixels with SGD and momentum, in mixed precision (apex O1) with "
        "fp32 gradients",
    ),
)

GPUS = (
    SampleGpu(
        "A100",
        "dgx-ext",
        memory_bytes=40 << 30,
        memory_bytes_per_s=1555e9,
        hardware="one A100-40GB of a DGX A100",
        source="siasosp23/artifacts",
        published_year=2023,
    ),
    SampleGpu(
        "T4",
        "aws",
        memory_bytes=16 << 30,
        memory_bytes_per_s=320e9,
        hardware="one T4 of an AWS g4dn.12xlarge",
        source="petuum/adaptdl, osdi21-artifact",
        published_year=2021,
    ),
    SampleGpu(
        "V100",
        "azure",
        memory_bytes=32 << 30,
        memory_bytes_per_s=900e9,
        hardware="one V100-32GB of an Azure ND40rs_v2",
        source="siasosp23/artifacts",
        published_year=2023,
    ),
)


def sample_profiles(data: Path) -> dict[str, JobProfile]:
    """All sample profiles by the name of their file; the same rows give the same profiles."""
    step_rows = _rows(data / "ddp_step_times" / "step_times.csv")
    spread = step_spread(_rows(data / "ddp_step_times" / "repeated_configs.csv"))
    return {
        f"{job.name}.{gpu.name}.profile.json": _profile(
            job, gpu, _step_s_by_batch(step_rows, job, gpu), spread
        )
        for job in JOBS
        for gpu in GPUS
    }


def _profile(job: SampleJob, gpu: SampleGpu, step_s: Mapping[int, float], spread: float) -> JobProfile:
    layers = MODELS[job.name]()
    parameter_bytes = BYTES_A_VALUE * sum(sum(layer.parameter_counts) for layer in layers)
    optimizer_s = job.optimizer_accesses * parameter_bytes / gpu.memory_bytes_per_s
    return JobProfile(
        job=Job(name=job.name),
        gpu=gpu.name,
        gpu_memory_bytes=gpu.memory_bytes,
        max_batch=max(step_s),
        min_batch=job.min_batch,
        timings=tuple(_timing(batch, step_s[batch], optimizer_s, spread) for batch in sorted(step_s)),
        buckets=gradient_buckets(layers),
        trainable_bytes=parameter_bytes,
        total_bytes=parameter_bytes,
        checkpoint_bytes=(1 + job.optimizer_state_count) * parameter_bytes,
        assumptions=_assumptions(job, gpu, step_s, spread),
        hardware=f"{gpu.hardware} ({gpu.source})",
        taken_at=datetime(gpu.published_year, 1, 1, tzinfo=UTC),
    )


def _timing(batch: int, step_s: float, optimizer_s: float, spread: float) -> BatchTiming:
    """Phases of a step of which only the whole was measured.

        optimizer = accesses * parameter bytes / memory bandwidth
        forward   = (step - optimizer) / 3
        backward  = 2 * forward

    Backward takes twice forward, since it makes two gradients (input, weight) at forward's cost each.
    Assumes that the optimizer is bound by memory and reaches the published bandwidth.
    """
    forward_s = (step_s - optimizer_s) / 3
    return BatchTiming(
        batch=batch,
        forward_s=_log_normal(forward_s, spread),
        backward_s=_log_normal(2 * forward_s, spread),
        optimizer_s=_log_normal(optimizer_s, spread),
    )


def step_spread(repeated_rows: Sequence[Mapping[str, str]]) -> float:
    """Standard deviation of the log of a reading, from sample jobs measured twice on one GPU.

        spread = median |log(run1 / run2)| / sqrt(2) / 0.6745

    The root, since both runs vary; 0.6745 is the median of |z| for a standard normal z. The median, since a
    few readings are off by a quarter for reasons of their own.
    """
    models = {job.row_model for job in JOBS}
    differences = [
        abs(math.log(float(row["step_time_s_run1"]) / float(row["step_time_s_run2"])))
        for row in repeated_rows
        if row["num_replicas"] == "1" and row["model"] in models
    ]
    return median(differences) / math.sqrt(2) / NORMAL.inv_cdf(0.75)


def gradient_buckets(layers: Sequence[Layer]) -> tuple[GradientBucket, ...]:
    """DDP's gradient buckets in the order of their exchange.

    Gradients arrive in reverse order of use. Each joins the open bucket, which closes once its size reaches
    its limit: 1 MiB for the first, 25 MiB for the others. A bucket is ready with its last gradient, by the
    share of the backward pass's arithmetic that is then done.

    Source: `torch.distributed._compute_bucket_assignment_by_size`, which DDP applies to the order of arrival
    after the first step; real DDP made these very sizes for all three models (torch 2.13, gloo).
    """
    whole_work = sum(layer.backward_work for layer in layers)
    buckets: list[GradientBucket] = []
    work, open_bytes = 0, 0
    for layer in reversed(layers):
        work += layer.backward_work
        for count in reversed(layer.parameter_counts):
            open_bytes += BYTES_A_VALUE * count
            if open_bytes >= BUCKET_LIMITS_BYTES[min(len(buckets), 1)]:
                buckets.append(_bucket(open_bytes, work / whole_work))
                open_bytes = 0
    if open_bytes:
        buckets.append(_bucket(open_bytes, work / whole_work))
    return tuple(buckets)


def _assumptions(
    job: SampleJob, gpu: SampleGpu, step_s: Mapping[int, float], spread: float
) -> tuple[str, ...]:
    said = [
        f"Step times on the {gpu.name} are others' ({gpu.source}; {gpu.published_year}): at each batch a "
        "mean of steps 5 to 20 on one GPU, without fetching the batch, with their trainer's gradient "
        "statistics.",
        f"{job.name} was trained {job.trained}.",
        f"The optimizer takes {BYTES_A_VALUE * job.optimizer_accesses} bytes a parameter at the memory's "
        "published rate; the rest of the step is split 1 : 2 into forward and backward.",
        f"Steps vary by {100 * spread:.1f} % (log-normal, one standard deviation), as readings repeated on "
        "an A100 did; the readings themselves carry no spread.",
        "Gradient buckets follow DDP's default rule; each is ready by its share of the backward pass's "
        "arithmetic, which was counted, not timed.",
        f"No batch above {max(step_s)} was measured for {job.name} on the {gpu.name}; more may fit.",
    ]
    batches = sorted(step_s)
    flat_until = flat_to(step_s)
    if flat_until > batches[0]:
        said.append(
            f"From batch {batches[0]} to {flat_until} the step of {job.name} on the {gpu.name} hardly grows: "
            "the host seems to set the pace there, and another host may differ."
        )
    said += [
        f"{job.name} on the {gpu.name} was read as faster at batch {larger} than at {smaller}; both stand "
        "as they were read."
        for smaller, larger in pairwise(batches)
        if step_s[larger] < step_s[smaller]
    ]
    return tuple(said)


def flat_to(step_s: Mapping[int, float]) -> int:
    """The largest batch up to which the step hardly grows; the smallest one where it grows at once.

    Hardly: step time ~ batch^0.3 or less from each reading to the next. A GPU at work gives an exponent near
    1, a host that cannot issue its work faster one near 0.
    """
    batches = sorted(step_s)
    for smaller, larger in pairwise(batches):
        if math.log(step_s[larger] / step_s[smaller]) > FLAT_EXPONENT * math.log(larger / smaller):
            return smaller
    return batches[-1]


def _log_normal(median_s: float, spread: float) -> Spread:
    """Spread of a duration whose logarithm is normal; one reading stands behind it."""
    tenth = math.exp(NORMAL.inv_cdf(0.1) * spread)
    return Spread(
        p10=_rounded(median_s * tenth),
        p50=_rounded(median_s),
        p90=_rounded(median_s / tenth),
        mean=_rounded(median_s * math.exp(spread**2 / 2)),
        sample_count=1,
    )


def _rounded(seconds: float) -> float:
    return round(seconds, 8)  # to 10 ns: far below the noise, and the files stay short


def _bucket(gradient_bytes: int, ready_at: float) -> GradientBucket:
    return GradientBucket(gradient_bytes=gradient_bytes, ready_at=round(ready_at, 4))


def _step_s_by_batch(rows: Sequence[Mapping[str, str]], job: SampleJob, gpu: SampleGpu) -> dict[int, float]:
    readings = [
        (int(float(row["batch_per_gpu_samples"])), float(row["step_time_s"]))
        for row in rows
        if (row["model"], row["session"], row["num_replicas"]) == (job.row_model, gpu.session, "1")
    ]
    step_s = dict(readings)
    assert len(step_s) == len(readings) > 0, f"one reading a batch expected for {job.name} on {gpu.name}"
    return step_s


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def data_folder() -> Path:
    """Where the measured rows are unless the caller says otherwise."""
    return Path(os.environ.get("SRIFTY_DATA") or REPOSITORY.parent / "shared" / "data")


def main() -> None:
    """Read the rows, write the profiles."""
    parser = argparse.ArgumentParser(description="Build the sample profiles that ship.")
    parser.add_argument("data", nargs="?", type=Path, default=data_folder(), help="folder of measured rows")
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED, help="folder to write to")
    arguments = parser.parse_args()
    if not (arguments.data / "ddp_step_times").is_dir():
        parser.error(f"{arguments.data} holds no folder ddp_step_times")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, profile in sample_profiles(arguments.data).items():
        write(profile, arguments.output / name)
        print(f"{name}: {len(profile.timings)} batches, {len(profile.buckets)} buckets")


if __name__ == "__main__":
    main()
