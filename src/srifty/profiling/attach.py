"""The second door of this room: a Job and its training command, unchanged -> a JobProfile.

The command is run once a batch in a process of its own, with a probe inside that follows its steps and ends it
once enough was seen. torch is imported there, and not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from srifty.errors import NotMeasured, SriftyError, WorkloadFailed
from srifty.profiling.attach_input import check_command, check_numbers, check_search
from srifty.profiling.attached_profile import Measured, measured_run, profile_of
from srifty.profiling.attached_run import MOST_FILES, RunResult, at_batch, run_attached
from srifty.profiling.attached_search import search_command, with_max_batch
from srifty.profiling.attached_steps import FEWEST_STEPS, SeenSteps, see_steps
from srifty.profiling.failed_run import (
    TOO_SMALL,
    failure,
    fault_of_ours,
    has_failed,
    how_it_failed,
    is_shortage,
    shortage,
)
from srifty.profiling.max_batch import MaxBatch
from srifty.profiling.observation import Observation
from srifty.records import Job, JobProfile

MAX_SECONDS = 300.0
_USUAL_STEPS = 26

Progress = Callable[[float, str], None]


def profile_command(
    job: Job,
    *,
    folder: Path,
    batches: Sequence[int],
    samples_per_step: int | None = None,
    max_seconds: float = MAX_SECONDS,
    find_max_batch: bool = False,
    max_batch: int | None = None,
    on_progress: Progress | None = None,
) -> JobProfile:
    """Profile an unchanged training command.

    What it writes into its folder is gone afterwards where the kernel allows a private view of the folder, and
    is listed in the profile where not. None of its processes is left.

    Args:
        job: names the command
        folder: where it runs
        batches: the command is run once for each, with {batch} replaced in its arguments; empty: it is run as it
            is, and the batch is the first dimension of the first tensor that enters the model
        samples_per_step: samples of one step of the optimizer, where that dimension is not the batch
        max_seconds: bound on each run [s]
        find_max_batch: search the largest batch that fits with a margin, each try a run of a few steps
        max_batch: nothing above this stands for {batch}; None: no such limit
        on_progress: called with the share done (0 to 1) and what is done next

    Raises:
        InvalidInput: no command of that name; {batch} without batches, batches without {batch}; the command's
            Python cannot be reached
        WorkloadFailed: the command fails, without Srifty too; with what was measured before it did
        NotMeasured: nothing stepped, or fewer than three steps in time; no batch fits
    """
    folder = folder.resolve()
    check_command(job.command, folder)
    if find_max_batch or max_batch is not None:
        check_search(job.command, batches, find_max_batch, max_batch)
    check_numbers(job.command, batches, samples_per_step, max_seconds, find_max_batch)
    tell = on_progress or (lambda share, doing: None)
    searched = None
    if find_max_batch:
        searched = search_command(
            job.model_copy(update={"batches": tuple(batches)}),
            folder=folder,
            max_batch=max_batch,
            max_seconds=max_seconds,
            tell=lambda doing: tell(0.0, doing),
        )
        batches = searched.batches
    elif max_batch is not None:
        batches = [batch for batch in batches if batch <= max_batch]
    profiling = _Profiling(job, folder, samples_per_step, max_seconds, tell, searched)
    try:
        profiling.run_all(sorted(set(batches)) or [None])
    except WorkloadFailed as error:
        error.partial = profiling.partial()
        raise
    tell(1.0, "done")
    return profiling.profile()


@dataclass
class _Profiling:
    """One profile on its way; `notes` are what the profile will state as assumptions."""

    job: Job
    folder: Path
    samples_per_step: int | None
    max_seconds: float
    tell: Progress
    searched: MaxBatch | None = None
    notes: list[str] = field(default_factory=list)
    measured: dict[int | None, Measured] = field(default_factory=dict)
    """By what stood for {batch}."""
    has_all_fitted: bool = True

    def run_all(self, batches: Sequence[int | None]) -> None:
        """One run a batch, by rising batch, until one does not fit."""
        for number, batch in enumerate(batches):
            try:
                self._run(batch, number / len(batches), 1 / len(batches))
            except SriftyError as error:
                is_too_small = TOO_SMALL in str(error) and number + 1 < len(batches)
                if not self.measured and not is_too_small:
                    raise
                if batch not in self.measured:
                    self.notes.append(f"batch {batch} was left out: {str(error).splitlines()[0]}")
                if isinstance(error, WorkloadFailed) and not is_too_small:
                    raise
                if isinstance(error, _DoesNotFit):
                    self.has_all_fitted = False
                    break

    def profile(self) -> JobProfile:
        """What all runs together give."""
        searched = self.searched
        notes = [*(searched.assumptions if searched is not None else ()), *self.notes]
        runs = list(self.measured.values())
        largest = max((batch for batch in self.measured if batch is not None), default=None)
        if searched is None or largest is None or not self.has_all_fitted:
            return profile_of(self.job, runs, notes)
        return with_max_batch(profile_of(self.job, runs, notes, is_searched=True), searched, largest)

    def partial(self) -> JobProfile | None:
        """What the runs before a failure give; None: nothing that can be used."""
        with suppress(SriftyError, ValueError):
            return self.profile() if self.measured else None
        return None

    def _run(self, batch: int | None, share: float, of: float) -> None:
        command = at_batch(self.job.command, batch)
        doing = "running the script" if batch is None else f"batch {batch}"
        self.tell(share, doing)

        def on_steps(count: int) -> None:
            self.tell(share + of * min(count / _USUAL_STEPS, 0.95), f"{doing}, {count} steps seen")

        def run_bare(seconds: float) -> RunResult:
            self.tell(share, "running it without Srifty, to see whether it fails there too")
            return run_attached(command, self.folder, seconds=seconds, is_watched=False)

        result = run_attached(command, self.folder, seconds=self.max_seconds, on_steps=on_steps)
        observed = _observed(result)
        steps = None if observed is None else _enough_steps(observed)
        if observed is None or steps is None or has_failed(result) or fault_of_ours(result) is not None:
            if is_shortage(result):
                raise _DoesNotFit(
                    f"{'the script' if batch is None else f'batch {batch}'} does not fit into memory "
                    f"({shortage(result)}); give a smaller one, or profile on a machine with more memory"
                )
            error = failure(result, command, self.max_seconds, run_bare)
            if observed is not None and steps is not None and isinstance(error, WorkloadFailed):
                with suppress(SriftyError):  # what went wrong is said by the script itself
                    self._keep(result, observed, steps, batch)
            raise error
        self._keep(result, observed, steps, batch)

    def _keep(self, result: RunResult, observed: Observation, steps: SeenSteps, batch: int | None) -> None:
        """Evaluate a run, and note what was odd."""
        measured = measured_run(observed, steps, batch, self.samples_per_step)
        notes = list(_written(result))
        if observed.reason == "failed":
            notes.append(
                f"after {len(steps.all)} steps, which are kept, the script failed {how_it_failed(result)}"
            )
        told = "" if batch is None else f"batch {batch}: "
        self.notes += [told + note for note in [*notes, *measured.notes]]
        self.measured[batch] = measured


class _DoesNotFit(NotMeasured):
    """Memory ran out; no fault of the script's."""


def _observed(result: RunResult) -> Observation | None:
    """What was seen, with how it ended where the program could not tell any more."""
    observed = result.observed
    if observed is None or observed.reason not in ("running", "ended"):
        return observed
    if result.ended.is_out_of_time:
        return replace(observed, reason="late")
    return replace(observed, reason="failed" if has_failed(result) else "ended")


def _enough_steps(observed: Observation) -> SeenSteps | None:
    """The steps that were seen, if they are enough."""
    steps = see_steps(observed)
    return steps if len(steps.timed) >= FEWEST_STEPS else None


def _written(result: RunResult) -> list[str]:
    """What the script has left in its folder."""
    if result.written is None:
        return []
    notes = []
    if result.written:
        names = ", ".join(result.written[:5]) + (", ..." if len(result.written) > 5 else "")
        notes.append(f"the script wrote {len(result.written)} files into its folder: {names}")
    if not result.is_all_looked_at:
        notes.append(
            f"the folder of the script holds more than {MOST_FILES:,} files; what it wrote there beyond the first "
            f"{MOST_FILES:,} is not listed"
        )
    return notes
