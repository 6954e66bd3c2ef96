"""srifty predict: how long a step takes on machines that you name, and where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srifty.cli.arguments import count
from srifty.cli.output import checked_output, put, put_json, put_text, show
from srifty.records.offer import Market


def predict(
    profiles: Annotated[
        list[Path] | None, typer.Argument(help="Profiles of the job, one a kind of GPU (srifty profile).")
    ] = None,
    sample: Annotated[
        str | None, typer.Option(help="Use the sample profiles that ship: resnet50, bert-base, resnet18.")
    ] = None,
    on: Annotated[str, typer.Option(help="Machines: 4xg4dn.12xlarge, or 4xp3.2xlarge,2xg4dn.12xlarge.")] = "",
    batch: Annotated[str | None, typer.Option(help="Global batch: samples in a step over all GPUs.")] = None,
    accumulate: Annotated[
        int | None, typer.Option(help="Micro-steps to a step; else as few as the memory allows.")
    ] = None,
    samples: Annotated[
        str | None, typer.Option(help="Samples to train on, e.g. 1.28M; else the job's own number, or 1M.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times that the samples are gone through.")] = 1,
    region: Annotated[str | None, typer.Option(help="Where; else where each type is cheapest.")] = None,
    market: Annotated[Market, typer.Option(help="How they are paid for.")] = Market.ON_DEMAND,
    estimate_unmeasured: Annotated[
        bool, typer.Option("--estimate-unmeasured", help="GPUs without a profile too, by published peaks.")
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(
            help="What srifty fit learned: from exchanges, in place of nominal rates; from steps, with --grid."
        ),
    ] = None,
    catalog: Annotated[Path | None, typer.Option(help="Your own table of offers (CSV).")] = None,
    grid: Annotated[
        Path | None, typer.Option(help="Steps to tell from the model (CSV), written back with estimates.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the estimate here.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a picture of one iteration here, for ui.perfetto.dev (JSON).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The estimate, as JSON, to standard output.")] = False,
) -> None:
    """How long a step and the job take on machines that you name, and where the time goes.

    With --model and --grid: how long each step of a table takes, learned from measured ones.
    """
    if grid is not None:
        others = {"profiles": profiles, "--sample": sample, "--on": on or None, "--json": json or None}
        _predict_grid(model, grid, [name for name, given in others.items() if given], output)
        return
    from datetime import date

    from srifty import verbs
    from srifty.cli.profiles import chosen_profiles
    from srifty.errors import InvalidInput
    from srifty.reporting.estimate_table import estimate_table

    if not on:
        raise InvalidInput("give the machines: --on 4xg4dn.12xlarge")
    if samples is None and epochs > 1:
        raise InvalidInput(f"--epochs {epochs} needs --samples, the size of the data set")
    output, trace = checked_output(output), checked_output(trace, is_record=False)
    chosen = chosen_profiles(profiles, sample)
    (found,) = verbs.predict(
        chosen,
        on,
        batch=None if batch is None else count(batch, "--batch"),
        accumulation=accumulate,
        samples=None if samples is None else count(samples, "--samples") * epochs,
        region=region,
        market=market,
        estimate_unmeasured=estimate_unmeasured,
        model=model,
        catalog=catalog,
    )
    if trace is not None:
        put_json(
            verbs.trace(
                chosen,
                found.iteration.cluster,
                estimate_unmeasured=estimate_unmeasured,
                model=model,
                catalog=catalog,
            ),
            trace,
        )
    put(found, output, as_json=json)
    show(estimate_table(found, today=date.today()), output, as_json=json)


def _predict_grid(model: Path | None, grid: Path, others: list[str], output: Path | None) -> None:
    from srifty import verbs
    from srifty.errors import InvalidInput
    from srifty.records.step_file import read_grid

    if model is None:
        raise InvalidInput("--grid needs --model: --model model.json --grid grid.csv")
    if others:
        raise InvalidInput(f"a grid is told from the model alone; leave {', '.join(others)} out")
    if output is not None and output.exists() and any(output.samefile(one) for one in (grid, model)):
        raise InvalidInput(f"-o {output} would overwrite what is read; give another name")
    output = checked_output(output, is_record=False)
    asked = read_grid(grid)
    put_text(asked.with_estimates(verbs.predict_steps(model, asked.grid)), output)
