"""Files of measured exchanges, whoever measured them: ours, a table (CSV), or what nccl-tests printed."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from srifty.errors import InvalidInput
from srifty.records.files import checked, from_json, read_text
from srifty.records.nccl_tests import is_nccl_tests, read_nccl_tests
from srifty.records.network_profile import AllReduceSample, NetworkProfile

REQUIRED_COLUMNS = (
    "instance_types",
    "node_count",
    "gpus_per_node",
    "backend",
    "link_bytes_per_s",
    "message_bytes",
    "duration_s",
    "repeat",
)
OPTIONAL_COLUMNS = ("backend_version", "session", "concurrency")
LARGEST = 2**60


def read_exchanges(path: str | os.PathLike[str], *, instance_type: str | None = None) -> NetworkProfile:
    """Measured exchanges of a file, of whichever kind it is.

    Args:
        path: a NetworkProfile (srifty probe), a table with the columns above, or what all_reduce_perf printed
        instance_type: of the machines, for a file that does not say it: "p4d.24xlarge", or several with +

    Raises:
        InvalidInput: the file cannot be read; the message says the line, the column, the value and what is allowed
    """
    text, name = read_text(path), str(path)
    if not text.strip():
        raise InvalidInput(f"{name} is empty; give exchanges that were measured (srifty probe -o net.json)")
    if text.lstrip().startswith("{"):
        return from_json(text, NetworkProfile, name=name)
    changed_at = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
    if is_nccl_tests(text):
        types = _types(instance_type or "")
        if not types:
            raise InvalidInput(
                f"{name} does not say on which machines nccl-tests ran; give --instance-type p4d.24xlarge"
            )
        samples, dropped = read_nccl_tests(text, name=Path(path).name, instance_types=types)
        return NetworkProfile(samples=samples, dropped=dropped, taken_at=changed_at)
    return NetworkProfile(samples=read_table(text, name=name), taken_at=changed_at)


def read_table(text: str, *, name: str) -> tuple[AllReduceSample, ...]:
    """Samples of a table.

    Raises:
        InvalidInput: a column is missing or unknown, a value is not allowed, there is no row
    """
    rows = csv.reader(io.StringIO(text), strict=True)
    try:
        heading = [column.strip() for column in next(rows)]
        _check_heading(heading, name)
        samples = []
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            where = f"{name} line {rows.line_num}"
            if len(row) != len(heading):
                raise InvalidInput(
                    f"{where} has {len(row)} cells, the heading {len(heading)}; "
                    f"is the line whole, and does a cell hold a comma?"
                )
            cells = dict(zip(heading, (cell.strip() for cell in row), strict=True))
            samples.append(_sample(cells, where))
    except csv.Error as error:
        raise InvalidInput(f"{name} line {rows.line_num} is not CSV: {error}") from None
    if not samples:
        raise InvalidInput(f"{name} has a heading and no rows")
    return tuple(samples)


def _check_heading(heading: list[str], name: str) -> None:
    missing = [column for column in REQUIRED_COLUMNS if column not in heading]
    if missing:
        raise InvalidInput(
            f"{name} is neither JSON nor the output of nccl-tests, and as a table it lacks the column "
            f"{', '.join(missing)}; a table of exchanges has {','.join(REQUIRED_COLUMNS)}"
        )
    allowed = {*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS}
    unknown = [column for column in heading if column not in allowed]
    if unknown:
        raise InvalidInput(
            f"{name} has an unknown column {unknown[0]!r}; besides the required ones there are "
            f"{', '.join(OPTIONAL_COLUMNS)}"
        )
    twice = [column for column in heading if heading.count(column) > 1]
    if twice:
        raise InvalidInput(f"{name} has the column {twice[0]!r} twice")


def _sample(cells: Mapping[str, str], where: str) -> AllReduceSample:
    nodes = _whole(cells, "node_count", where, "nodes")
    per_node = _whole(cells, "gpus_per_node", where, "GPUs")
    types = _types(cells["instance_types"])
    for column, value in (("instance_types", types), ("backend", cells["backend"])):
        if not value:
            raise InvalidInput(f"{where}: {column} is {cells[column]!r}; it must hold a name")
    repeat = _whole(cells, "repeat", where, "readings before", least=0)
    rate = _positive(cells, "link_bytes_per_s", where, "bytes/s") if cells["link_bytes_per_s"] else None
    return checked(
        AllReduceSample,
        instance_types=types,
        node_count=nodes,
        gpu_count=nodes * per_node,
        backend=cells["backend"].casefold(),
        backend_version=cells.get("backend_version") or None,
        link_bytes_per_s=rate,
        message_bytes=_whole(cells, "message_bytes", where, "bytes"),
        duration_s=_positive(cells, "duration_s", where, "s"),
        repeat=repeat,
        concurrency=_whole(cells, "concurrency", where, "exchanges") if cells.get("concurrency") else 1,
        session=cells.get("session") or None,
    )


def _types(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split("+") if name.strip())


def _whole(cells: Mapping[str, str], column: str, where: str, unit: str, least: int = 1) -> int:
    value = _number(cells, column, where, unit)
    if value != int(value) or not least <= value <= LARGEST:
        raise InvalidInput(
            f"{where}: {column} is {cells[column]} [{unit}]; it must be a whole number from {least}"
        )
    return int(value)


def _positive(cells: Mapping[str, str], column: str, where: str, unit: str) -> float:
    value = _number(cells, column, where, unit)
    if not 0 < value <= 1e15:
        raise InvalidInput(f"{where}: {column} is {cells[column]} [{unit}]; it must be above 0")
    return value


def _number(cells: Mapping[str, str], column: str, where: str, unit: str) -> float:
    try:
        value = float(cells[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(
            f"{where}: {column} is {cells[column]!r}; it must be a number [{unit}], with a point and no unit"
        )
    return value
