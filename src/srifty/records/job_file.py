"""job.toml: a Job as a person writes it, so that one file describes the training to every verb."""

from __future__ import annotations

import difflib
import json
import os
import tomllib

from pydantic import ValidationError

from srifty.errors import InvalidInput
from srifty.records.files import explain, read_text
from srifty.records.job import Job


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read the Job that a TOML file holds; its fields are Job's, by the same names.

    Raises:
        InvalidInput: no such file, no TOML, an unknown field, a value that is not allowed
    """
    try:
        fields = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not TOML: {_lower_first(str(error))}") from None
    except ValueError as error:  # a number of thousands of digits
        raise InvalidInput(f"{path} is not TOML that can be read: {_lower_first(str(error))}") from None
    except RecursionError:
        raise InvalidInput(f"{path} is not TOML that can be read: it is nested too deeply") from None
    for field in fields:
        if field not in Job.model_fields:
            raise InvalidInput(f"{path}: unknown field {field!r}; {_allowed(field)}")
    try:
        # As JSON, so that lists become tuples and nothing else is bent to fit; a TOML date becomes text.
        return Job.model_validate_json(json.dumps(fields, default=str), strict=True)
    except ValidationError as error:
        raise InvalidInput(f"{path}: {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if first["loc"] == ("workload",) and first["type"] == "string_pattern_mismatch":
        return (
            f"workload is {first['input']!r}: expected 'module:function', the module without '.py', "
            f"for example 'workload:make'"
        )
    return explain(error)


def _allowed(field: str) -> str:
    nearest = difflib.get_close_matches(field, Job.model_fields, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"allowed are {', '.join(Job.model_fields)}"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
