"""Attached profile: runs of an unchanged script, each evaluated, put together to a JobProfile."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from srifty.errors import InvalidInput
from srifty.profiling.attached_buckets import attached_buckets, outlasting_s
from srifty.profiling.attached_phases import PHASES
from srifty.profiling.attached_steps import SeenSteps, spread_of, usual_rows
from srifty.profiling.chip import chip
from srifty.profiling.observation import Observation
from srifty.records import BatchTiming, Job, JobProfile, Spread
from srifty.records.job_profile import ContentTiming

_UNSTABLE = 0.5
_OWN_SHARE = 0.02
_NOTABLY = 0.05
_MANY_CALLS = 3
_MOST_CONTENT_TIMINGS = 200


@dataclass(frozen=True)
class Measured:
    """One run that gave a measurement.

    Attributes:
        batch: samples of one micro-step on one device
        observed: what was seen
        steps: those that are evaluated
        exchange_s: what real exchanges add to a backward pass [s]; not the job's on one GPU
        notes: what was assumed, and what was odd
    """

    batch: int
    observed: Observation
    steps: SeenSteps
    exchange_s: float
    notes: tuple[str, ...]


def measured_run(
    observed: Observation, steps: SeenSteps, batch: int | None, samples_per_step: int | None
) -> Measured:
    """Evaluate one run.

    Args:
        observed: what was seen
        steps: those that are evaluated
        batch: what stood for {batch}; None: the command has no such place
        samples_per_step: what the user says of a step; None: nothing

    Raises:
        InvalidInput: the batch can neither be seen nor follows from what the user says
    """
    notes: list[str] = []
    found = _batch(batch, samples_per_step, observed, steps, notes)
    exchange_s = outlasting_s(steps) if observed.rank_count > 1 else 0.0
    if observed.reason in ("ended", "late"):
        why = "the script ended" if observed.reason == "ended" else "time was up"
        notes.append(f"{why} after {len(steps.all)} steps; {len(steps.timed)} of them were timed")
    if observed.reason == "running":
        notes.append(f"the script went out of sight after {len(steps.all)} steps that were written down")
    if observed.told["loads_elsewhere"] and not any(step.loads for step in steps.steady):
        notes.append(
            "batches are loaded in another thread of the script: waiting for them is not told apart (other_s)"
        )
    notes += _unstable(steps)
    notes += _left_out(steps)
    marks = median([sum(len(cut.marks) for cut in step.cuts) for step in steps.timed])
    own = marks * observed.told["mark_s"] / median([step.step_s for step in steps.timed])
    if own > _OWN_SHARE:
        notes.append(f"Srifty's own hooks took about {own:.0%} of a step")
    notes += _uncommon(observed, steps)
    if steps.closure_count:
        notes.append(
            f"the optimizer runs the model up to {steps.closure_count} times a step; that is taken as one "
            f"micro-step with one exchange"
        )
    if observed.is_without_optimizer:
        notes.append(
            "no optimizer stepped: each backward pass counts as a step, and what follows it until the next "
            "batch as the optimizer"
        )
    if observed.rank_count > 1:
        notes.append(
            f"{observed.rank_count} ranks trained at once on this machine, which may have slowed them; "
            f"{exchange_s * 1e3:.3g} ms of exchange after the last gradient are not counted as backward"
        )
    return Measured(found, observed, steps, exchange_s, tuple(notes))


def profile_of(
    job: Job, runs: Sequence[Measured], notes: Sequence[str], *, is_searched: bool = False
) -> JobProfile:
    """One profile of all runs; what does not depend on the batch is the largest one's.

    Args:
        job: what was run
        runs: one at least
        notes: of the runs, and of those that gave nothing
        is_searched: whether the largest batch is known from a search, and need not be noted
    """
    by_batch = {run.batch: run for run in runs}
    ordered = [by_batch[batch] for batch in sorted(by_batch)]
    largest = ordered[-1]
    observed, steps, told = largest.observed, largest.steps, largest.observed.told
    buckets = attached_buckets(observed, steps)
    all_notes = [
        *notes,
        *buckets.notes,
    ]
    if not is_searched:
        all_notes.append(
            f"max_batch is the largest batch measured, {largest.batch} [samples]; a larger one may fit"
        )
    if steps.accumulation_count > 1 and not observed.ddps:
        all_notes.append(
            f"the script accumulates {steps.accumulation_count} micro-steps without DDP; it is taken to suppress "
            f"the exchange in all but the last (no_sync)"
        )
    trained = [parameter for parameter in observed.parameters if parameter.is_trained]
    saves_s = told["checkpoint_save_s"]
    return JobProfile(
        job=job,
        gpu=_gpu(told),
        gpu_memory_bytes=told.get("memory_bytes"),
        max_batch=largest.batch,
        min_batch=min(2 if told["needs_two_samples"] else 1, largest.batch),
        timings=tuple(_timing(run) for run in ordered),
        buckets=buckets.buckets,
        trainable_bytes=sum(parameter.size_bytes for parameter in trained),
        total_bytes=sum(parameter.size_bytes for parameter in observed.parameters)
        + _untrained_bytes(largest),
        checkpoint_bytes=told["checkpoint_bytes"],
        checkpoint_save_s=Spread.of(saves_s) if saves_s else None,
        accumulation_count=steps.accumulation_count,
        exchanges_every_micro_step=_exchanges_every_micro_step(largest),
        precision=_precision(observed, steps),
        compile_s=max(steps.compile_s, told["compile_s"] or 0.0),
        content_timings=_content_timings(ordered),
        assumptions=tuple(dict.fromkeys(all_notes)),
        versions=told["versions"],
        hardware=told["hardware"],
        cpu_count=told["cpu_count"],
        taken_at=datetime.now(UTC),
    )


def _batch(
    batch: int | None,
    samples_per_step: int | None,
    observed: Observation,
    steps: SeenSteps,
    notes: list[str],
) -> int:
    """Samples of one micro-step on one device; adds to the notes what had to be assumed."""
    rows, varies = usual_rows(steps.steady)
    rows = rows or observed.told["looked_rows"]
    if steps.loaded_batch is not None:
        rows, varies = steps.loaded_batch, False
    count = steps.accumulation_count
    if samples_per_step is not None:
        share, left = divmod(samples_per_step, count)
        if left or not share:
            raise InvalidInput(
                f"--samples-per-step is {samples_per_step}, which the {count} micro-steps of a step cannot share "
                f"evenly"
            )
        return share
    if batch is None:
        if rows is None:
            raise InvalidInput(
                "the batch could not be seen: no tensor entered a model that could be watched; give "
                "--samples-per-step"
            )
        if varies:
            notes.append(
                f"the batch varies; {rows} is the mean first dimension of what enters the model; give "
                f"--samples-per-step where that is not the number of samples"
            )
        elif steps.loaded_batch is None:
            notes.append(
                f"the batch, {rows}, is the first dimension of the first tensor that enters the model; give "
                f"--samples-per-step where that is not the number of samples"
            )
        return rows
    if rows is None or rows == batch:
        return batch
    for parts, what in (
        (count, "micro-steps"),
        (observed.rank_count, "ranks"),
        (count * observed.rank_count, "micro-steps of all ranks"),
    ):
        if parts > 1 and rows * parts == batch:
            notes.append(f"the script shares it among {parts} {what}: a micro-step has {rows} samples")
            return rows
    notes.append(f"the first tensor that enters the model has {rows} rows, and not {batch}")
    return batch


def _uncommon(observed: Observation, steps: SeenSteps) -> list[str]:
    """Notes on steps that are not one pass over one batch and one step of an optimizer behind it."""
    notes = []
    loads = median([len(step.loads) for step in steps.timed])
    passes = median([step.backward_count for step in steps.timed])
    if loads > 1 and not all(step.is_of_one_piece for step in steps.timed):
        notes.append(
            f"optimizers take turns, and a step takes {loads:g} batches from the loader: the profile counts one of "
            f"them as the step's samples; give --samples-per-step for all"
        )
    elif passes > steps.accumulation_count and not steps.closure_count and observed.optimizer_count == 1:
        notes.append(
            f"{passes:g} backward passes in a step on {steps.accumulation_count} batches: DDP would exchange in each "
            f"pass outside no_sync, and {steps.accumulation_count} exchanges are counted"
        )
    skipped = sum(any(cut.is_skipped for cut in step.cuts) for step in steps.all)
    if skipped > _NOTABLY * len(steps.all):
        notes.append(
            f"a gradient scaler left out {skipped} of {len(steps.all)} steps; are the gradients finite?"
        )
    calls = median([step.forward_count / max(1, step.backward_count) for step in steps.timed])
    if calls >= _MANY_CALLS:
        notes.append(
            f"the model is called {calls:g} times to one backward pass; the batch is that of one call: give "
            f"--samples-per-step where that is not so"
        )
    if observed.told["trains_in_turns"]:
        notes.append(
            "not the same parameters are trained in each step: all that are trained at times are counted"
        )
    if observed.told["steps_in_backward"]:
        notes.append("optimizers step inside the backward pass: their time is in it")
    return notes


def _left_out(steps: SeenSteps) -> list[str]:
    """A note where steps that do more (evaluation, saving, a new epoch) make the mean step notably longer."""
    warm = [step.step_s for step in steps.all[steps.cold_count :] if step.is_plain]
    usual = [step.step_s for step in steps.timed]
    if not warm or not usual:
        return []
    more = sum(warm) / len(warm) / (sum(usual) / len(usual)) - 1
    if more < _NOTABLY:
        return []
    return [
        f"steps in which the script also evaluates, saves, or begins an epoch are left out; with them the mean "
        f"step is {100 * more:.0f} % longer"
    ]


def _unstable(steps: SeenSteps) -> list[str]:
    """A note where step times spread by more than half, and not by their content."""
    spread = Spread.of(step.step_s for step in steps.timed)
    if spread.p90 - spread.p10 <= _UNSTABLE * spread.p50 or _varies(steps):
        return []
    reasons = []
    wait = Spread.of(step.phase_s["data"] for step in steps.timed)
    if wait.p90 - wait.p10 > 0.5 * (spread.p90 - spread.p10):
        reasons.append("the wait for the loader")
    load, cpu_count = os.getloadavg()[0], os.cpu_count() or 1
    if load > cpu_count:
        reasons.append(f"load on this machine (load average {load:.1f} on {cpu_count} CPUs)")
    return [
        f"step times are unstable, {spread.p10:.3g} to {spread.p90:.3g} s in 8 of 10 steps; visible reason: "
        f"{' and '.join(reasons) or 'none'}"
    ]


def _exchanges_every_micro_step(run: Measured) -> bool:
    if run.steps.accumulation_count == 1 or not run.observed.ddps:
        return False
    cuts = [cut for step in run.steps.steady for cut in step.cuts]
    return sum(cut.synced_forwards for cut in cuts) == sum(cut.forwards for cut in cuts)


def _untrained_bytes(run: Measured) -> int:
    """Size of the modules without trained parameters that are called in most steps [bytes]."""
    steps = run.steps.steady
    calls = Counter(
        module for step in steps for module in {one for cut in step.cuts for one in cut.untrained_calls}
    )
    return sum(run.observed.untrained[one] for one, count in calls.items() if count >= len(steps) / 2)


def _timing(run: Measured) -> BatchTiming:
    """Phases of one micro-step, and the optimizer's once a step."""
    steps, count = run.steps.timed, run.steps.accumulation_count
    exchanged_s = run.exchange_s * (count if _exchanges_every_micro_step(run) else 1)

    def spread(phase: str) -> Spread:
        times_s = [step.phase_s[phase] for step in steps]
        if phase == "backward":
            times_s = [max(0.0, time_s - exchanged_s) for time_s in times_s]
        return spread_of([time_s / (1 if phase == "optimizer" else count) for time_s in times_s], steps)

    spreads = {phase: spread(phase) for phase in PHASES}
    has_loader = any(step.loads for step in run.steps.steady)
    return BatchTiming(
        batch=run.batch,
        forward_s=spreads["forward"],
        backward_s=spreads["backward"],
        optimizer_s=spreads["optimizer"],
        data_wait_s=spreads["data"] if has_loader else None,
        other_s=spreads["other"],
        peak_memory_bytes=run.observed.told.get("peak_memory_bytes"),
    )


def _varies(steps: SeenSteps) -> bool:
    return len({step.elements for step in steps.timed}) > 1


def _content_timings(runs: Sequence[Measured]) -> tuple[ContentTiming, ...]:
    return tuple(
        ContentTiming(batch=run.batch, element_count=step.elements, step_s=step.step_s)
        for run in runs
        if _varies(run.steps)
        for step in run.steps.timed[:_MOST_CONTENT_TIMINGS]
        if step.elements > 0
    )


def _precision(observed: Observation, steps: SeenSteps) -> str | None:
    sizes: Counter[str] = Counter()
    for parameter in observed.parameters:
        sizes[parameter.dtype] += parameter.size_bytes
    told = [dtype for dtype, _ in sizes.most_common()]
    cast = [name for name, count in observed.autocast.items() if count >= len(steps.all) // 2]
    told += [f"autocast {name.removeprefix('torch.')}" for name in sorted(cast)]
    return ", ".join(told) or None


def _gpu(told: Mapping[str, Any]) -> str:
    """The chip by the name that offers use."""
    if told["device"] == "cpu":
        return "cpu"
    return chip(told["hardware"])
