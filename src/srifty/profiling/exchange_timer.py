"""Time AllReduce in one group of ranks: warm, repeated, and by the slowest of them."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

from srifty.profiling.host_memory import available_bytes
from srifty.profiling.probe_plan import Point, repeat_count

SMALL_BYTES = 2**18
IN_A_ROW = 8
"""Exchanges of small messages are timed in a row, else the ranks' unlike starts would be most of the time."""
SHARE_OF_MEMORY = 0.5


class ExchangeTimer:
    """Times exchanges between the ranks of a group; every rank of it calls `measure` with the same arguments."""

    def __init__(self, group: dist.ProcessGroup, place: torch.device) -> None:
        self._group, self._place = group, place

    def measure(self, point: Point, expected_s: float) -> list[float]:
        """Time of each repeat, the longest over all ranks [s]; the first exchanges of a group warm it up.

        Args:
            point: size and number at once
            expected_s: about how long one takes, which sets how often it is repeated [s]
        """
        shape = (point.message_bytes // 4,)
        buffers = [torch.zeros(shape, device=self._place) for _ in range(point.concurrency)]
        in_a_row = IN_A_ROW if point.message_bytes <= SMALL_BYTES else 1
        found = []
        for repeat in range(1 + repeat_count(expected_s)):
            for buffer in buffers:
                buffer.fill_(1.0)  # sums of sums grow beyond what a float holds
            self._together()
            start = time.perf_counter()
            for _ in range(in_a_row):
                works = [dist.all_reduce(buffer, group=self._group, async_op=True) for buffer in buffers]
                for work in works:
                    work.wait()
            self._finish()
            if repeat > 0:
                found.append((time.perf_counter() - start) / in_a_row)
        slowest = torch.tensor(found, dtype=torch.float64, device=self._place)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=self._group)
        return [float(seconds) for seconds in slowest.tolist()]

    def _together(self) -> None:
        """Start when all are there: an exchange of one number, twice, since the first lets ranks go one by one."""
        for _ in range(2):
            dist.all_reduce(torch.zeros(1, device=self._place), group=self._group)
        self._finish()

    def _finish(self) -> None:
        if self._place.type != "cpu":
            torch.accelerator.synchronize(self._place)


def largest_message_bytes(place: torch.device) -> int:
    """Largest message of which two, and what the library copies, fit in a share of the memory that is free [bytes]."""
    if place.type == "cuda":
        free, _ = torch.cuda.mem_get_info(place)
    else:
        free = available_bytes() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return int(SHARE_OF_MEMORY * free / 4)
