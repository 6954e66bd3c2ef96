"""Measured steps, and grids of steps to be told, as CSV files that people write and spreadsheets save.

A file is refused whole, with the line, the value and what to do, rather than learned from in part: one row in
milliseconds among rows in seconds would spoil everything that is learned.
"""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from srifty.errors import InvalidInput
from srifty.records.files import read_text
from srifty.records.step_table import StepEstimates, StepGrid, StepTable

GRID_COLUMNS = ("job", "gpu", "instance_type", "layout", "batch_per_gpu")
STEP_COLUMNS = (*GRID_COLUMNS, "step_s")
OPTIONAL_COLUMNS = ("exposed_allreduce_s", "gradient_bytes")
ESTIMATE_COLUMNS = ("mean_s", "p10_s", "p50_s", "p90_s", "extrapolated")
GAP = 200.0
"""A factor between neighbouring step times of one job that no batch and no layout makes; milliseconds do."""
MOST_GPUS = 2**20
BYTES_AGREE = 1.01

Row = tuple[int, dict[str, str]]
"""A line's number and its values by column."""


@dataclass(frozen=True)
class GridFile:
    """A grid as it stands in its file, so that each row can be written back with its estimate."""

    columns: tuple[str, ...]
    values: tuple[dict[str, str], ...]
    grid: StepGrid

    def with_estimates(self, estimates: StepEstimates) -> str:
        """The rows as CSV text, each with what was estimated of it."""
        text = io.StringIO()
        own = [column for column in self.columns if column not in ESTIMATE_COLUMNS]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*own, *ESTIMATE_COLUMNS])
        columns = (estimates.mean_s, estimates.p10_s, estimates.p50_s, estimates.p90_s)
        times = zip(*(column.tolist() for column in columns), strict=True)
        for row, seconds, outside in zip(self.values, times, estimates.extrapolated, strict=True):
            writer.writerow([*(row[c] for c in own), *(f"{each:.6g}" for each in seconds), outside])
        return text.getvalue()


def read_steps(path: str | os.PathLike[str]) -> StepTable:
    """Read measured steps: `job,gpu,instance_type,layout,batch_per_gpu,step_s[,exposed_allreduce_s][,gradient_bytes]`.

    Rows that repeat a configuration are repeated readings; rows that repeat it to the last digit count once.

    Raises:
        InvalidInput: no such file, a column is missing, a value is not allowed (with its line), seconds and
            milliseconds are mixed, a job has two sizes, there are fewer than two rows
    """
    import numpy as np

    _, rows = _read(path, STEP_COLUMNS)
    once = {
        tuple(row.get(c, "") for c in (*STEP_COLUMNS, *OPTIONAL_COLUMNS)): (n, row) for n, row in rows[::-1]
    }
    rows = sorted(once.values(), key=lambda each: each[0])
    if len(rows) < 2:
        raise InvalidInput(
            f"{path} holds one measured step; at least two are needed to learn from: a job on one GPU (layout 1) at "
            f"two batches, and better also on several GPUs (1+1, 1+1+1)"
        )
    step_s = np.array([_seconds(path, n, row, "step_s") for n, row in rows])
    exposed_s = np.array([_optional(path, n, row, "exposed_allreduce_s") for n, row in rows])
    for (n, row), step, exposed in zip(rows, step_s.tolist(), exposed_s.tolist(), strict=True):
        if exposed > step:
            raise InvalidInput(
                f"{path}, line {n}: exposed_allreduce_s is {row['exposed_allreduce_s']}, longer than the whole step, "
                f"{row['step_s']} [s]; are both in seconds?"
            )
    grid = _grid(path, rows)
    _check_units(path, [n for n, _ in rows], grid, step_s.tolist())
    return StepTable(grid, step_s, exposed_s)


def read_grid(path: str | os.PathLike[str]) -> GridFile:
    """Read a grid of steps to be told: `job,gpu,instance_type,layout,batch_per_gpu[,gradient_bytes]`.

    Other columns are kept and written back as they stand.

    Raises:
        InvalidInput: as `read_steps`
    """
    columns, rows = _read(path, GRID_COLUMNS)
    return GridFile(columns, tuple(row for _, row in rows), _grid(path, rows))


def _read(path: str | os.PathLike[str], required: Sequence[str]) -> tuple[tuple[str, ...], list[Row]]:
    """Columns, and rows with their line numbers; empty lines are passed over."""
    lines = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        heading = next(lines, None)
        if not heading or not any(cell.strip() for cell in heading):
            raise InvalidInput(f"{path} is empty; its first line names the columns: {','.join(required)}")
        columns = tuple(cell.strip() for cell in heading)
        _check_columns(path, columns, required)
        rows = list(_rows(path, lines, columns))
    except csv.Error as error:
        raise InvalidInput(f"{path}, line {lines.line_num} is not CSV: {error}") from None
    if not rows:
        raise InvalidInput(f"{path} has a heading and no row")
    return columns, rows


def _rows(
    path: str | os.PathLike[str], lines: Iterator[list[str]], columns: tuple[str, ...]
) -> Iterator[Row]:
    for cells in lines:
        number: int = lines.line_num  # type: ignore[attr-defined]
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(columns):
            raise InvalidInput(
                f"{path}, line {number} has {len(cells)} values, but the heading names {len(columns)} columns; "
                f"write a value that holds a comma in quotes"
            )
        yield number, {column: cell.strip() for column, cell in zip(columns, cells, strict=True)}


def _check_columns(path: str | os.PathLike[str], columns: tuple[str, ...], required: Sequence[str]) -> None:
    twice = next((column for column in columns if column and columns.count(column) > 1), None)
    if twice:
        raise InvalidInput(f"{path} names column {twice!r} twice")
    missing = [column for column in required if column not in columns]
    others = [column for column in columns if column not in (*required, *OPTIONAL_COLUMNS, *ESTIMATE_COLUMNS)]
    if missing:
        if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
            raise InvalidInput(f"{path} is not separated by commas; save it as CSV with commas")
        near = difflib.get_close_matches(missing[0], others, n=1, cutoff=0.6)
        hint = f" (is {near[0]!r} meant?)" if near else ""
        raise InvalidInput(
            f"{path} has no column {', '.join(map(repr, missing))}{hint}; needed are {','.join(required)}"
        )
    for column in others:
        near = difflib.get_close_matches(column, OPTIONAL_COLUMNS, n=1, cutoff=0.8)
        if near and near[0] not in columns:
            raise InvalidInput(f"{path} has an unknown column {column!r}; is {near[0]!r} meant?")


def _grid(path: str | os.PathLike[str], rows: list[Row]) -> StepGrid:
    import numpy as np

    for n, row in rows:
        for column in ("job", "gpu", "instance_type"):
            if not row[column]:
                raise InvalidInput(f"{path}, line {n}: {column} is empty")
    gradient_bytes = [_optional(path, n, row, "gradient_bytes") for n, row in rows]
    sizes: dict[str, tuple[int, float]] = {}
    for (n, row), size in zip(rows, gradient_bytes, strict=True):
        if not math.isnan(size) and size < 1:
            raise InvalidInput(
                f"{path}, line {n}: gradient_bytes is {row['gradient_bytes']}; leave it empty if unknown"
            )
        if math.isnan(size):
            continue
        line, known = sizes.setdefault(row["job"], (n, size))
        if max(size, known) > BYTES_AGREE * min(size, known):
            raise InvalidInput(
                f"{path}: gradient_bytes of job {row['job']!r} is {known:.0f} in line {line} and {size:.0f} in "
                f"line {n}; give jobs of different size different names"
            )
    return StepGrid(
        job=tuple(row["job"] for _, row in rows),
        machine=tuple((row["instance_type"], row["gpu"]) for _, row in rows),
        layout=tuple(_layout(path, n, row["layout"]) for n, row in rows),
        batch_per_gpu=np.array([_batch(path, n, row["batch_per_gpu"]) for n, row in rows], np.int64),
        gradient_bytes=np.array(gradient_bytes, float),
    )


def _layout(path: str | os.PathLike[str], line: int, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split("+")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 6 and int(part) >= 1 for part in parts):
        raise InvalidInput(
            f"{path}, line {line}: layout is {text!r}; it must be the GPUs used on each node, such as 4+4+2"
        )
    layout = tuple(int(part) for part in parts)
    if sum(layout) > MOST_GPUS:
        raise InvalidInput(
            f"{path}, line {line}: layout {text!r} has {sum(layout)} GPUs; at most {MOST_GPUS}"
        )
    return layout


def _batch(path: str | os.PathLike[str], line: int, text: str) -> int:
    value = _number(path, line, "batch_per_gpu", text)
    if value != int(value) or not 1 <= value <= 2**53:
        raise InvalidInput(
            f"{path}, line {line}: batch_per_gpu is {text}; it must be a whole number from 1 [samples]"
        )
    return int(value)


def _seconds(path: str | os.PathLike[str], line: int, row: dict[str, str], column: str) -> float:
    value = _number(path, line, column, row[column])
    if not 0 < value <= 1e7:
        raise InvalidInput(f"{path}, line {line}: {column} is {row[column]}; it must be above 0 [s]")
    return value


def _optional(path: str | os.PathLike[str], line: int, row: dict[str, str], column: str) -> float:
    """A number from 0; NaN where the value or the column is absent."""
    text = row.get(column, "")
    if not text:
        return math.nan
    value = _number(path, line, column, text)
    if value < 0 or value > 2**60:
        raise InvalidInput(f"{path}, line {line}: {column} is {text}; it must not be below 0")
    return value


def _number(path: str | os.PathLike[str], line: int, column: str, text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        shown = repr(text) if len(text) <= 40 else repr(text[:37] + "...")
        raise InvalidInput(
            f"{path}, line {line}: {column} is {shown if text else 'empty'}; it must be a number"
        )
    return value


def _check_units(path: str | os.PathLike[str], lines: list[int], grid: StepGrid, step_s: list[float]) -> None:
    """Refuse step times that only a mix of seconds and milliseconds explains.

    Like rows (one GPU, one node, several nodes) of a job in two heaps far apart; or one GPU that takes far longer
    than several do at the same batch or a larger one. A slow network may well take a thousand times the compute.
    """
    ask = "is one of them in milliseconds? step_s is in seconds, in every row"
    alike: dict[tuple[str, int], list[int]] = {}
    for i, (job, layout) in enumerate(zip(grid.job, grid.layout, strict=True)):
        alike.setdefault((job, 0 if sum(layout) == 1 else min(len(layout), 2)), []).append(i)
    batch = grid.batch_per_gpu.tolist()
    for (job, _), rows in alike.items():
        for low, high in itertools.pairwise(sorted(rows, key=lambda i: step_s[i])):
            # A step grows at most in proportion to the batch.
            if step_s[high] > GAP * max(1.0, batch[high] / batch[low]) * step_s[low]:
                raise InvalidInput(
                    f"{path}: steps of job {job!r} take {step_s[low]:g} s in line {lines[low]} and "
                    f"{step_s[high]:g} s in line {lines[high]}, and nothing in between; {ask}"
                )
    fastest: dict[tuple[str, tuple[str, str]], int] = {}
    for i in range(len(lines)):
        key = (grid.job[i], grid.machine[i])
        if sum(grid.layout[i]) > 1 and step_s[i] < step_s[fastest.setdefault(key, i)]:
            fastest[key] = i
    for i, step in enumerate(step_s):
        several = fastest.get((grid.job[i], grid.machine[i]))
        if several is None or sum(grid.layout[i]) > 1 or batch[several] < batch[i]:
            continue
        if step > GAP * step_s[several]:
            raise InvalidInput(
                f"{path}: steps of job {grid.job[i]!r} take {step:g} s on one GPU in line {lines[i]} and "
                f"{step_s[several]:g} s on several in line {lines[several]}; {ask}"
            )
