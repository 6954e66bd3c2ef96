"""Largest batch that fits on a GPU whose memory is not that of the measured one."""

from __future__ import annotations

from srifty.records.job_profile import JobProfile
from srifty.records.offer import Offer

SAME_MEMORY = 1.2
"""Sizes within this factor are one size: drivers report 14.6 GiB for what is sold as 16."""
RUNTIME_BYTES = 2**30
"""Held by the driver and its libraries whatever the batch."""
STATE_BYTES_PER_TRAINABLE_BYTE = 4
"""Weights, gradients and Adam's two moments."""
MEMORY_SHARE = 0.92
"""Share of the memory that is planned with where the batch is derived and not tried."""


def is_same_memory(profile: JobProfile, offer: Offer) -> bool:
    """Whether the offer's GPU has the memory of the one that was measured."""
    if profile.gpu_memory_bytes is None:
        return True
    return 1 / SAME_MEMORY <= offer.gpu_memory_bytes / profile.gpu_memory_bytes <= SAME_MEMORY


def largest_batch(profile: JobProfile, gpu_memory_bytes: int) -> int:
    """Largest batch that is taken to fit [samples]; 0 where none does.

    With the measured memory or more it is the measured one. With less, memory is taken to be a fixed part and
    a part in proportion to the batch. What the largest measured batch used is known only to be no more than
    the whole memory, which makes the slope an upper bound and the result a lower one:

        batch <= max_batch x (share x memory - fixed) / (measured memory - fixed)

    with fixed = runtime + 4 x trainable bytes.
    """
    measured = profile.gpu_memory_bytes
    if measured is None or gpu_memory_bytes * SAME_MEMORY >= measured:
        return profile.max_batch
    fixed = RUNTIME_BYTES + STATE_BYTES_PER_TRAINABLE_BYTE * profile.trainable_bytes
    left = MEMORY_SHARE * gpu_memory_bytes - fixed
    if left <= 0 or measured <= fixed:
        return 0
    return min(profile.max_batch, int(profile.max_batch * left / (measured - fixed)))
