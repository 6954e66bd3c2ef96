"""A plan for people: the machines and why, what stands beside them, and what the figures rest on."""

from __future__ import annotations

from datetime import date, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srifty.records.estimate import JobEstimate
from srifty.records.offer import Market
from srifty.records.plan import Plan
from srifty.records.text import chance_text, counted, duration_text, percent_text, usd_text
from srifty.reporting.words import gpus, machines, places, shares, time_and_band, usd_and_band

OLD_AFTER = timedelta(days=365)
ROWS = 6
"""Ranks that are shown; the record holds more."""
WIDE = 76
"""Columns from which GPUs and step time are shown too."""


def plan_table(plan: Plan, *, today: date, width: int = 80, is_feasible: bool = True) -> RenderableType:
    """The plan as ranked rows, warnings first.

    Args:
        plan: what was chosen
        today: prices more than a year older are warned of
        width: columns of the terminal; a narrow one is shown less
        is_feasible: False for the plan that misses its limits by least
    """
    heading = "Plan" if is_feasible else "Nearest plan, which is NOT feasible,"
    parts: list[RenderableType] = [Text(f"{heading} for {_question(plan)}", style="bold")]
    parts.extend(Text(f"! {warning}", style="yellow") for warning in warnings(plan.estimate, today=today))
    parts += [Text(plan.reason), Text(), _ranked(plan, width), Text(), _where_time_goes(plan.estimate)]
    parts.append(_footnotes(plan, is_feasible))
    return Group(*parts)


def warnings(estimate: JobEstimate, *, today: date) -> list[str]:
    """What should be known before money is spent: estimated times first, then extrapolation and old prices."""
    outside = estimate.iteration.extrapolated
    said = [
        f"outside what was measured: {what}" for what in sorted(outside, key=lambda w: "estimated" not in w)
    ]
    for group in estimate.iteration.cluster.groups:
        offer = group.offer
        if offer.market is Market.SPOT:
            said.append(
                f"{offer.instance_type} is a spot machine: it may be taken away, and what that costs is not in"
            )
        if today - offer.price_as_of > OLD_AFTER:
            said.append(f"the price of {offer.instance_type} is of {offer.price_as_of}, over a year old")
        if "unverified in this region" in offer.source:
            said.append(f"whether {offer.region} has {offer.instance_type} is not verified")
    return said


def _question(plan: Plan) -> str:
    job, limits = plan.job, plan.constraints
    length = counted(job.sample_count, "sample") if job.sample_count else counted(job.step_count or 0, "step")
    said = [f"{job.name}: {length}", f"global batch {job.global_batch}", limits.goal.value]
    if limits.deadline_s is not None:
        said.append(f"within {duration_text(limits.deadline_s)}")
    if limits.budget_usd is not None:
        said.append(f"for at most {usd_text(limits.budget_usd)} USD")
    return ", ".join(said)


def _ranked(plan: Plan, width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    table.add_column("machines\nand where", overflow="fold")
    if width >= WIDE:
        table.add_column("GPUs")
    table.add_column("batch\na GPU", justify="right")
    if width >= WIDE:
        table.add_column("step", justify="right")
    table.add_column("job time\n(p10-p90)", justify="right", no_wrap=True)
    table.add_column("job cost USD\n(p10-p90)", justify="right", no_wrap=True)
    for rank, estimate in enumerate((plan.estimate, *plan.runners_up)[:ROWS], start=1):
        cluster = estimate.iteration.cluster
        step, _ = time_and_band(estimate.iteration.duration_s)
        cells = {
            "rank": str(rank),
            "machines": f"{cluster}\n{places(cluster)}",
            "gpus": gpus(cluster),
            "batch": shares(cluster),
            "step": step,
            "time": "\n".join(time_and_band(estimate.duration_s)),
            "cost": "\n".join(usd_and_band(estimate.cost_usd)),
        }
        shown = [cell for name, cell in cells.items() if width >= WIDE or name not in ("gpus", "step")]
        table.add_row(*shown, style="bold" if rank == 1 else None)
    return table


def _where_time_goes(estimate: JobEstimate) -> Text:
    step = estimate.iteration
    total = step.duration_s.p50
    shares_of_step = ", ".join(
        f"{name} {100 * spread.p50 / total:.0f} %"
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
    price = f"{usd_text(step.cluster.usd_per_hour)} USD an hour for {machines(step.cluster)}"
    return Text("; ".join([f"Rank 1: {price}; step: {shares_of_step}", *chances]) + ".")


def _footnotes(plan: Plan, is_feasible: bool) -> Text:
    compared = f"{counted(plan.candidate_count, 'cluster')} compared"
    if is_feasible:
        compared += f"; none of them is better (gap {percent_text(plan.gap)})"
    offer = plan.cluster.groups[0].offer
    said = [
        f"{compared}. Left out: {', '.join(f'{each.count:,} {each.why}' for each in plan.dropped) or 'nothing'}.",
        f"Price of rank 1 as of {offer.price_as_of} ({offer.source}), table of {plan.catalog_taken_at}; "
        f"every machine is paid from the first step to the last.",
        "Assumed, not measured:",
        *(f"- {assumption}" for assumption in plan.assumptions),
    ]
    return Text("\n".join(said), style="dim")
