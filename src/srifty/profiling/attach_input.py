"""What a user asks of a command, found to be usable before minutes of work are done for nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from srifty.errors import InvalidInput
from srifty.profiling.attached_run import PLACE


def check_command(command: Sequence[str], folder: Path) -> None:
    """Refuse a command that cannot be started in the folder.

    Raises:
        InvalidInput: there is none, or no such program or folder
    """
    if not command:
        raise InvalidInput("the job names no command: give one behind --, such as -- python train.py")
    if not folder.is_dir():
        raise InvalidInput(f"no folder {folder}, where the command was to run")
    program = command[0] if os.sep not in command[0] else str(folder / command[0])
    if shutil.which(program) is None:
        raise InvalidInput(f"command not found: {command[0]!r} is no program on PATH, nor one in {folder}")


def check_search(
    command: Sequence[str], batches: Sequence[int], find_max_batch: bool, max_batch: int | None
) -> None:
    """Refuse a search, or a cap of the batches, that cannot be.

    Raises:
        InvalidInput: no place for a batch in the command; a cap below all batches
    """
    if not _has_place(command):
        raise InvalidInput(
            f"{'--find-max-batch' if find_max_batch else '--max-batch'} needs a place for the batch in the command: "
            f"write for example --batch-size {PLACE}"
        )
    if max_batch is not None and max_batch < 1:
        raise InvalidInput(f"max_batch is {max_batch}: expected at least 1 [samples]")
    if max_batch is not None and not find_max_batch and batches and min(batches) > max_batch:
        raise InvalidInput(f"batches are {sorted(batches)}: all are above max_batch, {max_batch} [samples]")


def check_numbers(
    command: Sequence[str],
    batches: Sequence[int],
    samples_per_step: int | None,
    max_seconds: float,
    find_max_batch: bool,
) -> None:
    """Refuse numbers that the command has no use for.

    Raises:
        InvalidInput: batches without a place for them, or the reverse; what must be above 0 and is not
    """
    if batches and not _has_place(command):
        raise InvalidInput(
            f"batches {', '.join(map(str, batches))} are asked for, but no argument of the command holds {PLACE}: "
            f"write for example --batch-size {PLACE}, or leave --batch out"
        )
    if _has_place(command) and not batches and not find_max_batch:
        raise InvalidInput(
            f"the command holds {PLACE}: say which batches, for example --batch 8,16,32, or --find-max-batch"
        )
    if samples_per_step is not None and (len(set(batches)) > 1 or find_max_batch):
        raise InvalidInput("--samples-per-step is for a command without {batch}; leave one of the two out")
    for name, value in (("--samples-per-step", samples_per_step), ("--max-seconds", max_seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise InvalidInput(f"{name} is {value}: it must be above 0")


def _has_place(command: Sequence[str]) -> bool:
    return any(PLACE in argument for argument in command)
