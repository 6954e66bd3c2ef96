"""Where a verb's answer goes: the record to standard output or a file, the table to standard error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from srifty.records.record import Record


def put(record: Record, output: Path | None, *, as_json: bool = False) -> None:
    """Write a record where it was asked for.

    Without -o it goes to standard output, unless that is a terminal: there the table says it better, and
    --json prints the record all the same.
    """
    from srifty.records.files import to_json, write

    if output is not None:
        write(record, output)
    if as_json or (output is None and not sys.stdout.isatty()):
        sys.stdout.write(to_json(record))
        sys.stdout.flush()


def console() -> Console:
    """The terminal, for people; standard error, so that standard output holds the record alone."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)
