"""Testbed ranks: processes on the nodes of a testbed that stay up and answer questions, a JSON line each."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from srifty.clouds.testbed_network import TestbedNetwork
from srifty.errors import CloudRefused

_START_S = 120.0


class TestbedRanks:
    """One process a rank; rank r is on node `nodes[r]`."""

    __test__ = False

    def __init__(
        self, network: TestbedNetwork, nodes: Sequence[int], command: Sequence[str], *, realtime: bool = False
    ) -> None:
        """Start the ranks and wait until each has said that it is ready.

        Args:
            network: with the nodes
            nodes: the node of each rank
            command: what a rank runs; --rank, --world and --address are added
            realtime: whether ranks go before ordinary processes (chrt -r 1): steadier, and it starves others
        """
        self.nodes = tuple(nodes)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pending: list[bytes] = []
        self._groups: set[tuple[int, ...]] = set()
        try:
            for rank, node in enumerate(nodes):
                given = [
                    "--rank",
                    str(rank),
                    "--world",
                    str(len(nodes)),
                    "--address",
                    network.address(nodes[0]),
                ]
                whole = [*(["chrt", "-r", "1"] if realtime else []), *command, *given]
                self._processes.append(
                    subprocess.Popen(  # noqa: S603 - an argument list of the caller's
                        network.inside(node, whole),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=self._log,
                        env={**os.environ, "OMP_NUM_THREADS": "1"},
                    )
                )
                self._pending.append(b"")
            self._replies(range(len(nodes)), _START_S)
        except BaseException:
            self.close()
            raise

    def ask(self, ranks: Sequence[int], question: Mapping[str, Any], *, seconds: float = 300) -> list[Any]:
        """Ask some ranks the same, and give their answers in that order.

        Raises:
            CloudRefused: a rank died, failed or did not answer in time; the others are of no more use
        """
        if tuple(ranks) not in self._groups:
            self._groups.add(tuple(ranks))
            everyone = range(len(self.nodes))
            self._send(everyone, {"do": "group", "members": list(ranks)})
            self._replies(everyone, _START_S)
        self._send(ranks, {**question, "ranks": list(ranks)})
        return self._replies(ranks, seconds)

    def _send(self, ranks: Sequence[int], question: Mapping[str, Any]) -> None:
        line = (json.dumps(question) + "\n").encode()
        for rank in ranks:
            pipe = self._processes[rank].stdin
            try:
                if pipe is not None:
                    pipe.write(line)
                    pipe.flush()
            except OSError:
                raise CloudRefused(f"rank {rank} has died:\n{self._said()}") from None

    def processes(self) -> list[int]:
        """Their process numbers."""
        return [process.pid for process in self._processes]

    def close(self) -> None:
        """End all ranks."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        until = time.monotonic() + 2
        for process in self._processes:
            try:
                process.wait(max(0.05, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _replies(self, ranks: Sequence[int], seconds: float) -> list[Any]:
        """One line of each of them."""
        until = time.monotonic() + seconds
        told: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                output = self._processes[rank].stdout
                assert output is not None  # noqa: S101 - it was asked for
                selector.register(output, selectors.EVENT_READ, rank)
            while len(told) < len(ranks):
                left = until - time.monotonic()
                ready = selector.select(max(0.0, left))
                if not ready:
                    silent = sorted(set(ranks) - set(told))
                    raise CloudRefused(f"ranks {silent} did not answer within {seconds:g} s:\n{self._said()}")
                for key, _ in ready:
                    rank = key.data
                    read = os.read(key.fd, 1 << 16)
                    if not read:
                        raise CloudRefused(f"rank {rank} has died:\n{self._said()}")
                    self._pending[rank] += read
                    if b"\n" in self._pending[rank]:
                        line, _, self._pending[rank] = self._pending[rank].partition(b"\n")
                        told[rank] = json.loads(line)
                        selector.unregister(key.fileobj)
        failed = {rank: answer["error"] for rank, answer in told.items() if "error" in answer}
        if failed:
            rank, error = min(failed.items())
            raise CloudRefused(f"rank {rank} failed: {error}")
        return [told[rank] for rank in ranks]

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]
