"""A plan for people: the machines and why, what stands beside them, and what the figures rest on."""

from __future__ import annotations

from datetime import date, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srifty.records.estimate import JobEstimate
from srifty.records.plan import Plan
from srifty.reporting.words import band, chance_text, duration, figures, gpus, machines, places, shares, usd

OLD_AFTER = timedelta(days=365)
ROWS = 6
"""Ranks that are shown; the record holds more."""


def plan_table(plan: Plan, *, today: date, heading: str = "Plan") -> RenderableType:
    """The plan as ranked rows, warnings first.

    Args:
        plan: what was chosen
        today: prices more than a year older are warned of
        heading: what to call it
    """
    parts: list[RenderableType] = [Text(f"{heading} for {_question(plan)}", style="bold")]
    parts.extend(Text(f"! {warning}", style="yellow") for warning in warnings(plan.estimate, today=today))
    parts.append(Text(plan.reason))
    parts.append(Text())
    parts.append(_ranked(plan))
    parts.append(Text())
    parts.append(_where_time_goes(plan.estimate))
    parts.append(_footnotes(plan))
    return Group(*parts)


def warnings(estimate: JobEstimate, *, today: date) -> list[str]:
    """What should be known before money is spent: extrapolation, old prices."""
    outside = estimate.iteration.extrapolated
    said = [
        f"outside what was measured: {what}" for what in sorted(outside, key=lambda w: "estimated" not in w)
    ]
    for group in estimate.iteration.cluster.groups:
        if today - group.offer.price_as_of > OLD_AFTER:
            said.append(
                f"the price of {group.offer.instance_type} is of {group.offer.price_as_of}, over a year old"
            )
    return said


def _question(plan: Plan) -> str:
    job, limits = plan.job, plan.constraints
    length = f"{job.sample_count:,} samples" if job.sample_count is not None else f"{job.step_count:,} steps"
    said = [f"{job.name}: {length}", f"global batch {job.global_batch}", limits.goal.value]
    if limits.deadline_s is not None:
        said.append(f"within {duration(limits.deadline_s)}")
    if limits.budget_usd is not None:
        said.append(f"for at most {usd(limits.budget_usd)} USD")
    return ", ".join(said)


def _ranked(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("machines\nand where", overflow="fold")
    table.add_column("GPUs")
    table.add_column("batch\na GPU", justify="right")
    table.add_column("step", justify="right")
    table.add_column("job time\n(p10-p90)", justify="right", no_wrap=True)
    table.add_column("job cost USD\n(p10-p90)", justify="right", no_wrap=True)
    for rank, estimate in enumerate((plan.estimate, *plan.runners_up)[:ROWS], start=1):
        cluster = estimate.iteration.cluster
        cost = estimate.cost_usd
        table.add_row(
            str(rank),
            f"{cluster}\n{places(cluster)}",
            gpus(cluster),
            shares(cluster),
            duration(estimate.iteration.duration_s.p50),
            f"{duration(estimate.duration_s.p50)}\n{band(estimate.duration_s)}",
            f"{usd(cost.p50)}\n{usd(cost.p10)}-{usd(cost.p90)}",
            style="bold" if rank == 1 else None,
        )
    return table


def _where_time_goes(estimate: JobEstimate) -> Text:
    step = estimate.iteration
    total = step.duration_s.p50
    shares_of_step = ", ".join(
        f"{name} {spread.p50 / total:.0%}"
        for name, spread in (
            ("compute", step.compute_s),
            ("exposed exchange", step.exposed_allreduce_s),
            ("waiting", step.waiting_s),
        )
    )
    chances = [
        f"{name} with {chance_text(chance)} chance"
        for name, chance in (("in time", estimate.chance_in_time), ("in budget", estimate.chance_in_budget))
        if chance is not None
    ]
    price = step.cluster.usd_per_hour
    said = f"Rank 1: {figures(price)} USD an hour for {machines(step.cluster)}; step: {shares_of_step}"
    return Text("; ".join([said, *chances]) + ".")


def _footnotes(plan: Plan) -> Text:
    said = [
        f"{plan.candidate_count:,} clusters compared; none of them is better (gap {plan.gap:.0%}). "
        f"Left out: {', '.join(f'{each.count:,} {each.why}' for each in plan.dropped) or 'nothing'}.",
        f"Price of rank 1 as of {plan.cluster.groups[0].offer.price_as_of}, table of {plan.catalog_taken_at}; "
        f"every machine is paid from the first step to the last.",
        "Assumed, not measured:",
        *(f"- {assumption}" for assumption in plan.assumptions),
    ]
    return Text("\n".join(said), style="dim")
