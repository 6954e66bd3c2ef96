"""Offers as a table with units in the heading: the shipped snapshot, or a user's own file in its place.

Prices go missing and rows go bad in every cloud's lists. A row that is no offer is left out and counted,
so that one bad row never costs the others; only a file that cannot be such a table at all is refused.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from srifty.clouds.offer_row import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, Fields, NoOffer, Row, offer_fields
from srifty.errors import InvalidInput
from srifty.records.files import explain, from_json, read_text
from srifty.records.offer import Catalog, Dropped, Offer

_LISTED_TWICE = "listed twice: the newest price is kept, else the first"


def load(path: str | os.PathLike[str] | None = None) -> Catalog:
    """Offers of the shipped snapshot, or of the user's own table at `path`.

    Raises:
        InvalidInput: the file cannot be read, is no such table, or holds no offer at all
    """
    if path is None:
        name = "the shipped table of offers"
        text = (resources.files("srifty.clouds") / "data" / "offers.csv").read_text(encoding="utf-8")
        taken_at = _taken_at(text)
    else:
        name = str(path)
        text = read_text(path)
        if text.lstrip().startswith("{"):  # what `srifty offers -o` writes
            return from_json(text, Catalog, name=name)
        taken_at = _changed_on(path)

    offers, left_out = _offers_in(_rows(text, name), file_name=Path(name).name, changed_on=taken_at)
    dropped = tuple(
        # A line number helps who can mend the file.
        Dropped(why=why if path is None else f"{why} (first in line {lines[0]})", count=len(lines))
        for why, lines in left_out.items()
    )
    if not offers:
        reasons = "; ".join(f"{each.count} x {each.why}" for each in dropped) or "it has no row"
        raise InvalidInput(f"{name} holds no offer: {reasons}")
    try:
        # All at once: checked one by one, thousands of offers take several times as long.
        checked = TypeAdapter(tuple[Offer, ...]).validate_python(tuple(offers))
    except ValidationError as error:
        raise InvalidInput(f"{name}: {explain(error)}") from None
    sources = tuple(sorted({offer.source for offer in checked}))
    return Catalog(offers=checked, taken_at=taken_at, sources=sources, dropped=dropped)


def _offers_in(
    rows: Iterator[tuple[int, Row | None]], *, file_name: str, changed_on: date
) -> tuple[list[Fields], dict[str, list[int]]]:
    """Fields of each offer, and the lines left out by reason."""
    offers: dict[tuple[Any, ...], Fields] = {}
    left_out: dict[str, list[int]] = {}
    for line, row in rows:
        try:
            if row is None:
                raise NoOffer("more or fewer fields than the heading")
            offer = offer_fields(row, file_name, changed_on)
        except NoOffer as reason:
            left_out.setdefault(str(reason), []).append(line)
            continue
        key = tuple(offer[name] for name in ("cloud", "region", "zone", "instance_type", "market"))
        other = offers.get(key)
        if other is not None:
            left_out.setdefault(_LISTED_TWICE, []).append(line)
        if other is None or offer["price_as_of"] > other["price_as_of"]:
            offers[key] = offer
    return list(offers.values()), left_out


def _rows(text: str, name: str) -> Iterator[tuple[int, Row | None]]:
    """Line number and named fields of each row; None where a row does not fit the heading."""
    lines = text.removeprefix("\ufeff").split("\n")  # spreadsheets like to put a byte order mark first
    skipped = 0
    while skipped < len(lines) and (lines[skipped].startswith("#") or not lines[skipped].strip()):
        skipped += 1
    if skipped == len(lines):
        raise InvalidInput(f"{name} is empty; the first line must name the columns")
    reader = csv.reader(f"{line}\n" for line in lines[skipped:])
    try:
        heading = [column.strip().lower() for column in next(reader)]
        _check_heading(heading, name)
        for fields in reader:
            if any(map(str.strip, fields)):
                fits = len(fields) == len(heading)
                yield (
                    skipped + reader.line_num,
                    dict(zip(heading, map(str.strip, fields), strict=True)) if fits else None,
                )
    except csv.Error as error:
        raise InvalidInput(f"{name} is not a CSV table: line {skipped + reader.line_num}: {error}") from None


def _check_heading(heading: list[str], name: str) -> None:
    if len(heading) == 1:
        for separator, called in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if separator in heading[0]:
                raise InvalidInput(f"{name} has {called} between its columns; expected commas")
    missing = [_with_nearest(column, heading) for column in REQUIRED_COLUMNS if column not in heading]
    if missing:
        raise InvalidInput(f"{name} lacks {_columns(missing)}; the first line must name the columns")
    twice = [column for column, count in Counter(heading).items() if column and count > 1]
    if twice:
        raise InvalidInput(f"{name} has {_columns(map(repr, twice))} more than once")
    # A misspelt optional column would otherwise be passed over without a word.
    for column in OPTIONAL_COLUMNS:
        near = get_close_matches(column, _unknown(heading), n=1, cutoff=0.8)
        if near and column not in heading:
            raise InvalidInput(f"{name} has an unknown column {near[0]!r}; did you mean {column!r}?")


def _with_nearest(column: str, heading: list[str]) -> str:
    near = get_close_matches(column, _unknown(heading), n=1)
    return f"{column!r} (nearest given: {near[0]!r})" if near else repr(column)


def _unknown(heading: list[str]) -> list[str]:
    # A file that is no table may have thousands of "columns"; the first are enough for a hint.
    return [given for given in heading[:100] if given not in REQUIRED_COLUMNS + OPTIONAL_COLUMNS]


def _columns(names: Iterator[str] | list[str]) -> str:
    listed = list(names)
    return f"the column{'s' if len(listed) > 1 else ''} {', '.join(listed)}"


def _taken_at(text: str) -> date:
    """The snapshot's own date, from its first line."""
    found = re.match(r"# taken_at=(\d{4}-\d{2}-\d{2})", text)
    assert found, "the build script writes the date first"  # noqa: S101
    return date.fromisoformat(found[1])


def _changed_on(path: str | os.PathLike[str]) -> date:
    return datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).date()
