"""srifty profile: measure a job on this machine's GPU, or on its CPU."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from srifty.cli.output import console, put


def profile(
    job: Annotated[Path, typer.Argument(help="The job.toml that names the workload.")],
    device: Annotated[
        str | None, typer.Option(help="cuda, cpu, ...; else the current accelerator or the CPU.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the profile here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The profile, as JSON, to standard output.")] = False,
) -> None:
    """Measure a job on this machine: step time against batch, gradient buckets, largest batch."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from srifty import verbs
    from srifty.reporting.profile_table import profile_table

    screen = console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def on_progress(done: float, text: str) -> None:
            progress.update(task, completed=done, description=text)

        # What the training code prints must not mix with the record on standard output.
        with redirect_stdout(sys.stderr):
            found = verbs.profile(job, device=device, on_progress=on_progress)
    screen.print(profile_table(found))
    put(found, output, as_json=json)
