"""srifty schema: the JSON schema of a record's file, for other programs."""

from __future__ import annotations

from typing import Annotated

import typer


def schema(
    record: Annotated[str, typer.Argument(help="The record: plan, job_profile, catalog, ...")],
) -> None:
    """Print the JSON schema of a record's file."""
    import json

    from srifty.records.files import record_named

    typer.echo(json.dumps(record_named(record).json_schema(), indent=2))
