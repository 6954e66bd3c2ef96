"""The door of this room: a Job and its workload -> a JobProfile, measured on one device of this machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch

from srifty.errors import InvalidInput, NotMeasured, WorkloadFailed
from srifty.profiling.batch_search import search_max_batch
from srifty.profiling.batches import doubling_batches, smallest_batch
from srifty.profiling.bench import Bench, Visit
from srifty.profiling.device import Device, find_device
from srifty.profiling.gradient_buckets import MeasuredBuckets, measure_buckets
from srifty.profiling.hook_buckets import buckets_by_hooks
from srifty.profiling.max_batch import MaxBatch
from srifty.profiling.memory import OutOfMemory
from srifty.profiling.sizes import checkpoint_bytes, checkpoint_save_s, precision, tensor_bytes
from srifty.profiling.user_code import importing_from
from srifty.profiling.workload import Workload, element_count, load_workload
from srifty.records import BatchTiming, Job, JobProfile, Spread
from srifty.records.job_profile import ContentTiming

PASSES = 3
"""Each batch comes to the bench this often, so that a noisy neighbour spoils a third of its steps at most."""
LONGEST_TIMED_STEP = 2.5
"""With a search, batches are timed whose step is no longer than this times the seconds for a batch."""

Progress = Callable[[float, str], None]


def profile(
    job: Job,
    *,
    folder: Path,
    device: str | None = None,
    seconds_per_batch: float = 2.0,
    find_max_batch: bool = False,
    max_batch: int | None = None,
    on_progress: Progress | None = None,
) -> JobProfile:
    """Measure a job on one device: step time by batch, memory, and the buckets of its gradients.

    The workload is made once. Nothing is written to its folder, and the model's hooks, Srifty's own process
    group and the imports are as before afterwards, also after an error or an interrupt. What the workload
    itself changes in the process (working folder, random state, torch's defaults) stays changed.

    Args:
        job: names the workload, and perhaps the batches
        folder: where the workload's module is looked for, as a rule the folder of job.toml
        device: "cpu", "cuda", "cuda:1"; None: the current accelerator, else the CPU
        seconds_per_batch: how long to time steps at each batch; cold steps come on top, and at least six
            steps are timed however long they are
        find_max_batch: search the largest batch that fits with a margin, each try in a fresh process; without,
            the largest that was measured is the largest that is known to fit
        max_batch: no batch above this [samples]; None: no such limit
        on_progress: called with the share done (0 to 1) and what is done next

    Raises:
        InvalidInput: no workload, module or function of that name; no such device; batches that cannot be
        WorkloadFailed: the training code raised
        NotMeasured: no batch fits into memory
    """
    if job.workload is None:
        raise InvalidInput(
            f"job {job.name!r} names no workload: give workload = 'module:function' "
            f"(the function returns model, optimizer, make_batch and loss)"
        )
    if seconds_per_batch <= 0:
        raise InvalidInput(f"seconds_per_batch is {seconds_per_batch}: expected more than 0 [s]")
    if max_batch is not None and max_batch < 1:
        raise InvalidInput(f"max_batch is {max_batch}: expected at least 1 [samples]")
    tell = on_progress or (lambda share, doing: None)
    found = find_device(device)
    folder = folder.resolve()
    searched = None
    if find_max_batch:
        # Before this process takes memory of the device itself.
        searched = search_max_batch(
            job,
            folder=folder,
            device=found,
            max_batch=max_batch,
            longest_step_s=LONGEST_TIMED_STEP * seconds_per_batch,
            tell=lambda doing: tell(0.0, doing),
        )
    with importing_from(folder), found.current():
        tell(0.0, "making the model")
        try:
            workload = load_workload(job.workload, folder)
            workload.move_to(found.place)
        except OutOfMemory as error:
            raise NotMeasured(
                f"the model alone does not fit into the memory of {_told(found)} ({error}); "
                f"run 'srifty profile' on a GPU with more memory"
            ) from None
        try:
            return _Profiling(job, workload, found, seconds_per_batch, tell, max_batch, searched).run()
        except OutOfMemory as error:
            raise NotMeasured(
                f"the memory of {_told(found)} ran out beside what the measurement itself holds ({error}); "
                f"give smaller 'batches', or run 'srifty profile' on a GPU with more memory"
            ) from None


@dataclass
class _Profiling:
    """One profile on its way; `notes` are what the profile will state as assumptions."""

    job: Job
    workload: Workload
    device: Device
    seconds_per_batch: float
    tell: Progress
    max_batch: int | None = None
    searched: MaxBatch | None = None
    has_contents: bool = False
    notes: list[str] = field(default_factory=list)

    def run(self) -> JobProfile:
        self.notes += self.workload.assumptions
        if not self.workload.model.training:
            self.notes.append("the model was in evaluation mode, and was measured so")
        bench = Bench(self.workload, self.device.place)
        smallest = self._smallest(bench)
        batches = self._batches(bench, smallest)
        self.has_contents = bench.varies(batches[0])
        visits = self._measure(bench, batches)
        waits = self._waits(bench, visits)
        saved_bytes = checkpoint_bytes(self.workload)
        save_s = checkpoint_save_s(self.workload, saved_bytes)
        cold_s = max(visit.cold_s for seen in visits.values() for visit in seen)
        bench.restore()
        computed_in = precision(self.workload, self.workload.data(min(visits), self.device.place))
        self.tell(PASSES / (PASSES + 1), "watching gradient buckets")
        buckets = self._watch_buckets(bench, visits)
        bench.restore()
        self.tell(1.0, "done")
        if self.searched is None:
            largest = max(visits)
            self.notes.append(
                f"max_batch is the largest batch measured, {largest} [samples]; a larger one may fit"
            )
        else:
            largest = self.searched.batch
            self.notes += self.searched.assumptions
        self.notes += buckets.assumptions
        return JobProfile(
            job=self.job,
            gpu=self.device.gpu,
            gpu_memory_bytes=self.device.gpu_memory_bytes,
            max_batch=largest,
            min_batch=smallest,
            timings=_timings(visits, waits, self.searched),
            buckets=buckets.buckets,
            trainable_bytes=tensor_bytes(self.workload.trained_parameters),
            total_bytes=tensor_bytes(self.workload.model.parameters()),
            checkpoint_bytes=saved_bytes,
            checkpoint_save_s=save_s,
            precision=computed_in,
            compile_s=cold_s,
            content_timings=_content_timings(visits),
            assumptions=tuple(self.notes),
            versions=_versions(self.device),
            hardware=self.device.hardware,
            cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            taken_at=datetime.now(UTC),
        )

    def _smallest(self, bench: Bench) -> int:
        """The smallest batch that trains; batch normalisation may hide in a function, where only a try finds it."""
        smallest = smallest_batch(self.workload.model)
        if smallest == 1 and 1 in (self.job.batches or (1,)):
            try:
                bench.try_step_s(1)
            except WorkloadFailed as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                return 2
        return smallest

    def _batches(self, bench: Bench, smallest: int) -> list[int]:
        given = self._given_batches(smallest)
        if self.searched is None:
            return given or self._chosen_batches(bench, smallest)
        return self._batches_beside_copy(self.searched)

    def _batches_beside_copy(self, searched: MaxBatch) -> list[int]:
        """Those of the search; on the CPU only where the bench's copy of the model has room beside them."""
        if self.device.place.type != "cpu" or searched.memory_bytes is None:
            return list(searched.batches)
        room = searched.memory_bytes - tensor_bytes(self.workload.model.parameters())
        fitting = [batch for batch in searched.batches if searched.peak_memory_bytes.get(batch, 0) <= room]
        for batch in searched.batches:
            if fitting and batch not in fitting:
                self._left_out(batch)
        return fitting or list(searched.batches[:1])

    def _given_batches(self, smallest: int) -> list[int]:
        """The job's batches, rising, each once, without those too small for batch normalisation."""
        given = sorted(set(self.job.batches))
        large_enough = [batch for batch in given if batch >= smallest]
        if given and not large_enough:
            raise InvalidInput(
                f"batches are {given}: batch normalisation trains with {smallest} samples or more; "
                f"give a batch of at least {smallest}"
            )
        if len(large_enough) < len(given):
            self.notes.append(f"batch 1 was left out: batch normalisation needs {smallest} samples or more")
        if self.max_batch is None or self.searched is not None:
            return large_enough
        allowed = [batch for batch in large_enough if batch <= self.max_batch]
        if large_enough and not allowed:
            raise InvalidInput(f"batches are {given}: all are above max_batch, {self.max_batch} [samples]")
        return allowed

    def _chosen_batches(self, bench: Bench, smallest: int) -> list[int]:
        """Doubling batches whose steps are short enough for some of them in each pass."""

        def step_s(batch: int) -> float | None:
            self.tell(0.0, f"trying batch {batch}")
            first = bench.try_step_s(batch)
            # One disturbed step must not end the doubling, so a long one has a second chance.
            if first is None or first <= longest_s:
                return first
            second = bench.try_step_s(batch)
            return first if second is None else min(first, second)

        if self.max_batch is not None and self.max_batch < smallest:
            raise InvalidInput(
                f"max_batch is {self.max_batch}: batch normalisation trains with {smallest} samples or more"
            )
        largest = min((cap for cap in (self.job.global_batch, self.max_batch) if cap), default=None)
        longest_s = self.seconds_per_batch / 6
        batches, too_large = doubling_batches(smallest, step_s=step_s, longest_s=longest_s, largest=largest)
        if too_large is not None:
            self._left_out(too_large)
        if not batches:
            raise self._nothing_fits([smallest])
        return batches

    def _measure(self, bench: Bench, batches: list[int]) -> dict[int, list[Visit]]:
        """Visits by batch, in passes up and down, so that a slow drift falls on all batches alike."""
        visits: dict[int, list[Visit]] = {batch: [] for batch in batches}
        for number in range(PASSES):
            order = sorted(visits, reverse=number % 2 == 1)
            for position, batch in enumerate(order):
                if batch not in visits:
                    continue  # a smaller one has run out of memory since
                share = (number + position / len(order)) / (PASSES + 1)
                self.tell(share, f"batch {batch}, pass {number + 1} of {PASSES}")
                seconds = self.seconds_per_batch / PASSES
                warm_up_s = seconds if number == 0 else seconds / 4
                visit = bench.visit(
                    batch, seconds=seconds, warm_up_s=warm_up_s, has_contents=self.has_contents
                )
                if visit is None:
                    self._left_out(batch)
                    visits = {other: seen for other, seen in visits.items() if other < batch}
                else:
                    visits[batch].append(visit)
        if not visits:
            raise self._nothing_fits(batches)
        self._check_sizes(sorted(visits))
        for batch, seen in visits.items():
            if any(visit.last_loss != visit.last_loss or visit.last_loss == float("inf") for visit in seen):
                self.notes.append(f"at batch {batch} the loss was not finite while it was measured")
        if self.has_contents:
            self.notes.append(_told_contents(visits))
        return visits

    def _waits(self, bench: Bench, visits: Iterable[int]) -> dict[int, Spread]:
        """Waits for the workload's own loader, by batch; without one they are not measured."""
        if self.workload.loader is None:
            self.notes.append("the wait for data was not measured: each batch was made before its steps")
            return {}
        waits: dict[int, Spread] = {}
        for batch in sorted(visits):
            self.tell(PASSES / (PASSES + 1), f"batch {batch}, waits for the loader")
            seen = bench.waits_s(batch, seconds=self.seconds_per_batch)
            if seen:
                waits[batch] = Spread.of(seen)
            else:
                self.notes.append(
                    f"at batch {batch} the wait for data was not measured: an epoch of the loader is one batch"
                )
        return waits

    def _check_sizes(self, batches: list[int]) -> None:
        """A batch maker that ignores what it is asked for makes every batch look alike, and the largest free."""
        if self.has_contents:
            return
        smallest, largest = batches[0], batches[-1]
        sizes = [element_count(self.workload.data(batch, self.device.place)) for batch in (smallest, largest)]
        if largest > smallest and sizes[0] == sizes[1] > 0:
            raise WorkloadFailed(
                f"make_batch({smallest}) and make_batch({largest}) made data of the same size, {sizes[0]} "
                f"elements: it must make as many samples as it is asked for"
            )

    def _watch_buckets(self, bench: Bench, visits: dict[int, list[Visit]]) -> MeasuredBuckets:
        """Buckets at the largest batch that fits beside DDP's copy of the gradients; larger ones are dropped."""
        seconds = min(self.seconds_per_batch, 2.0)
        for batch in sorted(visits, reverse=True):
            measured = bench.if_it_fits(
                batch, lambda data: measure_buckets(self.workload, data, bench.clock, seconds=seconds)
            )
            if measured is None:
                continue
            for larger in [other for other in visits if other > batch]:
                del visits[larger]
                self.notes.append(
                    f"batch {larger} was left out: it fits alone, but not beside DDP's copy of the gradients"
                )
            return measured
        bench.restore()
        data = self.workload.data(min(visits), self.device.place)
        return MeasuredBuckets(
            buckets_by_hooks(self.workload, data, bench.clock, seconds=seconds),
            ("DDP's copy of the gradients does not fit beside any measured batch",),
        )

    def _left_out(self, batch: int) -> None:
        beside = "into memory" if self.searched is None else "beside what the measurement itself holds"
        self.notes.append(f"batch {batch} was left out: it does not fit {beside}")

    def _nothing_fits(self, batches: Iterable[int]) -> NotMeasured:
        tried = min(batches)
        return NotMeasured(
            f"batch {tried} does not fit into the memory of {_told(self.device)}; "
            + ("give smaller 'batches', or " if tried > 1 else "")
            + "run 'srifty profile' on a GPU with more memory"
        )


def _timings(
    visits: dict[int, list[Visit]], waits: dict[int, Spread], searched: MaxBatch | None
) -> tuple[BatchTiming, ...]:
    """By rising batch. Peaks come from the search if it knows them all, since its processes were fresh."""
    timings = [_timing(batch, visits[batch], waits.get(batch)) for batch in sorted(visits)]
    peaks = {} if searched is None else searched.peak_memory_bytes
    if not all(timing.batch in peaks for timing in timings):
        return tuple(timings)
    return tuple(timing.model_copy(update={"peak_memory_bytes": peaks[timing.batch]}) for timing in timings)


def _timing(batch: int, visits: list[Visit], wait_s: Spread | None) -> BatchTiming:
    steps = [step for visit in visits for step in visit.steps]
    peaks = [visit.peak_memory_bytes for visit in visits if visit.peak_memory_bytes is not None]
    return BatchTiming(
        batch=batch,
        forward_s=Spread.of(step.forward_s for step in steps),
        backward_s=Spread.of(step.backward_s for step in steps),
        optimizer_s=Spread.of(step.optimizer_s for step in steps),
        data_wait_s=wait_s,
        peak_memory_bytes=max(peaks, default=None),
    )


def _content_timings(visits: dict[int, list[Visit]]) -> tuple[ContentTiming, ...]:
    """Each content by its elements, with the median of the steps that had it; by rising batch and elements."""
    step_s: dict[tuple[int, int], list[float]] = {}
    for batch, seen in visits.items():
        for visit in seen:
            for elements, step in zip(visit.element_counts, visit.steps, strict=False):
                step_s.setdefault((batch, elements), []).append(step.step_s)
    return tuple(
        ContentTiming(batch=batch, element_count=elements, step_s=median(step_s[batch, elements]))
        for batch, elements in sorted(step_s)
        if elements > 0
    )


def _told_contents(visits: dict[int, list[Visit]]) -> str:
    largest = max(visits)
    counts = [count for visit in visits[largest] for count in visit.element_counts]
    return (
        f"batches of one size differ in content, at batch {largest} from {min(counts)} to {max(counts)} elements: "
        f"steps were timed over several of them"
    )


def _versions(device: Device) -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    if device.place.type == "cuda":
        for name in ("cuda", "hip"):
            version = getattr(torch.version, name, None)
            if version is not None:
                versions[name] = version
    torchvision = sys.modules.get("torchvision")
    if torchvision is not None:
        versions["torchvision"] = str(getattr(torchvision, "__version__", "unknown"))
    return versions


def _told(device: Device) -> str:
    if device.gpu_memory_bytes is None:
        return "this machine" if device.gpu == "cpu" else device.gpu
    return f"{device.gpu} ({device.gpu_memory_bytes / 2**30:.1f} GiB)"
