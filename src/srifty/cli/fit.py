"""srifty fit: learn from measurements a model that predict and plan go by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srifty.cli.output import checked_output, console, put, show


def fit(
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files like that of --network.")
    ] = None,
    network: Annotated[
        list[Path] | None,
        typer.Option(
            help="Measured exchanges: of srifty probe, a table (CSV), or what nccl-tests printed; may be repeated."
        ),
    ] = None,
    instance_type: Annotated[
        str | None, typer.Option(help="Of the machines of files that do not say it: p4d.24xlarge.")
    ] = None,
    catalog: Annotated[Path | None, typer.Option(help="Your own table of offers (CSV).")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the model here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The model, as JSON, to standard output.")] = False,
) -> None:
    """Learn from measured exchanges how long they take, for predict and plan:

    srifty fit --network net.json other-day.json nccl.txt -o model.json
    """
    from srifty import verbs
    from srifty.errors import InvalidInput
    from srifty.reporting.exchange_table import exchange_table

    if not network:
        raise InvalidInput("give measured exchanges: srifty fit --network net.json -o model.json")
    output = checked_output(output)
    found = verbs.fit_network([*network, *(more or [])], instance_type=instance_type, catalog=catalog)
    put(found, output, as_json=json)
    show(exchange_table(found, width=console().width), output, as_json=json)
