"""A whole job: how many steps, hence how long and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from srifty.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from srifty.records.job import Job


def step_count(job: Job, global_batch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Steps of the optimizer that the job takes with each global batch [samples].

    The last step is a whole one, even where fewer samples are left than it could take.

    Raises:
        InvalidInput: the job says neither samples nor steps
    """
    if job.step_count is not None:
        return np.full_like(global_batch, job.step_count)
    if job.sample_count is not None:
        # Rounded up in integers: a float would lose samples beyond 2^53.
        return -(-np.int64(job.sample_count) // global_batch)
    raise InvalidInput(f"job {job.name!r} has no length: give the number of samples to train on")
