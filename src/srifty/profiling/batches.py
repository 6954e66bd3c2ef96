"""Which batches to measure, where the job does not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

MOST_BATCHES = 5
FEWEST_BATCHES = 3
LARGEST = 65_536
"""No larger batch is tried, unless it is asked for."""

_APART = 1.25


def smallest_batch(model: nn.Module) -> int:
    """1, or 2 with batch normalisation, which needs more than one value a channel to train.

    A layer in evaluation mode (frozen statistics) does not count.
    """
    from torch import nn  # a search for the largest batch of a command needs no torch here

    needs_two = any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in model.modules()
    )
    return 2 if needs_two else 1


def doubling_batches(
    smallest: int, *, step_s: Callable[[int], float | None], longest_s: float, largest: int | None = None
) -> tuple[list[int], int | None]:
    """Double from the smallest batch while steps stay short and fit.

    Args:
        smallest: where to start [samples]
        step_s: batch -> length of a step [s]; None where it does not fit
        longest_s: no further doubling once a step takes this long [s]; three batches are tried in any case
        largest: no batch above this [samples], for example the global batch

    Returns:
        some of those that fitted, from the smallest to the largest, and the batch that did not fit, if one was met
    """
    limit = min(largest or LARGEST, LARGEST)
    fitted: list[int] = []
    batch = smallest
    while batch <= max(limit, smallest):
        took_s = step_s(batch)
        if took_s is None:
            return spread_out(fitted), batch
        fitted.append(batch)
        if took_s >= longest_s and len(fitted) >= FEWEST_BATCHES:
            break
        batch *= 2
    return spread_out(fitted), None


def batches_up_to(largest: int, *, smallest: int) -> list[int]:
    """Batches to time where the largest is known: it, and some doublings below, well apart from it."""
    below = []
    batch = smallest
    while batch * _APART <= largest:
        below.append(batch)
        batch *= 2
    return [*spread_out(below), largest]


def spread_out(batches: list[int]) -> list[int]:
    """At most `MOST_BATCHES` of these, the first and the last among them, about as far apart as they can be.

    A plan may give a GPU any share of the batch, so the small ones are as much asked for as the large.
    """
    if len(batches) <= MOST_BATCHES:
        return batches
    step = (len(batches) - 1) / (MOST_BATCHES - 1)
    return [batches[round(i * step)] for i in range(MOST_BATCHES)]
