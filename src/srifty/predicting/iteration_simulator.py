"""One iteration: backward pass and gradient exchange overlap, ranks wait for the slowest.

Everything here works on columns, a row a cluster, since a search asks for 100,000 clusters at once. The same
iteration told event by event is in `iteration_trace`, which these columns agree with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Iteration:
    """Where the time of one step goes [s], a row a cluster; the step is their sum."""

    compute_s: Floats
    exposed_allreduce_s: Floats
    waiting_s: Floats

    @property
    def step_s(self) -> Floats:
        """Time from one step of the optimizer to the next."""
        return self.compute_s + self.exposed_allreduce_s + self.waiting_s


@dataclass(frozen=True)
class GroupWork:
    """Times of the ranks of one group [s], a row a cluster; the optimizer's once a step, others once a micro-step."""

    wait_s: Floats
    """For data."""
    forward_s: Floats
    backward_s: Floats
    other_s: Floats
    """What the script does after each backward pass."""
    optimizer_s: Floats
    ready_at: Floats
    """When each bucket is ready, as a share of the backward pass, rising, [bucket]."""


@dataclass(frozen=True)
class ExchangeCost:
    """How long each bucket's exchange takes, and what it does to the compute beside it; a row a cluster."""

    latency_s: Floats
    """Of one exchange."""
    seconds_per_byte: Floats
    bucket_bytes: Floats
    """[bucket], in the order of their exchange."""
    slow_down: float = 1.0
    """Factor >= 1 on compute while an exchange is in flight."""
    slot_count: int = 1
    """Exchanges that may be in flight at once, each as fast as alone."""


def simulate(
    groups: Sequence[GroupWork], cost: ExchangeCost, micro_steps: Ints, *, exchanges_each: bool = False
) -> Iteration:
    """One step of many clusters, without the wait for stragglers.

    Every rank waits for data, goes forward and backward, `micro_steps` times; the gradients are exchanged beside
    the last backward pass, or beside each (`exchanges_each`). Once exchanged, ranks go on together: what the
    script does besides, and the optimizer. The parts are

        compute  = until the slowest rank has ended its backward pass, without its wait for data,
                   and the longest optimizer
        exposed  = what the exchange outlasts the slowest backward pass by
        waiting  = the slowest rank's wait for data

    Args:
        groups: unlike groups of like ranks
        cost: of the exchanges
        micro_steps: to one step of the optimizer, [cluster]
        exchanges_each: whether each micro-step exchanges

    Where each micro-step exchanges, ranks meet in each, and the script's other work falls before the next one.
    """
    ahead = [group.wait_s + group.forward_s for group in groups]
    later = micro_steps - 1
    if not exchanges_each:
        leads = [
            later * (group.wait_s + group.forward_s + group.backward_s + group.other_s) + lead
            for group, lead in zip(groups, ahead, strict=True)
        ]
        backward_end, exchange_end = overlap(groups, leads, cost)
        exposed = np.maximum(exchange_end - backward_end, 0)
    else:
        leads = [group.other_s + lead for group, lead in zip(groups, ahead, strict=True)]
        first_backward, first_exchange = overlap(groups, ahead, cost)
        backward, exchange = overlap(groups, leads, cost)
        backward_end = first_backward + later * backward
        exposed = np.maximum(first_exchange - first_backward, 0) + later * np.maximum(exchange - backward, 0)
    slowest = slowest_group(groups, micro_steps, exchanges_each=exchanges_each)
    waiting = micro_steps * _of_group([group.wait_s for group in groups], slowest)
    after = _longest([group.optimizer_s + group.other_s for group in groups])
    return Iteration(backward_end - waiting + after, exposed, waiting)


def slowest_group(groups: Sequence[GroupWork], micro_steps: Ints, *, exchanges_each: bool = False) -> Ints:
    """The group whose last backward pass ends last, [cluster]."""
    if len(groups) == 1:
        return np.zeros(len(micro_steps), np.int64)
    before = (
        1 if exchanges_each else micro_steps - 1
    )  # the other work of micro-steps before, since the ranks last met
    rounds = 1 if exchanges_each else micro_steps
    ends = [rounds * (g.wait_s + g.forward_s + g.backward_s) + before * g.other_s for g in groups]
    slowest: Ints = np.argmax(ends, axis=0)
    return slowest


def overlap(
    groups: Sequence[GroupWork], leads_s: Sequence[Floats], cost: ExchangeCost
) -> tuple[Floats, Floats]:
    """When the slowest backward pass ends, and when the last exchange ends [s], a row a cluster.

    Bucket k starts once it is ready on the slowest rank and an exchange slot is free:

        start_k = max(ready_k, slot free),   end_k = start_k + latency + seconds_per_byte x bytes_k

    While an exchange is in flight, compute takes `slow_down` times as long, so what is ready after w seconds of
    undisturbed compute is ready later by the compute that exchanges kept from being done meanwhile.

    Args:
        groups: unlike groups of like ranks
        leads_s: from the start to the start of each group's backward pass [s]
        cost: of the exchanges

    Assumes that exchanges at once do not slow one another. Where one fills the link, two of them would share it:
    such exchanges belong into one slot. The idea of simulating the overlap is from Srifty, arXiv 2011.14243; the
    recurrence is our own.
    """
    backward_end = _longest([lead + group.backward_s for group, lead in zip(groups, leads_s, strict=True)])
    if not len(cost.bucket_bytes):
        return backward_end, np.zeros_like(backward_end)
    if cost.slot_count == 1 and cost.slow_down == 1:
        return backward_end, _one_slot_end(groups, leads_s, cost)
    return _recurrence(groups, leads_s, cost, backward_end)


def fitted_slow_down(alone_s: float, beside_s: float, in_flight_s: float) -> float:
    """The factor on compute while an exchange is in flight, from two timings of the same compute.

        beside = alone + (1 - 1 / f) in_flight

    Args:
        alone_s: forward and backward without exchange [s]
        beside_s: the same with exchange [s], up to its own end
        in_flight_s: time within it at which an exchange was in flight [s]

    Returns:
        f >= 1; 1 where nothing was in flight. Where the same exchange lets no compute pass at all, no factor would
        do, and it is 100.
    """
    if in_flight_s <= 0:
        return 1.0
    lost = (beside_s - alone_s) / in_flight_s
    return 1 / (1 - min(max(lost, 0.0), 0.99))


def _ready(groups: Sequence[GroupWork], leads_s: Sequence[Floats], k: int) -> Floats:
    """When bucket k is ready on the slowest rank, without any exchange beside it [s]."""
    return _longest(
        [
            lead + float(group.ready_at[k]) * group.backward_s
            for group, lead in zip(groups, leads_s, strict=True)
        ]
    )


def _one_slot_end(groups: Sequence[GroupWork], leads_s: Sequence[Floats], cost: ExchangeCost) -> Floats:
    """End of the last exchange with one slot and no slow-down.

    Unrolled, it is the latest over k of ready_k + (exchange of bucket k and all after it):

        end_last = max_k (ready_k + (K - k) latency + seconds_per_byte x sum_{j >= k} bytes_j)
    """
    bytes_left = np.cumsum(cost.bucket_bytes[::-1])[::-1]
    end = np.zeros_like(cost.latency_s)
    for k, left in enumerate(bytes_left):
        ready = _ready(groups, leads_s, k)
        ready += (len(bytes_left) - k) * cost.latency_s
        ready += float(left) * cost.seconds_per_byte
        np.maximum(end, ready, out=end)
    return end


def _recurrence(
    groups: Sequence[GroupWork], leads_s: Sequence[Floats], cost: ExchangeCost, backward_work_s: Floats
) -> tuple[Floats, Floats]:
    """The same bucket by bucket, with several slots and a slow-down f.

    Kept from bucket to bucket: p, the last start; D, the compute done until then; h, the latest end so far. From p
    to h some exchange is in flight, since all have started by p; after h there is none. So work w is done at

        p + min(f d, d + (1 - 1/f) (h - p)),   d = max(0, w - D)

    All ranks compute at one pace, so the rank with the most work before it is the slowest throughout.
    """
    f = cost.slow_down
    lost = 1 - 1 / f
    zero = np.zeros_like(cost.latency_s)
    start, done, latest, backward_end = zero, zero, zero, backward_work_s
    free = [zero] * cost.slot_count  # when each slot is free, soonest first
    for k, size in enumerate(cost.bucket_bytes):
        ready = np.maximum(_ready(groups, leads_s, k) - done, 0)
        busy = latest - start
        if f > 1:
            ready = np.minimum(f * ready, ready + lost * busy)
        ready += start
        begin = np.maximum(ready, free[0])
        if f > 1:
            backward_end = _done_at(backward_work_s, start, done, busy, f, backward_end)
            passed = begin - start
            done = done + passed - lost * np.minimum(passed, busy)
        else:
            done = begin
        start = begin
        end = begin + (cost.latency_s + float(size) * cost.seconds_per_byte)
        latest = np.maximum(latest, end)
        for slot in range(1, cost.slot_count):
            free[slot - 1] = np.minimum(end, free[slot])
            end = np.maximum(end, free[slot])
        free[-1] = end
    if f > 1:
        backward_end = _done_at(backward_work_s, start, done, latest - start, f, backward_end)
    return backward_end, latest


def _done_at(
    work_s: Floats, start: Floats, done: Floats, busy: Floats, f: float, otherwise: Floats
) -> Floats:
    """When this much work is done, from what is known at `start`; `otherwise` where it was done before."""
    left = work_s - done
    at = start + np.minimum(f * left, left + (1 - 1 / f) * busy)
    return np.where(left > 0, at, otherwise)


def _longest(times: Sequence[Floats]) -> Floats:
    longest = times[0]
    for other in times[1:]:
        longest = np.maximum(longest, other)
    return longest


def _of_group(times: Sequence[Floats], group: Ints) -> Floats:
    if len(times) == 1:
        return times[0]
    chosen: Floats = np.take_along_axis(np.stack(times), group[None, :], axis=0)[0]
    return chosen
