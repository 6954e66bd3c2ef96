"""The third door of this room: a few lines in the user's own training code -> a JobProfile in a file.

Nothing here may stop or change a training: what goes wrong is said once, as a warning, and the training goes on.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from srifty.errors import InvalidInput, NotMeasured, SriftyError
from srifty.profiling.attached_profile import measured_run, profile_of
from srifty.profiling.attached_steps import FEWEST_STEPS, see_steps
from srifty.profiling.merged_profile import merged, same_job
from srifty.profiling.observation import Observation, read_observation
from srifty.records import Job, JobProfile
from srifty.records.files import check_writable, checked, read, write

if TYPE_CHECKING:
    from srifty.profiling.probe_inside import InsideWatch, Patches

SECONDS_PER_BATCH = 3.0
_PROBE = Path(__file__).resolve().parent / "on-python-path" / "srifty_probe"

_active: StepsProfiler | None = None


def profile_steps(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    batch: int | None = None,
    seconds_per_batch: float = SECONDS_PER_BATCH,
    time_checkpoint: bool = True,
) -> StepsProfiler:
    """Profile the training steps of a `with` block, and write a JobProfile once enough was seen.

        with srifty.profile_steps("t4.profile.json"):
            for inputs, labels in loader:
                ...

    It follows the steps of whatever optimizer steps in the block, in the thread that entered it. After 26 steps
    at least it takes its hooks away and writes the file, or at the end of the block if that comes first. Where the
    file is there already, another batch of the same job is added to it, and the same batch takes the old one's
    place; a file of another job is left as it is. In a distributed run only rank 0 writes.

    Nothing is raised into the block, not even for an argument that cannot be used: that is a warning.

    Args:
        path: the file to write
        name: of the job; None: that of the script
        batch: samples of one micro-step on one GPU; None: the first dimension of the first tensor that enters the
            model
        seconds_per_batch: how long to watch steady steps, where they are short [s]
        time_checkpoint: whether to save model and optimizer to a temporary file at the end, up to three times
            within about a second, to time it; not if they take more than 4 GiB
    """
    return StepsProfiler(
        path, name=name, batch=batch, seconds_per_batch=seconds_per_batch, time_checkpoint=time_checkpoint
    )


class StepsProfiler:
    """What `profile_steps` gives; with `start` and `stop` it serves where there is no block.

    Attributes:
        profile: what was written, with what the file held before; None: nothing (yet)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        batch: int | None = None,
        seconds_per_batch: float = SECONDS_PER_BATCH,
        time_checkpoint: bool = True,
    ) -> None:
        self.profile: JobProfile | None = None
        self.path = path
        self.name = name
        self.batch = batch
        self._seconds_per_batch = seconds_per_batch
        self._time_checkpoint = time_checkpoint
        self._watch: InsideWatch | None = None
        self._patches: Patches | None = None
        self._has_warned = False
        self._peak_before_bytes: int | None = None
        self._compiled_before_s = 0.0

    def start(self) -> None:
        """Begin to follow the steps; a profiler that is still at it elsewhere ends."""
        global _active
        try:
            if _active is not None and _active is not self:
                _active.stop()
            self.stop()
            self.profile, self._has_warned = None, False
            self._check()
            self._begin()
            _active = self
        except Exception as error:
            self._warn(error)
            self._take_off(is_between_steps=False)

    def stop(self, error: BaseException | None = None) -> None:
        """Take all hooks away, and write what was seen if that has not been done and is enough.

        Args:
            error: what ends the training; after an error of the code nothing is written
        """
        global _active
        watch = self._take_off(is_between_steps=False)
        if _active is self:
            _active = None
        if watch is not None and not watch.is_elsewhere and not isinstance(error, Exception):
            self._conclude(watch, is_enough=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(error)

    def _check(self) -> None:
        """Find out before the training what would be refused after it."""
        job = self._job()
        if self.batch is not None:
            checked(Job, name=job.name, batches=(self.batch,))
        if not self._seconds_per_batch >= 0:
            raise InvalidInput(
                f"seconds_per_batch is {self._seconds_per_batch}: expected a time from 0 on [s]"
            )
        check_writable(self.path)
        if Path(self.path).exists():
            same_job(read(self.path, JobProfile), job, str(self.path))

    def _begin(self) -> None:
        import torch

        find_probe()
        from srifty.profiling.probe_inside import InsideWatch, compiled_s

        self._compiled_before_s = compiled_s()
        cuda: Any = torch.cuda
        self._peak_before_bytes = cuda.max_memory_allocated() if cuda.is_initialized() else None
        self._watch = InsideWatch(
            torch,
            seconds=self._seconds_per_batch,
            has_checkpoint=self._time_checkpoint,
            on_enough=self._enough,
            on_fault=self._fault,
        )
        self._patches = self._watch.patches
        self._watch.begin()

    def _enough(self) -> None:
        """Between two steps: enough was seen, or this is not the rank that measures."""
        watch = self._take_off(is_between_steps=True)
        if watch is not None:
            self._conclude(watch, is_enough=True)

    def _fault(self, told: str) -> None:
        """A fault of the probe's; perhaps while an optimizer calls it."""
        self._warn(_Fault(told))
        self._take_off(is_between_steps=True)

    def _take_off(self, *, is_between_steps: bool) -> InsideWatch | None:
        """Take off everything, and give the watch that has just ended; None: it ended before.

        Args:
            is_between_steps: whether an optimizer may be calling us, whose hooks cannot be removed just then
        """
        watch, self._watch = self._watch, None
        try:
            if watch is not None:
                watch.end()
            if self._patches is not None:
                self._patches.take_off(is_at_once=not is_between_steps)
                if not is_between_steps:
                    self._patches = None
        except Exception as error:
            self._warn(error)
        return watch

    def _conclude(self, watch: InsideWatch, *, is_enough: bool) -> None:
        try:
            if watch.is_first_rank:
                with tempfile.TemporaryDirectory(prefix="srifty-") as folder:
                    watch.write(folder, is_enough=is_enough)
                    observed = read_observation(Path(folder))
                self._write(self._evaluated(observed))
        except Exception as error:
            self._warn(error)

    def _evaluated(self, observed: Observation | None) -> JobProfile:
        steps = see_steps(observed) if observed is not None and observed.cuts else None
        if observed is None or steps is None or not steps.all:
            raise NotMeasured(
                "no step of an optimizer was seen: the steps must run in this process, in the thread that began "
                "the profile, and from its beginning to its end"
            )
        if len(steps.timed) < FEWEST_STEPS:
            raise NotMeasured(
                f"of {len(steps.all)} steps {len(steps.timed)} could be timed, and at least {FEWEST_STEPS} are "
                f"needed: let more steps run"
            )
        try:
            measured = measured_run(self._of_this_block(observed), steps, self.batch, None)
        except InvalidInput as error:
            raise InvalidInput(str(error).replace("--samples-per-step", "batch=")) from None
        notes = [
            f"{of_batch(measured.batch)}{note.replace('the script ended', 'what was watched ended')}"
            for note in measured.notes
        ]
        return profile_of(self._job(), [measured], notes)

    def _of_this_block(self, observed: Observation) -> Observation:
        """Without what the process has done before: what it compiled, and its peak of memory unless it rose."""
        told = dict(observed.told)
        if told["compile_s"] is not None:
            told["compile_s"] = max(0.0, told["compile_s"] - self._compiled_before_s)
        peak, before = told.get("peak_memory_bytes"), self._peak_before_bytes
        if peak is not None and before is not None and peak <= before:
            told["peak_memory_bytes"] = None
        return replace(observed, told=told)

    def _write(self, profile: JobProfile) -> None:
        if Path(self.path).exists():
            profile = merged(read(self.path, JobProfile), profile, str(self.path))
        write(profile, self.path)
        self.profile = profile
        batches = ", ".join(str(timing.batch) for timing in profile.timings)
        print(f"srifty: profile of batch {batches} written to {self.path}", file=sys.stderr)

    def _job(self) -> Job:
        script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
        return checked(Job, name=self.name if self.name is not None else script or "job")

    def _warn(self, error: Exception) -> None:
        """Say what went wrong, the first time."""
        if self._has_warned:
            return
        self._has_warned = True
        told = (
            f"srifty: no profile is written to {self.path}: {_in_words(error)}; the training goes on without"
        )
        try:
            warnings.warn(told, stacklevel=2)
        except Exception:  # where warnings are turned into errors
            print(told, file=sys.stderr)


class _Fault(Exception):
    """A fault of ours, by its traceback."""


def of_batch(batch: int) -> str:
    """How a note of one batch begins."""
    return f"batch {batch}: "


def find_probe() -> None:
    """Make the probe importable here by its name, without its folder on the path."""
    if "srifty_probe" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "srifty_probe", _PROBE / "__init__.py", submodule_search_locations=[str(_PROBE)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no {_PROBE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["srifty_probe"] = module
    spec.loader.exec_module(module)


def _in_words(error: Exception) -> str:
    if isinstance(error, SriftyError):
        return str(error)
    told: Any = error.args[0] if isinstance(error, _Fault) else "".join(traceback.format_exception(error))
    return f"a fault in Srifty (please report it)\n{told}"
