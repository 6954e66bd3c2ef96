"""A run that gave no measurement: why, in plain lines, and whose fault it is."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from srifty.errors import InvalidInput, NotMeasured, SriftyError, WorkloadFailed
from srifty.profiling.attached_run import RunResult
from srifty.profiling.attached_steps import FEWEST_STEPS, see_steps

_MOST_LINES = 60
_SHORTAGE = re.compile(
    r"OutOfMemoryError|out of memory|[Cc]an(?:'t|not) allocate memory|not enough memory: you tried|MemoryError"
    r"|std::bad_alloc|CU[A-Z]+_STATUS_ALLOC_FAILED"
    # Where the kernel has killed a process of several, as a launcher or a loader tells it.
    r"|exitcode\s*: -9|<Signals.SIGKILL|terminated with signal SIGKILL|killed by signal: Killed"
)
_BUSY = re.compile(r"Device or resource busy|Invalid cross-device link")
_KILLED = (-9, 137)
TOO_SMALL = "more than 1 value per channel"
"""What batch normalisation says to a batch of one."""
_OURS = ("enough", "late")
"""Why we have ended a run ourselves."""
_LONGER = "give a longer --max-seconds"


def is_shortage(result: RunResult) -> bool:
    """Whether the run ended because memory ran out."""
    if result.ended.is_too_much:
        return True
    fault = fault_of_ours(result)
    if fault is not None and _SHORTAGE.search(fault):
        return True  # the probe happened to ask for the last of it
    if not has_failed(result):
        return False
    return result.ended.status in _KILLED or _SHORTAGE.search(_traceback(result.said)) is not None


def shortage(result: RunResult) -> str:
    """How a shortage of memory was told."""
    fault = fault_of_ours(result)
    if fault is not None:
        return last_words(fault)
    if result.ended.status in _KILLED and not _SHORTAGE.search(_traceback(result.said)):
        return "it was killed, as the kernel does where memory runs out"
    return last_words(result.said)


def is_too_small(result: RunResult) -> bool:
    """Whether it failed because batch normalisation does not train with one sample."""
    return has_failed(result) and TOO_SMALL in _traceback(result.said)


def failure(
    result: RunResult, command: Sequence[str], max_seconds: float, run_bare: Callable[[float], RunResult]
) -> SriftyError:
    """The error that tells why a run gave no measurement.

    Args:
        result: of the run with the probe
        command: what was run
        max_seconds: bound on a run [s]
        run_bare: runs the same without the probe, for so long at most [s]
    """
    fault = fault_of_ours(result)
    if fault is not None:
        return SriftyError(
            f"Srifty's probe failed inside the script; this is a fault in Srifty, please report it with "
            f"this traceback:\n{fault.rstrip()}"
        )
    if has_failed(result):
        if _asked_for_input(result.said):
            return _without_input(result, command)
        return _failed(result, command, run_bare(min(max_seconds, 2 * result.ended.took_s + 10)))
    return _nothing_measured(result, command, max_seconds)


def fault_of_ours(result: RunResult) -> str | None:
    """The traceback of the probe, where it failed before it had seen enough."""
    if result.observed is not None and result.observed.reason in _OURS:
        return None
    return next((process.fault for process in result.processes if process.fault is not None), None)


def has_failed(result: RunResult) -> bool:
    """Whether the command ended by itself, and not well."""
    reason = None if result.observed is None else result.observed.reason
    if reason in _OURS:
        return False  # what a launcher makes of it that we have ended its trainer does not count
    if result.ended.status is None:
        return reason == "failed"  # a launcher that takes its time to say so
    return result.ended.status != 0


def how_it_failed(result: RunResult) -> str:
    """Its exit status and its last words."""
    last, status = last_words(result.said), result.ended.status
    how = "by an exception" if status in (None, 0) else f"with exit status {status}"
    if status is not None and status < 0:
        with suppress(ValueError):
            how = f"by {signal.Signals(-status).name}"
    return f"{how} ({last})" if last else how


def _asked_for_input(said: str) -> bool:
    """Whether it failed at the end of a standard input that is empty; other streams have their ends too."""
    told = _traceback(said)
    is_at_end = re.search("^EOFError", told, re.MULTILINE) is not None
    return "EOF when reading a line" in told or (
        is_at_end and re.search(r"\binput\(|stdin", told) is not None
    )


def _without_input(result: RunResult, command: Sequence[str]) -> WorkloadFailed:
    return WorkloadFailed(
        f"{shlex.join(command)} failed {how_it_failed(result)}: Srifty gives it no standard input, neither a terminal "
        f"nor a pipe; let it take what it asks for from its arguments, or from a file by sh -c '... < FILE'",
        workload_traceback=_traceback(result.said),
    )


def _failed(result: RunResult, command: Sequence[str], bare: RunResult) -> SriftyError:
    told = shlex.join(command)
    if bare.ended.status in (None, 0):
        how = "ended well" if bare.ended.status == 0 else f"ran {bare.ended.took_s:.0f} s without failing"
        return SriftyError(
            f"{told} failed {how_it_failed(result)} while Srifty watched it, and {how} without: this looks like a "
            f"fault in Srifty, please report it with this:\n{_traceback(result.said)}"
        )
    return WorkloadFailed(
        f"{told} failed {how_it_failed(bare)}; it fails without Srifty too"
        + (
            ", but in a private view of its folder, which cannot itself be moved or removed"
            if bare.written is None and _BUSY.search(bare.said)
            else ""
        ),
        workload_traceback=_traceback(bare.said),
    )


def _nothing_measured(result: RunResult, command: Sequence[str], max_seconds: float) -> SriftyError:
    told = shlex.join(command)
    is_late = result.ended.is_out_of_time or (
        result.observed is not None and result.observed.reason == "late"
    )
    end = f"{max_seconds:g} s were over" if is_late else "it ended"
    if not result.processes:
        return InvalidInput(
            f"no Python process of {told} could be watched before {end}: it starts none, or Srifty did not get in. It "
            f"does by the environment variable PYTHONPATH, which python -I, -E and -S, env -i, sudo and docker do not "
            f"pass on, nor a wrapper that sets it anew (write PYTHONPATH=mine:$PYTHONPATH there); leave them out, or "
            f"profile a function with workload = 'module:function'"
            + (f"; where Python is only started later, {_LONGER}" if is_late else "")
        )
    if all(process.torch is None for process in result.processes):
        return NotMeasured(
            f"none of the {len(result.processes)} Python processes of {told} imported torch before {end}; "
            + (f"{_LONGER}, if it comes to that later" if is_late else "was this the training command?")
        )
    steps = max(process.steps for process in result.processes)
    if steps or result.observed is not None:
        more = _LONGER if is_late else "let it train for more steps"
        if steps < FEWEST_STEPS or result.observed is None:
            seen = f"only {steps} step{'s' if steps != 1 else ''} of {told} {'were' if steps != 1 else 'was'} seen"
            return NotMeasured(
                f"{seen} before {end}; it takes at least {FEWEST_STEPS} of one kind after the first: {more}"
            )
        return NotMeasured(
            f"{steps} steps of {told} were seen before {end}, and only {len(see_steps(result.observed).timed)} of them "
            f"can be timed, as the first are slow and others do more besides (evaluation, a new epoch); it takes at "
            f"least {FEWEST_STEPS} of one kind: {more}"
        )
    loaded = max(process.batches_loaded for process in result.processes)
    backwards = max(process.backwards for process in result.processes)
    seen = f"torch was imported, {loaded} batch{'' if loaded == 1 else 'es'} loaded, " + (
        f"{backwards} backward pass{'' if backwards == 1 else 'es'} seen"
        if backwards
        else "no optimizer step and no backward pass seen"
    )
    hint = (
        f"{_LONGER}, or a script that trains sooner"
        if is_late
        else "does it train? torch.func and other frameworks cannot be watched; "
        "profile a function with workload = 'module:function' instead"
    )
    return NotMeasured(f"nothing stepped in {told} before {end}: {seen}; {hint}")


def last_words(said: str) -> str:
    """The line that names the first exception in what was printed, else the last line."""
    lines = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in _traceback(said).splitlines()]
    if lines and lines[0].startswith("Traceback"):
        for line in lines[1:]:
            if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt|Warning)?(:|$)", line):
                return line.strip()[:200]
    return lines[-1].strip()[:200] if lines else ""


def _traceback(said: str) -> str:
    """What was printed from the first traceback on, else its end."""
    lines = [line for line in said.splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line), None)
    kept = lines[-_MOST_LINES // 3 :] if first is None else lines[first : first + _MOST_LINES]
    return "\n".join(kept)
