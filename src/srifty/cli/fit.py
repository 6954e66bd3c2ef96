"""srifty fit: learn from measurements a model that predict and plan go by, and say what to measure next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srifty.cli.output import checked_output, console, put, show


def fit(
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files like that of --network.")
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Measured steps (CSV): job,gpu,instance_type,layout,batch_per_gpu,step_s"
            "[,exposed_allreduce_s][,gradient_bytes]; layout is the GPUs used on each node, 4+4+2."
        ),
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
    """Learn from measured exchanges, for predict and plan, or from measured steps, for predict --grid:

    srifty fit --network net.json other-day.json nccl.txt -o model.json

    srifty fit --steps known.csv -o model.json

    Steps may be of any jobs, on any machines; what to measure next goes to standard error.
    """
    from srifty import verbs
    from srifty.errors import InvalidInput
    from srifty.reporting.exchange_table import exchange_table
    from srifty.reporting.step_model_table import step_model_table

    if (steps is None) == (not network):
        raise InvalidInput(
            "give measured exchanges (--network net.json) or measured steps (--steps known.csv)"
        )
    output = checked_output(output)
    if steps is not None:
        if more or instance_type is not None or catalog is not None:
            raise InvalidInput("more files, --instance-type and --catalog are for --network; leave them out")
        learned = verbs.fit(steps)
        put(learned, output, as_json=json)
        show(step_model_table(learned, verbs.probe_advice(learned)), output, as_json=json)
        return
    found = verbs.fit_network([*(network or []), *(more or [])], instance_type=instance_type, catalog=catalog)
    put(found, output, as_json=json)
    show(exchange_table(found, width=console().width), output, as_json=json)
