"""Memory of a tree of processes, looked at from outside: what several share counts once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from srifty.profiling.tree_memory import TreeMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
MIB = 2**20
PLENTY = 2**60

HOLDS = """
import os, sys
held = bytearray(b"x") * (100 * 2**20)
if {is_forked}:
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(0)
    print(child, flush=True)
else:
    del held
    print(0, flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(is_forked: bool) -> Iterator[set[int]]:
    """Process numbers of one that has held 100 MiB, and of its child that shares them."""
    command = [sys.executable, "-c", HOLDS.format(is_forked=is_forked)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield {process.pid, int(process.stdout.readline())} - {0}
        assert process.stdin is not None
        process.stdin.close()


def test_what_forked_processes_share_counts_once() -> None:
    memory = TreeMemory(limit_bytes=150 * MIB, reserve_bytes=0)
    with holding(is_forked=True) as processes:
        assert len(processes) == 2
        assert not memory.is_too_much(processes)
    assert memory.peak_bytes is not None
    assert 100 * MIB <= memory.peak_bytes <= 140 * MIB


def test_what_was_held_between_two_looks_is_seen() -> None:
    memory = TreeMemory(limit_bytes=50 * MIB, reserve_bytes=0)
    with holding(is_forked=False) as processes:
        assert memory.is_too_much(processes)
    assert memory.said.startswith("it took 0.1 GiB of memory")


def test_a_machine_that_runs_short_of_memory_is_told() -> None:
    memory = TreeMemory(limit_bytes=PLENTY, reserve_bytes=PLENTY)
    assert memory.is_too_much({os.getpid()})
    assert memory.said == "the machine ran short of memory"


def test_processes_that_have_gone_took_nothing_that_is_known() -> None:
    memory = TreeMemory(limit_bytes=1, reserve_bytes=0)
    assert not memory.is_too_much({2**22 + 1})
    assert memory.peak_bytes is None
