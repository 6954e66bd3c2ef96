"""Tries of batches of an unchanged command, each a run of a few steps, and what the way in which it ended means.

Memory that ran out is an Outcome and the search goes on; a failure of the script is an error at once, with its own
traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from srifty.errors import SriftyError
from srifty.profiling.attached_run import RunResult, at_batch, run_attached
from srifty.profiling.attached_steps import see_steps
from srifty.profiling.failed_run import (
    failure,
    fault_of_ours,
    has_failed,
    is_shortage,
    is_too_small,
    last_words,
    shortage,
)
from srifty.profiling.largest_batch import Ending, Outcome
from srifty.profiling.observation import Observation
from srifty.profiling.tree_memory import TreeMemory

STEPS = 3
"""The first stores the optimizer's state, the second finds the memory as all later ones do; one for what varies."""
FEWEST_STEPS = 2
_STEPS_WITH_SCALER = 20
"""Where a gradient scaler leaves out the first ones, until its scale is found."""
_AS_MANY = 0.97
"""Share of the data to be expected at a larger batch below which there are no more samples."""


@dataclass
class AttachedTries:
    """Tries batches of one command.

    Attributes:
        command: an argument list that holds {batch}
        folder: where it runs
        longest_s: a try that takes longer is ended [s]
        host_limit_bytes: what its processes may take of the machine's memory
        host_reserve_bytes: a try ends as out of memory once less than this is available on the machine
        device: what the script was seen to train on; "": not seen yet
    """

    command: Sequence[str]
    folder: Path
    longest_s: float
    host_limit_bytes: int
    host_reserve_bytes: int
    device: str = ""
    _sizes: dict[int, _Size] = field(default_factory=dict)

    def __call__(self, batch: int) -> Outcome:
        """Run a few steps at this batch.

        Raises:
            WorkloadFailed: the script failed, without Srifty too
            NotMeasured: it trains nothing, whatever the batch
            InvalidInput: its Python cannot be reached
        """
        result, memory = self._run(batch, STEPS)
        if result.observed is not None and _stepped(result.observed) < FEWEST_STEPS <= _seen(result):
            result, memory = self._run(batch, _STEPS_WITH_SCALER)
        observed = result.observed
        if is_shortage(result):
            return Outcome(Ending.OUT_OF_MEMORY, said=memory.said or shortage(result))
        if is_too_small(result):
            return Outcome(Ending.TOO_SMALL, smallest_batch=2 * batch, said=last_words(result.said))
        if fault_of_ours(result) is not None or has_failed(result):
            raise self._failure(result, batch)
        if _seen(result) < FEWEST_STEPS:
            return self._without_steps(result, batch)
        if observed is None:
            return Outcome(Ending.FITS)
        size = _Size.of(observed)
        if self._are_too_few(size, batch):
            return Outcome(
                Ending.TOO_FEW, said=f"the script had no more than {size.rows} samples to train on"
            )
        self._sizes[batch] = size
        return self._fits(observed, size, batch, memory)

    def _run(self, batch: int, steps: int) -> tuple[RunResult, TreeMemory]:
        memory = TreeMemory(self.host_limit_bytes, self.host_reserve_bytes)
        command = at_batch(self.command, batch)
        return (
            run_attached(command, self.folder, seconds=self.longest_s, steps=steps, memory=memory),
            memory,
        )

    def _failure(self, result: RunResult, batch: int) -> SriftyError:
        command = at_batch(self.command, batch)
        return failure(
            result,
            command,
            self.longest_s,
            lambda seconds: run_attached(command, self.folder, seconds=seconds, is_watched=False),
        )

    def _without_steps(self, result: RunResult, batch: int) -> Outcome:
        """Too slow, or without samples enough for steps; where nothing else has stepped, neither is to be said."""
        has_begun = any(one.batches_loaded or one.backwards or one.steps for one in result.processes)
        if result.ended.is_out_of_time and (has_begun or self._sizes):
            return Outcome(
                Ending.TOO_SLOW, said=f"{FEWEST_STEPS} steps did not end within {self.longest_s:g} s"
            )
        if not self._sizes:
            raise self._failure(result, batch)
        return Outcome(Ending.TOO_FEW, said=f"the script ended before {FEWEST_STEPS} steps")

    def _are_too_few(self, size: _Size, batch: int) -> bool:
        """Whether neither rows nor elements have grown with the batch since the next smaller one that fitted."""
        smaller = max((one for one in self._sizes if one < batch), default=None)
        if smaller is None:
            return False
        before, growth = self._sizes[smaller], _AS_MANY * batch / smaller
        return size.rows < growth * before.rows and size.elements < growth * before.elements

    def _fits(self, observed: Observation, size: _Size, batch: int, memory: TreeMemory) -> Outcome:
        told = observed.told
        self.device = told["device"]
        on_cpu = self.device == "cpu"
        exchanged = [one for one in observed.parameters if one.is_trained and one.sparse_bytes is None]
        parts = batch // size.rows if size.rows and batch % size.rows == 0 else 1
        steps = see_steps(observed).all
        return Outcome(
            Ending.FITS,
            peak_memory_bytes=memory.peak_bytes if on_cpu else told.get("peak_memory_bytes"),
            memory_bytes=self.host_limit_bytes if on_cpu else told.get("memory_bytes"),
            reserve_bytes=0 if observed.ddps else sum(one.size_bytes for one in exchanged),
            step_s=steps[-1].step_s if steps else None,
            smallest_batch=parts * (2 if told["needs_two_samples"] else 1),
        )


@dataclass(frozen=True)
class _Size:
    """The most rows that a call of the model had, and the most elements that a step had."""

    rows: int
    elements: int

    @classmethod
    def of(cls, observed: Observation) -> _Size:
        rows = (row for cut in observed.cuts for row in cut.rows)
        return cls(max(rows, default=0), max((cut.elements for cut in observed.cuts), default=0))


def _seen(result: RunResult) -> int:
    """Steps of the optimizer."""
    return max((process.steps for process in result.processes), default=0)


def _stepped(observed: Observation) -> int:
    """Those of them that a gradient scaler did not leave out."""
    return sum(not cut.is_skipped for cut in observed.cuts)
