"""srifty profile: measure a job on this machine's GPU, or on its CPU; a workload, or an unchanged training command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from srifty.cli.arguments import count
from srifty.cli.output import STANDARD_OUTPUT, checked_output, console, put, show, stdout_to_stderr
from srifty.errors import WorkloadFailed

if TYPE_CHECKING:
    from srifty.records import Job


def profile(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB.TOML | -- COMMAND...",
            help="The job.toml that names the workload or command; or, behind --, a training command as it is.",
        ),
    ],
    device: Annotated[
        str | None, typer.Option(help="cuda, cpu, ...; else the current accelerator or the CPU.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(help="Run the command once for each: 8,16,32 stand for {batch} in its arguments."),
    ] = None,
    samples_per_step: Annotated[
        str | None,
        typer.Option(help="Samples of one step of a command without {batch}; else it is seen in the data."),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Bound on each run of the command (default: 300).")
    ] = None,
    find_max_batch: Annotated[
        bool,
        typer.Option("--find-max-batch", help="Search the largest batch that fits, in fresh processes."),
    ] = False,
    max_batch: Annotated[
        int | None, typer.Option("--max-batch", min=1, help="Try no batch above so many samples on one GPU.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the profile here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The profile, as JSON, to standard output.")] = False,
) -> None:
    """Measure a job on this machine: step time against batch, gradient buckets, largest batch.

    A training command needs no change, and is stopped once enough steps were seen:

    srifty profile --batch 8,16,32 -o t4.profile.json -- python train.py --batch-size {batch}
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from srifty import verbs
    from srifty.reporting.profile_table import profile_table

    output = checked_output(output)  # before minutes of work are done for nothing
    job = _job(what, batch)
    samples = None if samples_per_step is None else count(samples_per_step, "--samples-per-step")
    screen = console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def on_progress(done: float, text: str) -> None:
            progress.update(task, completed=done, description=text)

        # What the training code prints must not mix with the record on standard output.
        failed = None
        with stdout_to_stderr():
            try:
                found = verbs.profile(
                    job,
                    device=device,
                    find_max_batch=find_max_batch,
                    max_batch=max_batch,
                    samples_per_step=samples,
                    max_seconds=max_seconds,
                    on_progress=on_progress,
                )
            except WorkloadFailed as error:
                failed = error
    if failed is not None:
        raise _with_partial(failed, output, as_json=json)
    put(found, output, as_json=json)
    show(profile_table(found, width=screen.width), output, as_json=json)


def _with_partial(error: WorkloadFailed, output: Path | None, *, as_json: bool) -> WorkloadFailed:
    """The failure, which says where the profile of what was measured before it has been put."""
    if error.partial is None:
        return error
    batches = [str(timing.batch) for timing in error.partial.timings]
    plural = "es" if len(batches) > 1 else ""
    kept = f"a profile of what was measured before, batch{plural} {', '.join(batches)}, "
    if output is None and not as_json:
        where = "can be had with -o FILE"
    else:
        put(error.partial, output, as_json=as_json)
        is_file = output is not None and output != STANDARD_OUTPUT
        where = f"is in {output}" if is_file else "is on standard output"
    return WorkloadFailed(
        f"{error}; {kept}{where}", workload_traceback=error.workload_traceback, partial=error.partial
    )


def _job(what: list[str], batch: str | None) -> Path | Job:
    """A file that describes the job, or the job that a command behind -- is."""
    from srifty.errors import InvalidInput
    from srifty.records import Job
    from srifty.records.files import checked

    if len(what) == 1 and what[0].endswith(".py"):
        raise InvalidInput(
            f"{what[0]} is a script: profile it as you start it, srifty profile -- python {what[0]}"
        )
    if Path(what[0]).suffix == ".sh" and Path(what[0]).exists() and not _is_program(what[0]):
        raise InvalidInput(
            f"{what[0]} is not executable: chmod +x {what[0]}, or srifty profile -- bash {what[0]}"
        )
    if len(what) == 1 and (what[0].endswith(".toml") or not _is_program(what[0])):
        if batch is not None:
            raise InvalidInput(
                "--batch is for a command behind --; in a job.toml write batches = [8, 16, 32]"
            )
        return Path(what[0])
    if what[0].endswith(".toml"):
        raise InvalidInput(f"{what[0]} and {what[1]!r}: give one job.toml, or one command behind --")
    batches = () if batch is None else tuple(count(one, "--batch") for one in batch.split(","))
    return checked(Job, name=_name(what), command=tuple(what), batches=batches)


def _is_program(word: str) -> bool:
    return shutil.which(word) is not None or (os.sep in word and os.access(word, os.X_OK))


def _name(command: list[str]) -> str:
    """The job's name: that of the script, or of the module behind -m, or else of the program."""
    for word in command:
        if word.endswith((".py", ".sh")):
            return Path(word).stem
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1].rpartition(".")[2]
    return Path(command[0]).stem
