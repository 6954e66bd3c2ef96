"""The largest batch of a job: what caps the search for it, which batches are timed then, and how it was found.

What a try is, the caller says: two steps of a function that makes the model, or a run of an unchanged command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from srifty.errors import InvalidInput, NotMeasured, WorkloadFailed
from srifty.profiling.batches import FEWEST_BATCHES, LARGEST, batches_up_to
from srifty.profiling.largest_batch import (
    MEMORY_SHARE,
    Bound,
    Ending,
    Found,
    Outcome,
    find_largest_batch,
)
from srifty.records import Job

START = 8
HOST_SHARE = 0.9
"""Share of the host's available memory that a try on the CPU may take; the rest keeps the machine from swapping."""
HOST_RESERVE_SHARE = 0.05
"""A try ends once less than this share of what was available at first is left, whoever took it."""


@dataclass(frozen=True)
class MaxBatch:
    """What the search has found.

    Attributes:
        batch: the largest that fits with a margin [samples]
        batches: those to time, rising; all were tried
        peak_memory_bytes: by tried batch, where it is known
        memory_bytes: what a try could have at most; None: not known
        assumptions: how the largest was found, for the profile
    """

    batch: int
    batches: tuple[int, ...]
    peak_memory_bytes: dict[int, int]
    memory_bytes: int | None
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class Search:
    """A search, and the words in which it is told.

    Attributes:
        job: names perhaps the batches to time and what caps a batch
        fits: tries a batch
        tell: called with what is done next
        tried_by: what a try is: "two steps of each tried batch in a fresh process"
        where: what is tried on: "T4"
        memory_bytes: what a try can have at most; None: not known, unless a try tells it
        called: what a number of samples is to the user: "max_batch", or the option that gives it to a command
    """

    job: Job
    fits: Callable[[int], Outcome]
    tell: Callable[[str], None]
    tried_by: str
    where: str
    memory_bytes: int | None
    called: str = "max_batch"

    def run(self, max_batch: int | None, longest_step_s: float) -> MaxBatch:
        """Search the largest batch, and try each batch that is to be timed.

        Args:
            max_batch: no larger one is tried; None: none above 65,536
            longest_step_s: batches with longer steps are not timed, but for the first three [s]

        Raises:
            NotMeasured: no batch fits
            WorkloadFailed: the training code raised, at whichever batch
            InvalidInput: a cap below what batch normalisation needs; whatever else a try cannot use
        """
        tries = _Told(self.fits, self.tell, {})
        limit, why = _limit(self.job, max_batch)
        found = find_largest_batch(
            tries,
            start=max(self.job.batches, default=START),
            limit=limit,
            memory_bytes=self.memory_bytes,
        )
        if found.batch is None:
            raise self._nothing_fits(found, limit, why)
        notes = [self._how_found(found, found.batch, limit, why)]
        given = sorted(set(self.job.batches))
        notes += [
            f"batch {batch} was left out: it is above {self.called}, {found.batch}"
            for batch in given
            if batch > found.batch
        ]
        smallest = max((outcome.smallest_batch or 1 for outcome in found.outcomes.values()), default=1)
        wanted = [batch for batch in given if smallest <= batch <= found.batch]
        wanted = wanted or batches_up_to(found.batch, smallest=smallest)
        outcomes = {batch: tries(batch) for batch in wanted}
        failed = [batch for batch, outcome in outcomes.items() if outcome.ending is Ending.OUT_OF_MEMORY]
        if found.unstable is not None or failed:
            notes.append(
                f"memory is unstable: batch {found.unstable or failed[0]} ran out of it after a larger one had "
                f"fitted; something else on the device may have taken some"
            )
        timed = [batch for batch, outcome in outcomes.items() if outcome.fits]
        slow = [
            batch
            for batch in timed[FEWEST_BATCHES:]
            if (outcomes[batch].step_s or 0.0) > longest_step_s and not given
        ]
        notes += [
            f"batch {batch} fits and was not timed: a step takes {outcomes[batch].step_s:.1f} s"
            for batch in slow
        ]
        return MaxBatch(
            batch=found.batch,
            batches=tuple(batch for batch in timed if batch not in slow) or (found.batch,),
            peak_memory_bytes={
                batch: outcome.peak_memory_bytes
                for batch, outcome in tries.outcomes.items()
                if outcome.peak_memory_bytes is not None
            },
            memory_bytes=self.memory_bytes,
            assumptions=tuple(notes),
        )

    def _how_found(self, found: Found, batch: int, limit: int, why: str) -> str:
        said = f"{self.called} {batch} [samples] was found by search, with {self.tried_by}"
        if batch == limit:
            said += f"; it is {why}, and a larger one may fit"
        elif found.bound in (Bound.TIME, Bound.DATA):
            ending = Ending.TOO_SLOW if found.bound is Bound.TIME else Ending.TOO_FEW
            met = min(tried for tried, outcome in found.outcomes.items() if outcome.ending is ending)
            said += f"; a larger one may fit, but at batch {met} {found.outcomes[met].said}"
        elif found.bound is Bound.TRIES:
            said += f"; a larger one may fit, but the search ended after {len(found.outcomes)} tries"
        if found.keeps_margin is False:
            said += f"; it leaves less than {1 - MEMORY_SHARE:.0%} of the memory free and may not fit later"
        elif found.keeps_margin:
            said += (
                f"; it takes at most {MEMORY_SHARE:.0%} of the memory, DDP's copy of the gradients included"
            )
        elif found.bound is Bound.MEMORY:
            said += "; it is a step below the largest that fits, since the memory that it takes is not known"
        return said

    def _nothing_fits(self, found: Found, limit: int, why: str) -> NotMeasured | InvalidInput:
        tried = sorted(
            batch for batch, outcome in found.outcomes.items() if outcome.ending is not Ending.TOO_SMALL
        )
        if not tried:
            (outcome,) = found.outcomes.values()
            return InvalidInput(
                f"no batch may be above {limit}, {why}: batch normalisation trains with {outcome.smallest_batch} "
                f"samples or more"
            )
        fewest, name = found.outcomes[tried[0]], self.job.name
        if fewest.ending is Ending.TOO_SLOW:
            return NotMeasured(
                f"no batch of {name!r} could be tried on {self.where}: {fewest.said} at the smallest, "
                f"{tried[0]} [samples]; is it stuck, or does it load much at first?"
            )
        memory = "" if self.memory_bytes is None else f" ({gib(self.memory_bytes)})"
        return NotMeasured(
            f"no batch fits: {_listed(sorted(tried, reverse=True))} of {name!r} ran out of the memory of "
            f"{self.where}{memory}, the smallest with {fewest.said!r}; take less memory a sample (smaller inputs, "
            f"mixed precision, activation checkpointing) or run 'srifty profile' on a GPU with more memory"
        )


@dataclass(frozen=True)
class _Told:
    """Tries, each batch once, with progress; a failure says which batches had run before."""

    fits: Callable[[int], Outcome]
    tell: Callable[[str], None]
    outcomes: dict[int, Outcome]

    def __call__(self, batch: int) -> Outcome:
        if batch not in self.outcomes:
            self.tell(f"trying batch {batch} in a process of its own, try {len(self.outcomes) + 1}")
            try:
                self.outcomes[batch] = self.fits(batch)
            except WorkloadFailed as error:
                raise self._failed(error, batch) from None
        return self.outcomes[batch]

    def _failed(self, error: WorkloadFailed, batch: int) -> WorkloadFailed:
        ran = sorted(tried for tried, outcome in self.outcomes.items() if outcome.fits)
        if not ran:
            return error
        return WorkloadFailed(
            f"{error}; this is no want of memory, and {_listed(ran)} ran: mend the training code"
            + (f", or keep below with --max-batch {max(ran)}" if batch > max(ran) else ""),
            workload_traceback=error.workload_traceback,
        )


def on_the_cpu(memory_bytes: int | None) -> str:
    """A note on what memory is where there is no device with its own."""
    return (
        f"on the CPU a batch was taken to fit within {HOST_SHARE:.0%} of the memory available then, "
        f"{gib(memory_bytes)}"
    )


def gib(count: int | None) -> str:
    """Bytes for people."""
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"


def _limit(job: Job, max_batch: int | None) -> tuple[int, str]:
    """The least of what caps a batch, and what that is."""
    caps = [
        (max_batch or LARGEST, "as asked for" if max_batch else "the most that is tried unasked"),
        (job.global_batch, "the global batch"),
        (job.sample_count, "all samples there are"),
    ]
    return min((cap, why) for cap, why in caps if cap is not None)


def _listed(batches: list[int]) -> str:
    return f"batch{'es' if len(batches) > 1 else ''} {', '.join(map(str, batches))}"
