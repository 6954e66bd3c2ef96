"""Where a verb's answer goes: the record to standard output or a file, the table to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from srifty.records.record import Record

STANDARD_OUTPUT = Path("-")
_HEAD_BYTES = 200
NARROWEST = 40
"""Columns below which a terminal is taken not to say how wide it is."""


def put(record: Record, output: Path | None, *, as_json: bool = False) -> None:
    """Write a record where it was asked for.

    Without -o it goes to standard output, unless that is a terminal: there the table says it better, and
    --json prints the record all the same.
    """
    from srifty.records.files import to_json, write

    to_stream = as_json or output == STANDARD_OUTPUT or (output is None and not _is_terminal())
    if output is not None and output != STANDARD_OUTPUT:
        write(record, output)
    if to_stream and sys.stdout is not None:
        sys.stdout.write(to_json(record))
        sys.stdout.flush()


def put_json(content: dict[str, Any], output: Path) -> None:
    """Write what is no record, such as a trace for another program, as JSON."""
    import json

    put_text(json.dumps(content, ensure_ascii=False) + "\n", output)


def put_text(text: str, output: Path | None) -> None:
    """Write text that is no record, such as a table, to standard output or a file."""
    from srifty.records.files import write_text

    if output is not None and output != STANDARD_OUTPUT:
        write_text(text, output)
    elif sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


def show(table: RenderableType, output: Path | None = None, *, as_json: bool = False) -> None:
    """Show a person what was found, after it was put where it belongs: a lost terminal loses no record."""
    with contextlib.suppress(OSError, ValueError):
        screen = console()
        screen.print(table)
        if output is not None and output != STANDARD_OUTPUT:
            screen.print(f"written to {output}", markup=False)
        elif output is None and not as_json and _is_terminal():
            screen.print("not saved: -o FILE keeps it, --json prints it")


def checked_output(output: Path | None, *, is_record: bool = True) -> Path | None:
    """The file to write, whatever becomes of the working folder, found to be writable before the work is done.

    Args:
        output: what the user asked for
        is_record: whether a record goes there: then a file that holds none, perhaps the user's script, is kept
    """
    from srifty.errors import InvalidInput
    from srifty.records.files import check_writable

    if output is None or output == STANDARD_OUTPUT:
        return output
    output = output.absolute()
    if is_record and output.is_file() and output.stat().st_size > 0:
        with output.open("rb") as file:
            if b'"format": "srifty/' not in file.read(_HEAD_BYTES):
                raise InvalidInput(
                    f"{output} is there already and is no file of Srifty's: remove it, or give another name"
                )
    check_writable(output)
    return output


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Whatever is printed meanwhile, by Python, by a library or by a child process, goes to standard error."""
    if sys.stdout is None or sys.stderr is None:
        yield
        return
    try:
        out, err = sys.stdout.fileno(), sys.stderr.fileno()
    except (OSError, ValueError):  # streams of a test or a notebook have no number
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    kept = os.dup(out)
    os.dup2(err, out)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, out)
        os.close(kept)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def console() -> Console:
    """The terminal, for people; standard error, so that standard output holds the record alone."""
    from rich.console import Console

    screen = Console(stderr=True, highlight=False)
    if screen.width < NARROWEST:
        screen = Console(stderr=True, highlight=False, width=NARROWEST)
    return screen
