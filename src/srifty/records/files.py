"""Records as files: what is read is checked and refused by name, what is written is whole or not there."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from srifty.errors import InvalidInput
from srifty.records.record import Record

MOST_SHOWN = 60
"""Letters of a value that a message shows."""

AnyRecord = TypeVar("AnyRecord", bound=Record)


def to_json(record: Record) -> str:
    """The record as the text of its file."""
    return (
        json.dumps(
            {"format": record.format(), **record.model_dump(mode="json")}, indent=2, ensure_ascii=False
        )
        + "\n"
    )


def from_json(text: str | bytes, kind: type[AnyRecord], *, name: str = "input") -> AnyRecord:
    """Read a record from the text of its file.

    Args:
        text: JSON
        kind: the record that is expected
        name: what to call the text in messages, as a rule the file's name

    Raises:
        InvalidInput: no JSON, another record, an unknown version or field, a value that is not allowed
    """
    try:
        fields = json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:  # no JSON, no text, a number of thousands of digits
        raise InvalidInput(
            f"{name} is not JSON: {error}; expected a file of format {kind.format()!r}"
        ) from None
    if not isinstance(fields, dict):
        raise InvalidInput(
            f"{name} holds {_kind_of(fields)}, not a record; expected format {kind.format()!r}"
        )
    found = fields.pop("format", None)
    if found != kind.format():
        raise InvalidInput(f"{name} {_wrong_format(found, kind)}")
    try:
        # In JSON mode, so that lists become tuples and text becomes dates, and nothing else is bent to fit.
        return kind.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        raise InvalidInput(f"{name}: {explain(error)}") from None


def checked(kind: type[AnyRecord], **fields: object) -> AnyRecord:
    """Make a record from what a user gave; what it refuses is an InvalidInput in plain words."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise InvalidInput(explain(error)) from None


@overload
def read(path: str | os.PathLike[str], kind: type[AnyRecord]) -> AnyRecord: ...


@overload
def read(path: str | os.PathLike[str]) -> Record: ...


def read(path: str | os.PathLike[str], kind: type[Record] | None = None) -> Record:
    """Read a record's file; see `from_json` for what is refused.

    Args:
        path: the file
        kind: the record that is expected; None: whichever the file says it is
    """
    text = read_text(path)
    if kind is None:
        found = re.search(r'"format"\s*:\s*"srifty/(\w+)/', text)
        kind = record_named(found[1]) if found else Record
    return from_json(text, kind, name=str(path))


def record_named(name: str) -> type[Record]:
    """The record of this name: "job_profile", "JobProfile" and "srifty/job_profile/1" are one.

    Raises:
        InvalidInput: no record has this name
    """
    import srifty.records as nouns

    kinds = (getattr(nouns, noun) for noun in nouns.__all__)
    records = {k.format().split("/")[1]: k for k in kinds if isinstance(k, type) and issubclass(k, Record)}
    plain = name.removeprefix("srifty/").split("/")[0].replace("-", "_")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()
    if snake not in records or records[snake] is Record:
        known = ", ".join(sorted(n for n, k in records.items() if k is not Record))
        raise InvalidInput(f"there is no record {name!r}; there are {known}")
    return records[snake]


def read_text(path: str | os.PathLike[str]) -> str:
    """Text of a file that the user named.

    Raises:
        InvalidInput: the file is missing, is a folder, may not be read or is no text
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a text file (UTF-8)") from None
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:  # a name with a null byte
        raise InvalidInput(f"cannot read {str(path)!r}: {error}") from None


def write(record: Record, path: str | os.PathLike[str]) -> None:
    """Write a record's file; a reader finds the old file or the new one, never a part."""
    write_text(to_json(record), path)


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write text beside its place, then rename; a device such as /dev/stdout is written directly.

    Raises:
        InvalidInput: the place does not exist, is a folder or may not be written
    """
    target, beside = _place(path)
    if beside is None:
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _cannot_write(path, error) from None
        return
    descriptor = os.open(beside, os.O_WRONLY)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~umask
        os.chmod(beside, mode)
        os.replace(beside, target)
    except OSError as error:
        raise _cannot_write(path, error) from None
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Find out now, before the work whose result is to be kept there, whether a file can be written.

    Raises:
        InvalidInput: as `write_text` would
    """
    _, beside = _place(path)
    if beside is not None:
        os.unlink(beside)


def _place(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """The file to write, through links, and an empty one beside it; None for a device, which is written directly."""
    target = Path(path)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            return target, None
        target = target.resolve()
        if target.is_dir():
            raise IsADirectoryError(21, "is a directory")
        descriptor, beside = tempfile.mkstemp(
            dir=target.parent, prefix=f".{target.name[:64]}.", suffix=".partial"
        )
        os.close(descriptor)
    except OSError as error:
        raise _cannot_write(path, error) from None
    except (ValueError, RuntimeError) as error:  # a null byte; links that go round in a circle
        raise InvalidInput(f"cannot write {str(path)!r}: {error}") from None
    return target, beside


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> InvalidInput:
    return InvalidInput(f"cannot write {path}: {(error.strerror or str(error)).lower()}")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {_short(next(n for n in names if names.count(n) > 1))!r} stands there twice")
    return fields


def explain(error: ValidationError, *, most: int = 2) -> str:
    """What pydantic refuses, in plain words: field, value, what is allowed."""
    problems = error.errors(include_url=False)
    said = "; ".join(_explain_one(dict(problem)) for problem in problems[:most])
    more = len(problems) - most
    return said + (f"; and {more} more" if more > 0 else "")


def _explain_one(problem: dict[str, Any]) -> str:
    field = _short(".".join(str(part) for part in problem["loc"])) or "record"
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown field {field!r}"
        case "missing":
            return f"field {field!r} is missing"
        case "value_error":
            return f"{field}: {problem['msg'].removeprefix('Value error, ')}"
        case _:
            message = problem["msg"]
            return f"{field} is {_shown(problem.get('input'))}: {message[:1].lower()}{message[1:]}"


def _shown(value: object) -> str:
    """A value that was refused, short enough for a line; of a list or a record only what it is."""
    match value:
        case dict() | Record():
            return "a record" if value else "an empty record"
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
        case _:
            return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def _wrong_format(found: object, kind: type[Record]) -> str:
    if found is None:
        return f"has no field 'format'; expected {kind.format()!r}"
    name, _, version = kind.format().rpartition("/")
    if isinstance(found, str) and found.startswith(f"{name}/"):
        return (
            f"has format {_shown(found)}, an unknown version: this Srifty reads version {version}; "
            f"update Srifty, or write the file again"
        )
    return f"has format {_shown(found)}; expected {kind.format()!r}"


def _kind_of(value: object) -> str:
    names = {list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
