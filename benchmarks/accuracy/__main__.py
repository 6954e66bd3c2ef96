"""Print predicted against measured: `python -m benchmarks.accuracy`."""

from __future__ import annotations

import platform
from datetime import date

import srifty
from benchmarks.accuracy import (
    compute_curves,
    exchange_efficiency,
    exchanges,
    gpu_scaling,
    step_splits,
    step_times,
)
from benchmarks.accuracy.measured import data_folder


def main() -> None:
    """All tables, as Markdown."""
    folder = data_folder()
    print(
        f"Srifty {srifty.__version__}, {date.today()}, Python {platform.python_version()}, {platform.machine()}"
    )
    print("\n## Step time of several GPUs, from the curve of one\n")
    print(step_times.report(folder))
    print("\n## Step time learned from other steps\n")
    of = step_splits.sessions(folder)
    held_out = list(step_splits.parts(of))
    ours = step_splits.scores(held_out, step_splits.step_model)
    print(step_splits.report(held_out, ours, of))
    print("\n## Step time learned from other steps, by job\n")
    print(step_splits.report_by_job(ours))
    print("\n## Step time of a job of unknown bytes, from one GPU and another machine\n")
    lent = step_splits.scores(list(step_splits.bytes_elsewhere(of)), step_splits.step_model)
    print(step_splits.report_by_job(lent))
    print("\n## Step time of one GPU at a batch that was not measured\n")
    print(compute_curves.report(folder))
    print("\n## Step time on a GPU that was not measured\n")
    print(gpu_scaling.report(folder))
    print("\n## Share of a nominal rate that an exchange gets\n")
    print(exchange_efficiency.report(folder))
    print("\n## Exchange on a size of cluster that was not measured\n")
    print(exchanges.report(folder))


if __name__ == "__main__":
    main()
