"""The measured data that accuracy is checked against: published by others, named in each row's source."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

from srifty.records import StepTiming

GRADIENT_BYTES = {"bert": 438_000_000, "cifar10": 44_700_000, "imagenet": 102_200_000, "yolov3": 248_000_000}
"""fp32, as stated with the data; deepspeech2 and ncf are not stated."""

WILD = {("azure", "imagenet"), ("azure", "ncf"), ("azure", "yolov3")}
"""Host- or loader-bound rows: reported, but not counted in the means."""


@dataclass(frozen=True)
class Measured:
    """One measured step, and the measuring session that it is from."""

    session: str
    step: StepTiming


def data_folder() -> Path:
    """$SRIFTY_DATA, else `../shared/data` beside the repository.

    Raises:
        SystemExit: the folder is not there; without the data there is nothing to compare with
    """
    repository = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("SRIFTY_DATA") or repository.parent / "shared" / "data")
    if not (folder / "ddp_step_times").is_dir():
        raise SystemExit(
            f"no measured data in {folder}: set SRIFTY_DATA to the folder that holds ddp_step_times/"
        )
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a table by column name."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def step_timings(folder: Path) -> list[Measured]:
    """All measured DDP steps; an empty layout is an even split over the nodes."""
    found = []
    for row in read_csv(folder / "ddp_step_times" / "step_times.csv"):
        nodes, gpus = int(row["num_nodes"]), int(row["num_replicas"])
        even = tuple(gpus // nodes + (node < gpus % nodes) for node in range(nodes))
        layout = (
            tuple(int(part) for part in row["gpus_per_node"].split("+")) if row["gpus_per_node"] else even
        )
        step = StepTiming(
            job=row["model"],
            gpu=row["gpu"],
            instance_type=row["vm_type"],
            layout=layout,
            batch_per_gpu=int(float(row["batch_per_gpu_samples"])),
            step_s=float(row["step_time_s"]),
            exposed_allreduce_s=float(row["exposed_sync_time_s"]),
            gradient_bytes=GRADIENT_BYTES.get(row["model"]),
        )
        found.append(Measured(session=row["session"], step=step))
    return found
