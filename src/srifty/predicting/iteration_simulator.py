"""One iteration: backward pass and gradient exchange overlap, ranks wait for the slowest.

Everything here works on columns, a row a cluster, since a search asks for 100,000 clusters at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Iteration:
    """Where the time of one step goes [s], a row a cluster; the step is their sum."""

    compute_s: Floats
    exposed_allreduce_s: Floats
    waiting_s: Floats

    @property
    def step_s(self) -> Floats:
        """Time from one step of the optimizer to the next."""
        return self.compute_s + self.exposed_allreduce_s + self.waiting_s


def exposed_allreduce_s(
    ready_s: Floats, latency_s: Floats, seconds_per_byte: Floats, bucket_bytes: Floats, backward_end_s: Floats
) -> Floats:
    """Time by which the gradient exchange outlasts the backward pass [s], a row a cluster.

    Bucket k starts once it is ready and bucket k-1 has been exchanged:

        end_k = max(ready_k, end_{k-1}) + exchange_k,   exchange_k = latency + seconds_per_byte x bytes_k
        exposed = max(0, end_last - backward_end)

    Unrolled, the last end is the latest over k of ready_k + (exchange of bucket k and all after it), which
    needs no loop over buckets that depends on the one before:

        end_last = max_k (ready_k + (K - k) latency + seconds_per_byte x sum_{j >= k} bytes_j)

    Args:
        ready_s: when each bucket is ready on the slowest rank [s], [cluster, bucket], rising
        latency_s: of one AllReduce [s], [cluster]
        seconds_per_byte: [s/byte], [cluster]
        bucket_bytes: [bucket], in the order of their exchange
        backward_end_s: when the slowest rank has ended its backward pass [s], [cluster]

    Assumes one exchange at a time. The idea of simulating the overlap is from Srifty, arXiv 2011.14243; the
    recurrence is our own.
    """
    bytes_left = np.cumsum(bucket_bytes[::-1])[::-1]
    exposed = np.zeros_like(backward_end_s)
    for k, left in enumerate(bytes_left):
        end = ready_s[:, k] + (len(bytes_left) - k) * latency_s + seconds_per_byte * left
        np.maximum(exposed, end - backward_end_s, out=exposed)
    return exposed


def longest_of(rank_count: Ints) -> Floats:
    """Expected largest of n draws from a standard normal distribution.

    E(n) = quantile((n - 0.375) / (n + 0.25))       (Blom, 1958; within 0.03)
    """
    # A cluster table holds few different counts, so each is worked out once.
    counts, where = np.unique(rank_count, return_inverse=True)
    normal = NormalDist()
    largest: Floats = np.array([normal.inv_cdf((n - 0.375) / (n + 0.25)) for n in counts.tolist()])[where]
    return largest
