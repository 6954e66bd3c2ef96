"""The bed: a testbed network whose ranks stay up, and what is measured on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.testbed.setups import GBIT, BedNode, Setup
from srifty.clouds.testbed_network import NodeLink, Shape, TestbedNetwork, shaped_network
from srifty.clouds.testbed_ranks import TestbedRanks
from srifty.records import AllReduceSample
from srifty.records.emulated_job import EmulatedJob

COMMAND = [sys.executable, "-m", "srifty.profiling.rank_server"]
DISTURBED = 0.25
"""A point is measured again where others took more than this share of the processors."""
MOST_TRIES = 3


@dataclass(frozen=True)
class Point:
    """A measurement: the steps of rank 0 [s], and the share of the processors that others took meanwhile."""

    step_s: tuple[float, ...]
    others: float

    @property
    def centre_s(self) -> float:
        """The median step."""
        return median(self.step_s)


@dataclass
class Bed:
    """Nodes and ranks that are up; `ranks_of` gives the ranks on each node."""

    network: TestbedNetwork
    ranks: TestbedRanks
    ranks_of: tuple[tuple[int, ...], ...]
    has_racks: bool

    def steps(self, setup: Setup, job: EmulatedJob, *, steps: int, cold: int = 3) -> Point:
        """Time the steps of a setup, again where others disturbed it."""
        tried = []
        for attempt in range(MOST_TRIES):
            tried.append(self._steps(setup, job, steps, cold, attempt))
            if tried[-1].others <= DISTURBED:
                break
        return min(tried, key=lambda point: point.others)

    def _steps(self, setup: Setup, job: EmulatedJob, steps: int, cold: int, seed: int) -> Point:
        chosen = self.place(setup.nodes, setup.uplink_gbit)
        per_rank = [node for node in setup.nodes for _ in range(node.ranks)]
        with _watching(self.ranks.processes()) as told:
            answers = self.ranks.ask(
                chosen,
                {
                    "do": "steps",
                    "job": job.model_dump(mode="json"),
                    "batch": [node.batch for node in per_rank],
                    "speed": [node.speed for node in per_rank],
                    "noise": [setup.noise] * len(per_rank),
                    "accumulation": setup.accumulation,
                    "steps": steps,
                    "cold": cold,
                    "seed": seed,
                },
            )
        return Point(tuple(answers[0]["step_s"]), told["others"])

    def exchanges(
        self,
        nodes: Sequence[BedNode],
        sizes: Sequence[int],
        *,
        repeats: int,
        uplink_gbit: float | None = None,
    ) -> list[AllReduceSample]:
        """Time AllReduces of these sizes [bytes] over the nodes."""
        chosen = self.place(nodes, uplink_gbit)
        found = []
        for size in sizes:
            answers = self.ranks.ask(chosen, {"do": "allreduce", "bytes": size, "repeats": repeats})
            longest = [max(times) for times in zip(*(one["duration_s"] for one in answers), strict=True)]
            found += [
                AllReduceSample(
                    instance_types=tuple(sorted({node.instance_type for node in nodes})),
                    node_count=len(nodes),
                    gpu_count=sum(node.ranks for node in nodes),
                    backend="gloo",
                    link_bytes_per_s=min(node.rate_gbit for node in nodes) * GBIT,
                    message_bytes=size,
                    duration_s=duration_s,
                    repeat=repeat,
                )
                for repeat, duration_s in enumerate(longest)
            ]
        return found

    def place(self, nodes: Sequence[BedNode], uplink_gbit: float | None) -> list[int]:
        """Give the links their rates, and choose the ranks; nodes of two racks are taken by turns."""
        order = range(len(self.ranks_of))
        if uplink_gbit is not None:
            half = len(self.ranks_of) // 2
            order = [*range(half), *range(half, len(self.ranks_of))]  # type: ignore[assignment]
            first = (len(nodes) + 1) // 2
            order = [*order[:first], *order[half : half + len(nodes) - first]]  # type: ignore[assignment]
            self.network.shape_uplink(Shape(uplink_gbit * GBIT))
        elif self.has_racks:
            self.network.shape_uplink(Shape(20 * GBIT))
        chosen: list[int] = []
        for number, node in zip(order, nodes, strict=False):
            self.network.shape(number, Shape(node.rate_gbit * GBIT))
            chosen += self.ranks_of[number][: node.ranks]
        return chosen


@contextmanager
def bed(name: str, node_count: int, *, ranks_a_node: int = 1, has_racks: bool = False) -> Iterator[Bed]:
    """A network with its ranks, gone afterwards."""
    links = [
        NodeLink(Shape(GBIT), rack=int(has_racks and number >= node_count // 2))
        for number in range(node_count)
    ]
    nodes = [number for number in range(node_count) for _ in range(ranks_a_node)]
    with (
        shaped_network(name, links, uplink=Shape(20 * GBIT) if has_racks else None) as network,
        TestbedRanks(network, nodes, COMMAND) as ranks,
    ):
        ranks_of = tuple(
            tuple(rank for rank, node in enumerate(nodes) if node == number) for number in range(node_count)
        )
        yield Bed(network, ranks, ranks_of, has_racks)


@contextmanager
def _watching(ours: Sequence[int]) -> Iterator[dict[str, float]]:
    """Share of the processors' time that processes other than ours took during the block."""
    told: dict[str, float] = {}
    busy, own, begin = _busy_s(), _own_s(ours), time.perf_counter()
    yield told
    passed = time.perf_counter() - begin
    spent = (_busy_s() - busy) - (_own_s(ours) - own)
    told["others"] = max(0.0, spent / passed / (os.cpu_count() or 1))


def _busy_s() -> float:
    fields = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, *_ = fields
    del irq, softirq  # the kernel's own work on our packets
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _own_s(processes: Sequence[int]) -> float:
    total = 0
    for process in (*processes, os.getpid()):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def scored(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Predicted over measured, less 1, of every setup."""
    return {key: predicted[key] / measured[key] - 1 for key in measured}
