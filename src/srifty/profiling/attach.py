"""The second door of this room: a Job and its training command, unchanged -> a JobProfile.

The command is run once a batch in a process of its own, with a probe inside that follows its steps and ends it
once enough was seen. torch is imported there, and not here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from srifty.errors import InvalidInput, NotMeasured, SriftyError, WorkloadFailed
from srifty.profiling.attached_profile import Measured, measured_run, profile_of
from srifty.profiling.attached_run import RunResult, run_attached
from srifty.profiling.attached_steps import FEWEST_STEPS, SeenSteps, see_steps
from srifty.profiling.failed_run import failure, is_shortage, last_words
from srifty.records import Job, JobProfile

MAX_SECONDS = 300.0
PLACE = "{batch}"
"""In any argument of the command it stands for the batch."""
_USUAL_STEPS = 26
_TOO_SMALL = "more than 1 value per channel"
"""What batch normalisation says to a batch of one."""

Progress = Callable[[float, str], None]


def profile_command(
    job: Job,
    *,
    folder: Path,
    batches: Sequence[int],
    samples_per_step: int | None = None,
    max_seconds: float = MAX_SECONDS,
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
        on_progress: called with the share done (0 to 1) and what is done next

    Raises:
        InvalidInput: no command of that name; {batch} without batches, batches without {batch}; the command's
            Python cannot be reached
        WorkloadFailed: the command fails, without Srifty too
        NotMeasured: nothing stepped, or fewer than three steps in time
    """
    folder = folder.resolve()
    _check(job.command, folder, batches, samples_per_step, max_seconds)
    tell = on_progress or (lambda share, doing: None)
    profiling = _Profiling(job, folder, samples_per_step, max_seconds, tell)
    runs = profiling.run_all(sorted(set(batches)) or [None])
    tell(1.0, "done")
    return profile_of(job, runs, profiling.notes)


@dataclass
class _Profiling:
    """One profile on its way; `notes` are what the profile will state as assumptions."""

    job: Job
    folder: Path
    samples_per_step: int | None
    max_seconds: float
    tell: Progress
    notes: list[str] = field(default_factory=list)

    def run_all(self, batches: Sequence[int | None]) -> list[Measured]:
        """One run a batch, by rising batch, until one fails; what was measured before is kept."""
        measured: list[Measured] = []
        for number, batch in enumerate(batches):
            try:
                measured.append(self._run(batch, number / len(batches), 1 / len(batches)))
            except SriftyError as error:
                is_too_small = _TOO_SMALL in str(error) and number + 1 < len(batches)
                if not measured and not is_too_small:
                    raise
                self.notes.append(f"batch {batch} was left out: {str(error).splitlines()[0]}")
                if isinstance(error, WorkloadFailed | _DoesNotFit) and not is_too_small:
                    break
        return measured

    def _run(self, batch: int | None, share: float, of: float) -> Measured:
        command = [argument.replace(PLACE, str(batch)) for argument in self.job.command]
        doing = "running the script" if batch is None else f"batch {batch}"
        self.tell(share, doing)

        def on_steps(count: int) -> None:
            self.tell(share + of * min(count / _USUAL_STEPS, 0.95), f"{doing}, {count} steps seen")

        def run_bare(seconds: float) -> RunResult:
            self.tell(share, "running it without Srifty, to see whether it fails there too")
            return run_attached(command, self.folder, seconds=seconds, is_watched=False)

        result = run_attached(command, self.folder, seconds=self.max_seconds, on_steps=on_steps)
        steps = _enough_steps(result)
        if steps is None or result.observed is None:
            if is_shortage(result):
                raise _DoesNotFit(
                    f"{'the script' if batch is None else f'batch {batch}'} does not fit into memory "
                    f"({last_words(result.said)}); give a smaller one, or profile on a machine with more memory"
                )
            raise failure(result, command, self.max_seconds, run_bare)
        measured = measured_run(result.observed, steps, batch, self.samples_per_step)
        told = "" if batch is None else f"batch {batch}: "
        if result.written:
            names = ", ".join(result.written[:5]) + (", ..." if len(result.written) > 5 else "")
            self.notes.append(f"{told}the script wrote {len(result.written)} files into its folder: {names}")
        self.notes += [told + note for note in measured.notes]
        return measured


class _DoesNotFit(NotMeasured):
    """Memory ran out; no fault of the script's."""


def _enough_steps(result: RunResult) -> SeenSteps | None:
    """The steps that were seen, if they are enough and the script did not fail."""
    observed = result.observed
    if observed is None or observed.reason == "failed":
        return None
    if observed.reason == "ended" and result.ended.status not in (None, 0):
        return None
    steps = see_steps(observed)
    return steps if len(steps.timed) >= FEWEST_STEPS else None


def _check(
    command: Sequence[str],
    folder: Path,
    batches: Sequence[int],
    samples_per_step: int | None,
    max_seconds: float,
) -> None:
    if not command:
        raise InvalidInput("the job names no command: give one behind --, such as -- python train.py")
    if not folder.is_dir():
        raise InvalidInput(f"no folder {folder}, where the command was to run")
    program = command[0] if os.sep not in command[0] else str(folder / command[0])
    if shutil.which(program) is None:
        raise InvalidInput(f"command not found: {command[0]!r} is no program on PATH, nor one in {folder}")
    has_place = any(PLACE in argument for argument in command)
    if batches and not has_place:
        raise InvalidInput(
            f"batches {', '.join(map(str, batches))} are asked for, but no argument of the command holds {PLACE}: "
            f"write for example --batch-size {PLACE}, or leave --batch out"
        )
    if has_place and not batches:
        raise InvalidInput(f"the command holds {PLACE}: say which batches, for example --batch 8,16,32")
    if batches and samples_per_step is not None and len(set(batches)) > 1:
        raise InvalidInput("--samples-per-step is for a command without {batch}; leave one of the two out")
    for name, value in (("--samples-per-step", samples_per_step), ("--max-seconds", max_seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise InvalidInput(f"{name} is {value}: it must be above 0")
