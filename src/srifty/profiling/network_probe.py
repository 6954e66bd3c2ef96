"""Measure AllReduce between the ranks that torchrun started; rank 0 chooses what, and keeps the time.

The door to measuring a network. No rank waits for ever: every wait in a collective has a limit, and one rank's
failure ends them all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import torch
import torch.distributed as dist

from srifty.errors import InvalidInput, NotMeasured
from srifty.profiling.chip import chip
from srifty.profiling.exchange_timer import ExchangeTimer, largest_message_bytes
from srifty.profiling.probe_plan import Point, ProbePlan, candidates, layouts
from srifty.records.network_profile import AllReduceSample, NetworkProfile
from srifty.records.text import size_text

BACKENDS = ("nccl", "gloo")
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 15.0, 60.0
LONGEST_MEASURING_S = 6 * 3600.0

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class _Rank:
    """One rank, as it tells itself to all others."""

    rank: int
    node: str
    instance_type: str
    message_limit_bytes: int


def measure_network(
    *,
    instance_type: str | None,
    backend: str | None,
    max_seconds: float,
    max_message_bytes: int,
    on_progress: Progress | None = None,
) -> NetworkProfile | None:
    """What was measured, on rank 0; None on the others. See `verbs.probe`."""
    check_asked(backend=backend, max_seconds=max_seconds)
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise InvalidInput(
            "one rank has no one to exchange with: start several, "
            "torchrun --nproc-per-node 4 -m srifty probe -o net.json, or add --ranks 4"
        )
    started = time.monotonic()
    place, chosen = _device(backend)
    timeout = timedelta(seconds=min(MOST_TIMEOUT_S, max(LEAST_TIMEOUT_S, max_seconds)))
    rank = os.environ.get("RANK", "?")
    try:
        dist.init_process_group("gloo", timeout=timeout)
        probe = _Probe(place, chosen, timeout, instance_type, max_message_bytes)
        found = probe.run(started + max_seconds, started, on_progress or (lambda _share, _what: None))
        dist.barrier()
        dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:  # torch's own errors are RuntimeErrors
        reason = " ".join(str(error).split())
        raise NotMeasured(
            f"rank {rank}: the exchange failed, since another rank ended or does not answer; nothing was written. "
            f"Start all ranks again ({chosen}: {reason[:160]})"
        ) from error
    return found


def check_asked(*, backend: str | None, max_seconds: float) -> None:
    """What was asked for, before any rank is started.

    Raises:
        InvalidInput: a limit that is none; an unknown backend
    """
    if not 1 <= max_seconds <= LONGEST_MEASURING_S:
        raise InvalidInput(
            f"--max-seconds is {max_seconds:g} [s]; it must lie between 1 and {LONGEST_MEASURING_S:g}"
        )
    if backend is not None and backend not in BACKENDS:
        raise InvalidInput(f"backend {backend!r} is not measured; there are {' and '.join(BACKENDS)}")


class _Probe:
    """The ranks, their groups, and what they do together."""

    def __init__(
        self,
        place: torch.device,
        backend: str,
        timeout: timedelta,
        instance_type: str | None,
        max_message_bytes: int,
    ) -> None:
        self._place, self._backend, self._timeout = place, backend, timeout
        limit = min(max_message_bytes, largest_message_bytes(place))
        node = os.environ.get("GROUP_RANK") or os.uname().nodename
        own = _Rank(dist.get_rank(), node, instance_type or "", limit)
        self._ranks: list[_Rank] = [own] * dist.get_world_size()
        dist.all_gather_object(self._ranks, own)
        nodes: dict[str, list[int]] = {}
        for one in self._ranks:
            nodes.setdefault(one.node, []).append(one.rank)
        self._nodes = list(nodes.values())
        self._fewest = min(map(len, self._nodes))
        self._limit = max(2**10, min(one.message_limit_bytes for one in self._ranks))
        self._timers: dict[tuple[int, int], ExchangeTimer | None] = {}

    def run(self, deadline: float, started: float, on_progress: Progress) -> NetworkProfile | None:
        """Measure until the deadline or until all is known well enough."""
        is_first = dist.get_rank() == 0
        plan = ProbePlan(candidates(layouts(len(self._nodes), self._fewest), self._limit))
        samples: list[AllReduceSample] = []
        while True:
            said: list[tuple[Point, float] | None] = [None]
            if is_first:
                left = deadline - time.monotonic()
                point = plan.next_point(left) if left > 0 or not samples else None
                if point is not None:
                    said = [(point, plan.expected_s(point) if plan.measured else 0.0)]
                    on_progress((time.monotonic() - started) / (deadline - started), _in_words(point))
            dist.broadcast_object_list(said, src=0)
            if said[0] is None:
                break
            point, expected_s = said[0]
            timer = self._timer(point)
            if timer is not None:
                repeats = timer.measure(point, expected_s)
                plan.add(point, repeats)
                samples += self._samples(point, repeats)
        if not is_first:
            return None
        return NetworkProfile(
            samples=tuple(samples), versions=_versions(self._backend), taken_at=datetime.now(UTC)
        )

    def _timer(self, point: Point) -> ExchangeTimer | None:
        """The timer of the point's group, which all ranks make together; None on a rank outside."""
        key = (point.node_count, point.gpus_per_node)
        if key not in self._timers:
            members = self._members(point)
            group = dist.new_group(members, backend=self._backend, timeout=self._timeout)
            is_in = dist.get_rank() in members
            self._timers[key] = ExchangeTimer(group, self._place) if is_in else None
        return self._timers[key]

    def _members(self, point: Point) -> list[int]:
        return sorted(
            rank for node in self._nodes[: point.node_count] for rank in node[: point.gpus_per_node]
        )

    def _samples(self, point: Point, repeats_s: list[float]) -> list[AllReduceSample]:
        members = self._members(point)
        given = {self._ranks[rank].instance_type for rank in members} - {""}
        kind = (
            "cpu"
            if self._place.type == "cpu"
            else chip(torch.get_device_module(self._place).get_device_name())
        )
        return [
            AllReduceSample(
                instance_types=tuple(sorted(given)) or (f"{self._fewest}x{kind}",),
                node_count=point.node_count,
                gpu_count=len(members),
                backend=self._backend,
                backend_version=_backend_version(self._backend),
                message_bytes=point.message_bytes,
                duration_s=seconds,
                repeat=repeat,
                concurrency=point.concurrency,
            )
            for repeat, seconds in enumerate(repeats_s)
        ]


def _device(backend: str | None) -> tuple[torch.device, str]:
    """The device of this rank, and the backend that exchanges what is on it."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count()
    if backend is None:
        backend = "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) else "gloo"
    if backend == "gloo":
        return torch.device("cpu"), backend
    if local >= gpus:
        raise InvalidInput(
            f"nccl needs a GPU for each rank: this is rank {local} on its machine, with {gpus}"
        )
    place = torch.device("cuda", local)
    torch.cuda.set_device(place)
    return place, backend


def _backend_version(backend: str) -> str:
    """NCCL's own; gloo is a part of torch."""
    if backend == "nccl":
        version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        return ".".join(map(str, version))
    return f"torch {torch.__version__}"


def _versions(backend: str) -> dict[str, str]:
    found = {"torch": str(torch.__version__), backend: _backend_version(backend)}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    return found


def _in_words(point: Point) -> str:
    at_once = f", {point.concurrency} at once" if point.concurrency > 1 else ""
    return f"{point.node_count} x {point.gpus_per_node} ranks, {size_text(point.message_bytes)}{at_once}"
