"""What ranks do in one step under DDP, ZeRO-1 and FSDP, as scripts for the event simulator.

The schemes differ in what is exchanged when, and in what a GPU must hold. With p bytes of parameters (fp32), Adam
and n ranks, beside activations:

    DDP     parameters, gradients and both moments whole:           4 p
    ZeRO-1  parameters and gradients whole, moments shared out:     2 p + 2 p / n
    FSDP    everything shared out, and the units in use whole:      4 p / n + (1 + prefetched) x largest unit x 2

(Rajbhandari et al., "ZeRO", 2020; Zhao et al., "PyTorch FSDP", 2023.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from srifty.predicting.iteration_trace import Exchange, StepScript, Work


@dataclass(frozen=True)
class RankStep:
    """Times of one rank [s]: the optimizer's once a step, the others' once a micro-step."""

    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0
    wait_s: float = 0.0
    """For data."""
    other_s: float = 0.0
    """What the script does after each backward pass."""
    ready_at: tuple[float, ...] = ()
    """When each bucket is ready, as a share of the backward pass."""


@dataclass(frozen=True)
class FsdpUnit:
    """A part of the model that is gathered, used and freed as one; times of the whole exchange [s]."""

    gather_s: float
    """All-gather of its parameters."""
    scatter_s: float
    """Reduce-scatter of its gradients."""


def ddp_script(
    ranks: Sequence[RankStep],
    bucket_s: Sequence[float],
    *,
    micro_steps: int = 1,
    exchanges_each: bool = False,
    straggler_s: float = 0.0,
    optimizer_share: float = 1.0,
    exchange_name: str = "all-reduce",
) -> StepScript:
    """DDP: every bucket is exchanged as soon as it is ready on all ranks, beside the backward pass.

    Args:
        ranks: one a rank, or one a group of like ranks
        bucket_s: how long each bucket's AllReduce takes [s]; none with one rank
        micro_steps: of which the last alone exchanges (`no_sync`)
        exchanges_each: every micro-step exchanges, since nothing suppresses it
        straggler_s: wait for the slowest of all ranks [s], before the optimizer
        optimizer_share: part of the parameters that a rank updates
        exchange_name: what an exchange is called

    Assumes that ranks meet after each micro-step that exchanges: none goes on before the last bucket is exchanged
    and the slowest has ended its backward pass.
    """
    works: list[list[Work]] = [[] for _ in ranks]
    exchanges: list[Exchange] = []
    for m in range(micro_steps):
        for work, rank in zip(works, ranks, strict=True):
            work.append(Work("wait for data", rank.wait_s, needs=len(exchanges), is_wait=True))
            work.append(Work("forward", rank.forward_s))
        done = len(works[0])
        if exchanges_each or m == micro_steps - 1:
            for work, rank in zip(works, ranks, strict=True):
                work += [Work("backward", rank.backward_s * piece) for piece in _pieces(rank.ready_at)]
            for k, duration in enumerate(bucket_s):
                exchanges.append(Exchange(f"{exchange_name} of bucket {k + 1}", duration, after=done + k + 1))
            exchanges.append(Exchange("meet", 0.0, after=len(works[0])))
        else:
            for work, rank in zip(works, ranks, strict=True):
                work.append(Work("backward", rank.backward_s))
        if m < micro_steps - 1:
            for work, rank in zip(works, ranks, strict=True):
                work.append(Work("other", rank.other_s, needs=len(exchanges)))
    for work, rank in zip(works, ranks, strict=True):
        work.append(Work("wait for the slowest", straggler_s, needs=len(exchanges), is_wait=True))
        work.append(Work("other", rank.other_s))
        work.append(Work("optimizer", rank.optimizer_s * optimizer_share))
    return StepScript(tuple(map(tuple, works)), tuple(exchanges))


def zero1_script(
    ranks: Sequence[RankStep],
    scatter_s: Sequence[float],
    gather_s: Sequence[float],
    *,
    rank_count: int,
    micro_steps: int = 1,
    exchanges_each: bool = False,
    straggler_s: float = 0.0,
) -> StepScript:
    """ZeRO-1: gradients are reduce-scattered beside the backward pass, each rank's optimizer updates its share, and
    then all gather the new parameters.

    Args:
        ranks: one a rank, or one a group of like ranks
        scatter_s: how long each bucket's reduce-scatter takes [s], half an AllReduce on a ring
        gather_s: how long the all-gather of each bucket's parameters takes [s], the other half
        rank_count: ranks that share the optimizer's work
        micro_steps, exchanges_each, straggler_s: as for `ddp_script`

    Assumes that the next step begins when all is gathered (Rajbhandari et al., 2020, section 5.1).
    """
    before = ddp_script(
        ranks,
        scatter_s,
        micro_steps=micro_steps,
        exchanges_each=exchanges_each,
        straggler_s=straggler_s,
        optimizer_share=1 / rank_count,
        exchange_name="reduce-scatter",
    )
    after = len(before.ranks[0])
    gathers = [
        Exchange(f"all-gather of bucket {k + 1}", duration, after) for k, duration in enumerate(gather_s)
    ]
    return StepScript(before.ranks, (*before.exchanges, *gathers))


def fsdp_script(
    ranks: Sequence[Sequence[RankStep]],
    units: Sequence[FsdpUnit],
    *,
    rank_count: int,
    prefetch: int = 1,
    micro_steps: int = 1,
    scatters_each: bool = True,
    straggler_s: float = 0.0,
) -> StepScript:
    """FSDP: a unit's parameters are gathered before its forward pass, freed, gathered again before its backward
    pass, and its gradients reduce-scattered after it.

    Args:
        ranks: of each rank, the times of each unit, in the order of the forward pass; waits are the first unit's
        units: what each unit exchanges
        rank_count: ranks that share the optimizer's work
        prefetch: units that are gathered ahead of the one at work; 0: each only when it is needed
        micro_steps: each gathers every unit twice
        scatters_each: gradients are reduced in each micro-step; False: in the last (whole gradients are held)
        straggler_s: wait for the slowest of all ranks [s], before the optimizer

    Gathers and scatters go through one queue, in the order in which PyTorch issues them: at equal times the scatter
    of the unit before is in front. The last unit is freed after its forward pass like all others.
    """
    works: list[list[Work]] = [[] for _ in ranks]
    exchanges: list[Exchange] = []
    for m in range(micro_steps):
        if any(steps[0].wait_s for steps in ranks):
            for work, steps in zip(works, ranks, strict=True):
                work.append(Work("wait for data", steps[0].wait_s, is_wait=True))
        for is_forward in (True, False):
            order = list(range(len(units)))[:: 1 if is_forward else -1]
            done = len(works[0])
            queue = [
                Exchange(f"all-gather of unit {u + 1}", units[u].gather_s, done + max(0, j - prefetch))
                for j, u in enumerate(order)
            ]
            if not is_forward and (scatters_each or m == micro_steps - 1):
                scatters = [
                    Exchange(f"reduce-scatter of unit {u + 1}", units[u].scatter_s, done + j + 1)
                    for j, u in enumerate(order)
                ]
                queue = sorted([*scatters, *queue], key=lambda exchange: exchange.after)
            place = {exchange.what: len(exchanges) + i + 1 for i, exchange in enumerate(queue)}
            for u in order:
                needs = place[f"all-gather of unit {u + 1}"]
                for work, steps in zip(works, ranks, strict=True):
                    duration = steps[u].forward_s if is_forward else steps[u].backward_s
                    name = "forward" if is_forward else "backward"
                    work.append(Work(f"{name} of unit {u + 1}", duration, needs))
            exchanges += queue
    for work, steps in zip(works, ranks, strict=True):
        work.append(Work("wait for the slowest", straggler_s, needs=len(exchanges), is_wait=True))
        work.append(Work("optimizer", sum(step.optimizer_s for step in steps) / rank_count))
    return StepScript(tuple(map(tuple, works)), tuple(exchanges))


def _pieces(ready_at: Sequence[float]) -> list[float]:
    """Shares of the backward pass up to each bucket, and what is left; a bucket never goes before the one in front."""
    rising = list(accumulate(ready_at, max))
    return [end - start for start, end in zip([0.0, *rising], [*rising, 1.0], strict=True)]
