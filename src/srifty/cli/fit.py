"""srifty fit: learn from measured steps, and say what to measure next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srifty.cli.output import checked_output, put, show


def fit(
    steps: Annotated[
        Path | None,
        typer.Option(
            help="Measured steps (CSV): job,gpu,instance_type,layout,batch_per_gpu,step_s"
            "[,exposed_allreduce_s][,gradient_bytes]; layout is the GPUs used on each node, 4+4+2."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the model here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The model, as JSON, to standard output.")] = False,
) -> None:
    """Learn step times from measured ones: of any jobs, on any machines.

    'srifty predict --model model.json --grid grid.csv' tells others from what was learned. What to measure next
    goes to standard error.
    """
    from srifty import verbs
    from srifty.errors import InvalidInput
    from srifty.reporting.step_model_table import step_model_table

    if steps is None:
        raise InvalidInput("give the measured steps: --steps known.csv")
    output = checked_output(output)
    model = verbs.fit(steps)
    put(model, output, as_json=json)
    show(step_model_table(model, verbs.probe_advice(model)), output, as_json=json)
