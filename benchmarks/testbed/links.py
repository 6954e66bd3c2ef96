"""Self-check of the links: what one TCP flow gets through each rate."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.testbed.setups import GBIT
from srifty.clouds.testbed_network import Shape, TestbedNetwork

SECONDS = 1.0
_SINK = """
import socket, time
server = socket.create_server(("0.0.0.0", 5001))
print("ready", flush=True)
peer, _ = server.accept()
buffer, count, begin = bytearray(1 << 20), 0, time.perf_counter()
while got := peer.recv_into(buffer):
    count += got
print(count / (time.perf_counter() - begin), flush=True)
"""
_SOURCE = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5001))
until, data = time.perf_counter() + float(sys.argv[2]), bytes(1 << 18)
while time.perf_counter() < until:
    peer.sendall(data)
"""


def link_rates(
    network: TestbedNetwork, rates_gbit: tuple[float, ...] = (0.25, 1.0)
) -> list[tuple[float, float]]:
    """Rate asked for, and rate that a flow from node 0 to node 1 gets [bytes/s]."""
    found = []
    for rate_gbit in rates_gbit:
        for node in (0, 1):
            network.shape(node, Shape(rate_gbit * GBIT))
        with subprocess.Popen(
            network.inside(1, [sys.executable, "-c", _SINK]), stdout=subprocess.PIPE, text=True
        ) as sink:
            assert sink.stdout is not None
            sink.stdout.readline()
            subprocess.run(
                network.inside(0, [sys.executable, "-c", _SOURCE, network.address(1), str(SECONDS)]),
                check=True,
            )
            found.append((rate_gbit * GBIT, float(sink.stdout.readline())))
    return found
