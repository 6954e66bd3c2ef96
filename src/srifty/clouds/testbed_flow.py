"""What one TCP flow gets from one node of a testbed to another: the self-check of its links."""

from __future__ import annotations

import subprocess
import sys

from srifty.clouds.testbed_network import TestbedNetwork
from srifty.errors import CloudRefused

_PORT = 5001
_SINK = f"""
import socket, time
server = socket.create_server(("0.0.0.0", {_PORT}))
print("ready", flush=True)
peer, _ = server.accept()
buffer, count, begin = bytearray(1 << 20), 0, time.perf_counter()
while got := peer.recv_into(buffer):
    count += got
print(count / (time.perf_counter() - begin), flush=True)
"""
_SOURCE = f"""
import socket, sys, time
peer = socket.create_connection((sys.argv[1], {_PORT}))
until, data = time.perf_counter() + float(sys.argv[2]), bytes(1 << 18)
while time.perf_counter() < until:
    peer.sendall(data)
"""


def flow_bytes_per_s(network: TestbedNetwork, source: int, sink: int, *, seconds: float = 1.0) -> float:
    """Rate of one flow [bytes/s].

    Args:
        network: with both nodes
        source, sink: their numbers
        seconds: how long to send [s]

    Raises:
        CloudRefused: no flow came about
    """
    with subprocess.Popen(  # noqa: S603 - our own program, as an argument list
        network.inside(sink, [sys.executable, "-c", _SINK]), stdout=subprocess.PIPE, text=True
    ) as listening:
        assert listening.stdout is not None  # noqa: S101 - it was asked for
        listening.stdout.readline()
        sending = network.inside(source, [sys.executable, "-c", _SOURCE, network.address(sink), str(seconds)])
        if subprocess.run(sending, check=False).returncode != 0:  # noqa: S603
            listening.kill()
            raise CloudRefused(f"node {source} of the testbed does not reach node {sink}")
        return float(listening.stdout.readline())
