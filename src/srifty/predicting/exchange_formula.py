"""The ring formula with parameters that can be learned: what measured exchanges are fitted by.

Apart from the fit, because a saved model is evaluated by it where nothing is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

PARAMETERS = ("latency_s", "latency_growth", "share", "peer_growth", "sharpness")
"""In the order of the last axis of an array of parameters, each as its logarithm."""


@dataclass(frozen=True)
class Exchanges:
    """Exchanges as columns: who takes part, how much is sent, and over what.

    Attributes:
        node_count: nodes
        gpus_per_node: ranks on each; not whole where nodes differ
        message_bytes: gradients of one AllReduce [bytes]
        rate_bytes_per_s: nominal rate of the slowest link of the ring [bytes/s]
        concurrency: AllReduces of this size at once
    """

    node_count: Floats
    gpus_per_node: Floats
    message_bytes: Floats
    rate_bytes_per_s: Floats
    concurrency: Floats

    def __len__(self) -> int:
        return len(self.message_bytes)

    def of(self, rows: Ints | Bools) -> Self:
        """Some of the rows."""
        return type(self)(
            self.node_count[rows],
            self.gpus_per_node[rows],
            self.message_bytes[rows],
            self.rate_bytes_per_s[rows],
            self.concurrency[rows],
        )


def log_duration(exchanges: Exchanges, parameters: Floats) -> Floats:
    """Logarithm of the time of each AllReduce [log s].

        duration = (L^p + W^p)^(1/p)
        L = 2 (k - 1)^a x latency
        W = c x 2 (k - 1) / k x bytes / (share x rate) x (m / 2)^g

    k counts ranks, m the peers of the slowest level (nodes; in one node its GPUs), c exchanges at once. With
    a = 1, g = 0, p = 1 it is the ring of Patarasuk and Yuan (2009). A growth g above 0 is the share of the rate
    that more peers lose (stragglers, shared switches); a other than 1 is an algorithm other than a ring; p below 1
    is a library that changes its protocol between small and large messages, above 1 one that sends while it waits.

    Args:
        exchanges: the rows
        parameters: logarithms of PARAMETERS (latency [s], the others without unit), a row a row

    Assumes that every rank has the same link, or that the slowest sets the pace. Rises with bytes, nodes, GPUs and
    exchanges at once, falls with the rate, whatever the parameters.
    """
    latency, latency_growth, share, peer_growth, sharpness = np.moveaxis(parameters, -1, 0)
    ranks = exchanges.node_count * exchanges.gpus_per_node
    peers = np.where(exchanges.node_count > 1, exchanges.node_count, exchanges.gpus_per_node)
    hops = np.maximum(ranks - 1, 1e-9)
    waiting = np.log(2) + np.exp(latency_growth) * np.log(np.maximum(hops, 1.0)) + latency
    moving = (
        np.log(2 * hops / np.maximum(ranks, 1.0) * exchanges.concurrency * exchanges.message_bytes)
        - np.log(exchanges.rate_bytes_per_s)
        - share
        + np.exp(peer_growth) * np.log(np.maximum(peers, 2.0) / 2)
    )
    power = np.exp(sharpness)
    return np.asarray(np.logaddexp(power * waiting, power * moving) / power)


def slopes(exchanges: Exchanges, parameters: Floats, step: float = 1e-5) -> Floats:
    """Change of the log duration with each (log) parameter, [row, parameter], by central differences."""
    found = np.empty((len(exchanges), len(PARAMETERS)))
    for j in range(len(PARAMETERS)):
        up, down = parameters.copy(), parameters.copy()
        up[..., j] += step
        down[..., j] -= step
        found[:, j] = (log_duration(exchanges, up) - log_duration(exchanges, down)) / (2 * step)
    return found
