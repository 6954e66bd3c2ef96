"""A run that gave no measurement: why, in plain lines, and whose fault it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from srifty.errors import InvalidInput, NotMeasured, SriftyError, WorkloadFailed
from srifty.profiling.attached_run import RunResult

_MOST_LINES = 60
_SHORTAGE = re.compile(
    r"OutOfMemoryError|out of memory|can't allocate memory|not enough memory: you tried|MemoryError"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
)
_KILLED = (-9, 137)


def is_shortage(result: RunResult) -> bool:
    """Whether the run ended because memory ran out."""
    if result.ended.status in (None, 0):
        return False
    return result.ended.status in _KILLED or _SHORTAGE.search(_traceback(result.said)) is not None


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
    for process in result.processes:
        if process.fault is not None:
            return SriftyError(
                f"Srifty's probe failed inside the script; this is a fault in Srifty, please report it with "
                f"this traceback:\n{process.fault.rstrip()}"
            )
    if result.ended.status not in (None, 0):
        return _failed(result, command, run_bare(min(max_seconds, 2 * result.ended.took_s + 10)))
    return _nothing_measured(result, command, max_seconds)


def _failed(result: RunResult, command: Sequence[str], bare: RunResult) -> SriftyError:
    told, status = shlex.join(command), result.ended.status
    if bare.ended.status in (None, 0):
        how = "ended well" if bare.ended.status == 0 else f"ran {bare.ended.took_s:.0f} s without failing"
        return SriftyError(
            f"{told} failed with exit status {status} while Srifty watched it, and {how} without: this looks like a "
            f"fault in Srifty, please report it with this:\n{_traceback(result.said)}"
        )
    last = last_words(bare.said)
    return WorkloadFailed(
        f"{told} failed with exit status {status}{f' ({last})' if last else ''}; it fails without Srifty too",
        workload_traceback=_traceback(bare.said),
    )


def _nothing_measured(result: RunResult, command: Sequence[str], max_seconds: float) -> SriftyError:
    told = shlex.join(command)
    end = f"{max_seconds:g} s were over" if result.ended.is_out_of_time else "it ended"
    if not result.processes:
        return InvalidInput(
            f"no Python process of {told} could be watched before {end}: Srifty gets in by the environment variable "
            f"PYTHONPATH, which python -I, -E and -S, env -i, sudo and docker do not pass on, nor a wrapper that sets "
            f"it anew (write PYTHONPATH=mine:$PYTHONPATH there); leave them out, or profile a function with "
            f"workload = 'module:function'"
        )
    if all(process.torch is None for process in result.processes):
        return NotMeasured(
            f"none of the {len(result.processes)} Python processes of {told} imported torch before {end}; "
            f"was this the training command?"
        )
    steps = max(process.steps for process in result.processes)
    if steps or result.observed is not None:
        return NotMeasured(
            f"only {steps} steps of {told} were seen before {end}; it takes at least 3 of one kind after the first: "
            + (
                "give a longer --max-seconds"
                if result.ended.is_out_of_time
                else "let it train for more steps"
            )
        )
    loaded = max(process.batches_loaded for process in result.processes)
    backwards = max(process.backwards for process in result.processes)
    seen = [f"torch was imported, {loaded} batches were loaded"]
    seen.append(
        f"{backwards} backward passes" if backwards else "no optimizer step and no backward pass was seen"
    )
    hint = (
        "give a longer --max-seconds, or a script that trains sooner"
        if result.ended.is_out_of_time
        else "does it train? torch.func and other frameworks cannot be watched; "
        "profile a function with workload = 'module:function' instead"
    )
    return NotMeasured(f"nothing stepped in {told} before {end}: {', '.join(seen)}; {hint}")


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
