"""srifty probe: measure AllReduce between the ranks that torchrun started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from srifty.cli.output import checked_output, console, put, show

OWN_RANK = "SRIFTY_OWN_RANK"
"""Set for the ranks that --ranks started."""


def probe(
    instance_type: Annotated[
        str | None,
        typer.Option(help="Of these machines, as offers call it, so that plans find what was measured."),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="nccl or gloo; else nccl where each rank has a GPU.")
    ] = None,
    max_seconds: Annotated[
        float, typer.Option(help="Bound on the measuring, and so on what the machines cost.")
    ] = 120.0,
    max_mib: Annotated[int, typer.Option("--max-mib", min=1, help="Largest message [MiB].")] = 256,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="Start that many ranks here, where torchrun did not.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Rank 0 writes here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="To standard output, as JSON.")] = False,
) -> None:
    """Measure AllReduce between machines: sizes of message, numbers of nodes and GPUs.

    torchrun --nproc-per-node 4 -m srifty probe -o net.json

    Every machine runs the same command, with torchrun's --nnodes and --rdzv-endpoint. It chooses what to measure
    and stops by itself.
    """
    from srifty import verbs

    if OWN_RANK in os.environ:
        _end_quietly()
    elif ranks is not None:
        checked_output(output)
        _start_ranks(ranks, backend, max_seconds)
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first:
        output = checked_output(output)
    with contextlib.ExitStack() as stack:
        on_progress = stack.enter_context(_progress()) if is_first else None
        found = verbs.probe(
            instance_type=instance_type,
            backend=backend,
            max_seconds=max_seconds,
            max_message_bytes=max_mib * 2**20,
            on_progress=on_progress,
        )
    if found is None:
        return
    from srifty.reporting.network_table import network_table

    put(found, output, as_json=json)
    show(network_table(found, width=console().width), output, as_json=json)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[float, str], None]]:
    """A bar of the time that is used up, and what is being measured."""
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description}"), BarColumn(), console=console(), transient=True
    ) as progress:
        task = progress.add_task("waiting for all ranks", total=1.0)

        def on_progress(done: float, text: str) -> None:
            progress.update(task, completed=done, description=text)

        yield on_progress


def _start_ranks(count: int, backend: str | None, max_seconds: float) -> NoReturn:
    """Run this very command in so many ranks, and end as they do."""
    from srifty import verbs
    from srifty.errors import InvalidInput

    started = next((name for name in ("WORLD_SIZE", "RANK") if name in os.environ), None)
    if started is not None:
        raise InvalidInput(
            f"--ranks starts the ranks, but {started}={os.environ[started]} says that another launcher has; "
            f"leave out --ranks, or torchrun"
        )
    os.environ[OWN_RANK] = "1"
    for name, value in (("OMP_NUM_THREADS", "1"), ("TORCH_CPP_LOG_LEVEL", "ERROR")):
        os.environ.setdefault(name, value)
    sys.stdout.flush()
    raise typer.Exit(verbs.start_ranks(count, sys.argv[1:], backend=backend, max_seconds=max_seconds))


def _end_quietly() -> None:
    """On a signal, leave the last word to the program that started the ranks."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
