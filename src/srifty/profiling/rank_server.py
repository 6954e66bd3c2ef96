"""Rank server: one rank that stays up and measures what it is asked for, a JSON line each; run as a module.

Between questions links can be given other rates, so that a configuration costs seconds and no start of processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from srifty.profiling.emulated_model import EmulatedDevice, EmulatedModel, EmulatedOptimizer
from srifty.records.emulated_job import EmulatedJob

TIMEOUT_S = 120.0


class RankServer:
    """Answers questions of two kinds: `steps` (DDP on an emulated model) and `allreduce`."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Measure what is asked for; every rank that is named must be asked the same."""
        match question["do"]:
            case "steps":
                return {"step_s": self._steps(question)}
            case "allreduce":
                return {"duration_s": self._allreduce(question)}
            case "group":
                self._make_group(tuple(question["members"]))
                return {}
        raise ValueError(f"unknown question {question['do']!r}")

    def _make_group(self, members: tuple[int, ...]) -> None:
        """A group that all ranks make, members or not: torch wants them to."""
        self._groups[members] = dist.new_group(
            list(members), backend="gloo", timeout=timedelta(seconds=TIMEOUT_S)
        )

    def _steps(self, question: dict[str, Any]) -> list[float]:
        """Time of each step [s], after the cold ones."""
        ranks = tuple(question["ranks"])
        place = ranks.index(dist.get_rank())
        device = EmulatedDevice(
            speed=question["speed"][place],
            noise=question["noise"][place],
            exchange_slowdown=question.get("exchange_slowdown", 1.0),
            random=random.Random(question.get("seed", 0) * 1000 + place),  # noqa: S311 - no secret
        )
        model = EmulatedModel(EmulatedJob(**question["job"]), device)
        optimizer = EmulatedOptimizer(model)
        ddp = DistributedDataParallel(model, process_group=self._groups[ranks], init_sync=False)
        if device.exchange_slowdown > 1:
            ddp.register_comm_hook((device, self._groups[ranks], len(ranks)), _counted)
        samples = torch.zeros(question["batch"][place], 1)
        micro_steps = question.get("accumulation", 1)
        step_s = []
        try:
            for number in range(question["cold"] + question["steps"]):
                if number == question["cold"]:
                    dist.barrier(self._groups[ranks])
                begin = time.perf_counter()
                for micro_step in range(micro_steps):
                    ddp.require_backward_grad_sync = micro_step == micro_steps - 1
                    ddp(samples).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if number >= question["cold"]:
                    step_s.append(time.perf_counter() - begin)
        finally:
            ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        return step_s

    def _allreduce(self, question: dict[str, Any]) -> list[float]:
        """Time of each exchange [s]; the longest over the ranks is the exchange's."""
        group = self._groups[tuple(question["ranks"])]
        slots = question.get("slots", 1)
        tensors = [torch.zeros(max(1, question["bytes"] // 4)) for _ in range(slots)]
        duration_s = []
        for number in range(1 + question["repeats"]):
            dist.barrier(group)
            begin = time.perf_counter()
            works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()
            if number:
                duration_s.append(time.perf_counter() - begin)
        return duration_s


# DDP asks for these two names, and reads the annotations at run time: as text they would be refused.
def _counted(state, bucket):  # type: ignore[no-untyped-def]
    """Exchange a bucket as DDP does, and tell the device that it is under way."""
    device, group, count = state
    device.in_flight += 1

    def ended(future):  # type: ignore[no-untyped-def]
        device.in_flight -= 1
        return future.value()[0].div_(count)

    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(ended)


def main() -> None:
    """Join the others, then answer until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, default=29500)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but torch lacks the export
        given.address, given.port, given.world, given.rank == 0, timedelta(seconds=TIMEOUT_S)
    )
    dist.init_process_group(
        "gloo",
        store=store,
        rank=given.rank,
        world_size=given.world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    server = RankServer()
    _say({"ready": given.rank})
    for line in sys.stdin:
        try:
            _say(server.answer(json.loads(line)))
        except Exception as error:
            _say({"error": f"{type(error).__name__}: {error}"})
    os._exit(0)  # the group's threads may wait for ranks that have gone


def _say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
