"""What a plan says of itself: why this cluster, or which limit stood in the way."""

from __future__ import annotations

from collections.abc import Sequence

from srifty.records.estimate import JobEstimate
from srifty.records.plan import Constraints, Goal, Plan


def reason(
    chosen: JobEstimate, runners_up: Sequence[JobEstimate], constraints: Constraints, count: int
) -> str:
    """One sentence: why this one."""
    superlative = {Goal.CHEAPEST: "the cheapest", Goal.FASTEST: "the fastest"}[constraints.goal]
    limits = _limits(constraints)
    keeping = (
        f" that {' and '.join(limits)} with at least {constraints.confidence:.0%} chance" if limits else ""
    )
    said = f"{chosen.iteration.cluster} is {superlative} of {count:,} uniform clusters{keeping}"
    if not runners_up:
        return f"{said}; no other instance type {'keeps to the limits' if limits else 'was measured'}."
    beside, next_one = _figure(chosen, constraints.goal), _figure(runners_up[0], constraints.goal)
    return f"{said}: {beside}, against {next_one} for the next type, {runners_up[0].iteration.cluster}."


def broken_limit_message(nearest: Plan, limit: str, constraints: Constraints) -> str:
    """Two lines: no cluster keeps to the limits, what the nearest needs, and what to relax."""
    estimate, z = nearest.estimate, f"with {constraints.confidence:.0%} chance"
    if limit == "within":
        asked = f"--within {duration_text(constraints.deadline_s or 0)}"
        needs = f"needs {duration_text(estimate.duration_s.quantile(constraints.confidence))}"
        relax = "a longer --within"
    else:
        asked = f"--budget {constraints.budget_usd:,.2f} USD"
        needs = f"costs {estimate.cost_usd.quantile(constraints.confidence):,.2f} USD"
        relax = "a larger --budget"
    return (
        f"no cluster keeps to {asked} {z}: the nearest, {nearest.cluster} in {_place(nearest)}, {needs}\n"
        f"relax it: {relax}, more than {constraints.max_nodes} nodes (--max-nodes), a lower --confidence, or "
        f"profiles of faster GPUs"
    )


def duration_text(seconds: float) -> str:
    """A length of time as people say it: "3 h 20 min"."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    parts = [f"{hours} h"] if hours else []
    return " ".join([*parts, f"{minutes} min"] if minutes else parts)


def _limits(constraints: Constraints) -> list[str]:
    said = []
    if constraints.deadline_s is not None:
        said.append(f"end within {duration_text(constraints.deadline_s)}")
    if constraints.budget_usd is not None:
        said.append(f"cost at most {constraints.budget_usd:,.2f} USD")
    return said


def _figure(estimate: JobEstimate, goal: Goal) -> str:
    if goal is Goal.CHEAPEST:
        return f"{estimate.cost_usd.p50:,.2f} USD"
    return duration_text(estimate.duration_s.p50)


def _place(plan: Plan) -> str:
    return plan.cluster.groups[0].offer.place
