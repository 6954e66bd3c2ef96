"""What a plan says of itself: why this cluster, or which limit stood in the way."""

from __future__ import annotations

from collections.abc import Sequence

from srifty.records.estimate import JobEstimate
from srifty.records.plan import Constraints, Goal, Plan
from srifty.records.text import counted, duration_text, percent_text, usd_text


def reason(
    chosen: JobEstimate, runners_up: Sequence[JobEstimate], constraints: Constraints, count: int
) -> str:
    """One sentence: why this one."""
    superlative = {Goal.CHEAPEST: "the cheapest", Goal.FASTEST: "the fastest"}[constraints.goal]
    limits = _limits(constraints)
    keeping = ""
    if limits:
        each = ", each" if len(limits) > 1 else ""
        keeping = (
            f" that {' and '.join(limits)}{each} with at least {percent_text(constraints.confidence)} chance"
        )
    said = f"{chosen.iteration.cluster} is {superlative} of {counted(count, 'uniform cluster')}{keeping}"
    if not runners_up:
        return f"{said}; no other instance type {'keeps to the limits' if limits else 'was measured'}."
    beside, next_one = _figure(chosen, constraints.goal), _figure(runners_up[0], constraints.goal)
    return f"{said}: {beside}, against {next_one} for the next type, {runners_up[0].iteration.cluster}."


def nearest_reason(nearest: JobEstimate, constraints: Constraints, count: int) -> str:
    """One sentence for the plan that misses the limits by least."""
    return (
        f"none of {counted(count, 'uniform cluster')} keeps to the limits; {nearest.iteration.cluster} misses them "
        f"by least: {'; '.join(_needs(nearest, constraints))}."
    )


def broken_limit_message(nearest: Plan, limit: str) -> str:
    """Two lines: no cluster keeps to the limits, what the nearest needs, and what to relax."""
    constraints = nearest.constraints
    asked = []
    if constraints.deadline_s is not None:
        asked.append(f"--within {duration_text(constraints.deadline_s)}")
    if constraints.budget_usd is not None:
        asked.append(f"--budget {usd_text(constraints.budget_usd)} USD")
    both = "both " if len(asked) > 1 else ""
    relax = {"within": "a longer --within", "budget": "a larger --budget"}[limit]
    return (
        f"no cluster keeps to {both}{' and '.join(asked)} with {percent_text(constraints.confidence)} chance: "
        f"{nearest.cluster} in {nearest.cluster.groups[0].offer.place} is nearest and "
        f"{' and '.join(_needs(nearest.estimate, constraints))}\n"
        f"relax it: {relax}, more than {counted(constraints.max_nodes, 'node')} (--max-nodes), a lower --confidence, "
        f"or profiles of faster GPUs"
    )


def _needs(estimate: JobEstimate, constraints: Constraints) -> list[str]:
    """What the cluster takes of each limit, at the asked confidence."""
    said = []
    if constraints.deadline_s is not None:
        seconds = estimate.duration_s.quantile(constraints.confidence)
        times = seconds / constraints.deadline_s
        said.append(f"needs {duration_text(seconds)}, {times:.3g} times the time allowed")
    if constraints.budget_usd is not None:
        dollars = estimate.cost_usd.quantile(constraints.confidence)
        times = dollars / constraints.budget_usd
        said.append(f"costs {usd_text(dollars)} USD, {times:.3g} times the budget")
    return said


def _limits(constraints: Constraints) -> list[str]:
    said = []
    if constraints.deadline_s is not None:
        said.append(f"end within {duration_text(constraints.deadline_s)}")
    if constraints.budget_usd is not None:
        said.append(f"cost at most {usd_text(constraints.budget_usd)} USD")
    return said


def _figure(estimate: JobEstimate, goal: Goal) -> str:
    if goal is Goal.CHEAPEST:
        return f"{usd_text(estimate.cost_usd.p50)} USD"
    return duration_text(estimate.duration_s.p50)
