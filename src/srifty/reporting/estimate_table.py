"""An estimate for people: where the time of a step goes, how sure it is, and what the job comes to."""

from __future__ import annotations

from datetime import date

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srifty.records.estimate import JobEstimate
from srifty.records.text import counted, figures, usd_text
from srifty.reporting.plan_table import warnings
from srifty.reporting.words import gpus, machines, places, shares, time_and_band, usd_and_band


def estimate_table(estimate: JobEstimate, *, today: date) -> RenderableType:
    """One cluster's step, part by part with its 80 % band, and the whole job.

    Args:
        estimate: what is expected
        today: prices more than a year older are warned of
    """
    step = estimate.iteration
    cluster = step.cluster
    heading = (
        f"{cluster} in {places(cluster)}: {gpus(cluster)}, global batch {cluster.global_batch} "
        f"({shares(cluster)} a GPU)"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("one step")
    table.add_column("median", justify="right")
    table.add_column("80 % band", justify="right")
    table.add_column("of the step", justify="right")
    parts = (
        ("compute", step.compute_s),
        ("exposed exchange", step.exposed_allreduce_s),
        ("waiting for the slowest, and for data", step.waiting_s),
    )
    for name, spread in parts:
        table.add_row(name, *time_and_band(spread), f"{100 * spread.p50 / step.duration_s.p50:.0f} %")
    table.add_row("step", *time_and_band(step.duration_s), "100 %", style="bold")
    # Links are busy beside the parts above and beside one another: their shares are no parts of the step.
    busy = (
        ("links inside the nodes, busy", step.inside_exchange_s),
        ("network between them, busy", step.across_exchange_s),
    )
    for name, time_busy in busy:
        if time_busy is not None:
            share = f"{100 * time_busy.p50 / step.duration_s.p50:.0f} %"
            table.add_row(name, *time_and_band(time_busy), share, style="dim")
    time, time_band = time_and_band(estimate.duration_s)
    cost, cost_band = usd_and_band(estimate.cost_usd)
    job = (
        f"The job, {counted(estimate.step_count, 'step')} of {cluster.global_batch:,} samples: {time} "
        f"({time_band}), {cost} USD ({cost_band}); {usd_text(cluster.usd_per_hour)} USD an hour for "
        f"{machines(cluster)}; {figures(estimate.samples_per_s.p50)} samples/s"
    )
    exchange = [Text(f"- {said}") for said in estimate.assumptions if said.startswith("exchange times")]
    warned = [Text(f"! {warning}", style="yellow") for warning in warnings(estimate, today=today)]
    return Group(Text(heading, style="bold"), *warned, Text(), table, Text(), Text(job), *exchange)
