"""Self-check of the links: what one TCP flow gets through each rate."""

from __future__ import annotations

from benchmarks.testbed.setups import GBIT
from srifty.clouds.testbed_flow import flow_bytes_per_s
from srifty.clouds.testbed_network import Shape, TestbedNetwork


def link_rates(
    network: TestbedNetwork, rates_gbit: tuple[float, ...] = (0.25, 1.0)
) -> list[tuple[float, float]]:
    """Rate asked for, and rate that a flow from node 0 to node 1 gets [bytes/s]."""
    found = []
    for rate_gbit in rates_gbit:
        for node in (0, 1):
            network.shape(node, Shape(rate_gbit * GBIT))
        found.append((rate_gbit * GBIT, flow_bytes_per_s(network, 0, 1)))
    return found
