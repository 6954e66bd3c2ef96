"""srifty plan: the cheapest machines in time, or the fastest within a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from srifty.cli.arguments import MarketChoice, count, deadline_s, usd
from srifty.cli.output import checked_output, console, put, show
from srifty.records.plan import Goal


def plan(
    profiles: Annotated[
        list[Path] | None, typer.Argument(help="Profiles of the job, one a kind of GPU (srifty profile).")
    ] = None,
    sample: Annotated[
        str | None, typer.Option(help="Use the sample profiles that ship: resnet50, bert-base, resnet18.")
    ] = None,
    samples: Annotated[str | None, typer.Option(help="Samples to train on, e.g. 1281167 or 1.28M.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times that the samples are gone through.")] = 1,
    batch: Annotated[str | None, typer.Option(help="Global batch: samples in a step over all GPUs.")] = None,
    within: Annotated[str | None, typer.Option(help="Deadline: 12h, 90min, 2d, or an instant (ISO).")] = None,
    budget: Annotated[str | None, typer.Option(help="The job may cost at most this [USD].")] = None,
    goal: Annotated[Goal, typer.Option(help="What to make small.")] = Goal.CHEAPEST,
    market: Annotated[MarketChoice, typer.Option(help="How machines are paid for.")] = MarketChoice.ON_DEMAND,
    confidence: Annotated[
        float, typer.Option(help="Chance with which limits must hold, 0.5 to below 1.")
    ] = 0.9,
    max_nodes: Annotated[int, typer.Option(help="Machines at most.")] = 16,
    max_gpus: Annotated[int | None, typer.Option(help="GPUs at most.")] = None,
    cloud: Annotated[list[str] | None, typer.Option(help="Only this cloud; may be given again.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only this region; may be given again.")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Only this GPU: A100, or A100-80GB.")] = None,
    instance_type: Annotated[list[str] | None, typer.Option(help="Only this type of machine.")] = None,
    estimate_unmeasured: Annotated[
        bool, typer.Option("--estimate-unmeasured", help="GPUs without a profile too, by published peaks.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(help="Measured exchanges in place of nominal rates (srifty fit).")
    ] = None,
    catalog: Annotated[Path | None, typer.Option(help="Your own table of offers (CSV).")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The plan, as JSON, to standard output.")] = False,
) -> None:
    """Choose machines for a job: the cheapest in time, or the fastest within a budget."""
    from datetime import date

    from srifty import verbs
    from srifty.cli.profiles import chosen_profiles
    from srifty.errors import InvalidInput, NoFeasiblePlan
    from srifty.reporting.plan_table import plan_table

    if samples is None and epochs > 1:
        raise InvalidInput(f"--epochs {epochs} needs --samples, the size of the data set")
    sample_count = None if samples is None else count(samples, "--samples") * epochs
    screen, output = console(), checked_output(output)
    try:
        found = verbs.plan(
            chosen_profiles(profiles, sample),
            samples=sample_count,
            batch=None if batch is None else count(batch, "--batch"),
            deadline_s=None if within is None else deadline_s(within),
            budget_usd=None if budget is None else usd(budget),
            goal=goal,
            markets=market.markets,
            confidence=confidence,
            max_nodes=max_nodes,
            max_gpus=max_gpus,
            clouds=tuple(cloud or ()),
            regions=tuple(region or ()),
            gpus=tuple(gpu or ()),
            instance_types=tuple(instance_type or ()),
            estimate_unmeasured=estimate_unmeasured,
            model=model,
            catalog=catalog,
        )
    except NoFeasiblePlan as error:
        if error.nearest is not None:
            show(
                plan_table(error.nearest, today=date.today(), width=screen.width, is_feasible=False),
                Path("-"),
            )
        raise
    put(found, output, as_json=json)
    show(plan_table(found, today=date.today(), width=screen.width), output, as_json=json)
