"""Attached run: an unchanged training command with the probe inside, in a private folder, to its end or ours."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from srifty.profiling.child_life import Ended, is_running, live
from srifty.profiling.observation import Observation, Process, read_observation, read_processes
from srifty.profiling.private_folder import private_folder
from srifty.profiling.tree_memory import TreeMemory

PLACE = "{batch}"
"""In any argument of the command it stands for the batch."""
STEADY_S = 3.0
"""How long to watch steady steps, where they are short [s]."""
_PROBE_ENDS_BEFORE_S = 1.0
_HARD_STOP_AFTER_S = 5.0
_OWN_END_S = 10.0
_ON_PYTHON_PATH = Path(__file__).resolve().parent / "on-python-path"
_OVERLAY = Path(__file__).resolve().parent / "overlay.py"
MOST_FILES = 20_000
"""Of a folder with more, only so many are looked at to tell what a script wrote."""
_LONGEST_LOG_BYTES = 200_000


@dataclass(frozen=True)
class RunResult:
    """What a run of the command gave.

    Attributes:
        ended: how it ended
        observed: what its trainer was seen doing; None: nothing stepped
        processes: the Python processes that the probe got into
        said: the end of what it printed
        written: files that it wrote into its folder; None: nothing was left there
        is_all_looked_at: whether `written` is of the whole folder, and not only of part of a huge one
    """

    ended: Ended
    observed: Observation | None
    processes: list[Process]
    said: str
    written: tuple[str, ...] | None
    is_all_looked_at: bool = True


def at_batch(command: Sequence[str], batch: int | None) -> list[str]:
    """The command with this batch where it holds the place for it; None: it has none."""
    return [argument.replace(PLACE, str(batch)) for argument in command]


def run_attached(
    command: Sequence[str],
    folder: Path,
    *,
    seconds: float,
    is_watched: bool = True,
    on_steps: Callable[[int], None] = lambda count: None,
    steps: int | None = None,
    memory: TreeMemory | None = None,
) -> RunResult:
    """Run the command in its folder, with the probe or, for comparison, without.

    Args:
        command: an argument list
        folder: where it runs; what it writes there is gone afterwards, where the kernel allows
        seconds: bound on the run [s]
        is_watched: whether the probe goes in
        on_steps: called with the number of steps seen so far
        steps: after so many the run ends; None: once enough were seen to time them
        memory: watched, and the run ends when it is too much; None: it may take what it will
    """
    with private_folder(outside=folder) as private:
        upper, work, seen = private / "upper", private / "work", private / "seen"
        for place in (upper, work, seen):
            place.mkdir()
        can_cover = not private.is_relative_to(folder)
        status_file, spec_file, log = private / "status.json", private / "spec.json", private / "log.txt"
        spec = {
            "command": list(command),
            "folder": str(folder),
            "parent": os.getpid(),
            "status": str(status_file),
            "upper": str(upper) if can_cover else None,
            "work": str(work),
        }
        spec_file.write_text(json.dumps(spec), encoding="utf-8")
        before = _files(folder, without=private)
        settings = {
            "folder": str(seen),
            "until": time.monotonic() + seconds - _PROBE_ENDS_BEFORE_S,
            "steady_s": STEADY_S,
            "parent": os.getpid(),
            "steps": steps,
        }
        mark = f"SRIFTY_RUN={secrets.token_hex(8)}"
        ended = live(
            [sys.executable, "-I", "-S", str(_OVERLAY), str(spec_file)],
            environment=_environment(private, mark, settings if is_watched else None),
            mark=mark,
            log=log,
            seconds=seconds + (_HARD_STOP_AFTER_S if is_watched else 0),
            is_done=lambda: _is_done(seen, is_short=steps is not None),
            on_look=lambda: on_steps(max((process.steps for process in read_processes(seen)), default=0)),
            memory=memory,
        )
        is_private = status_file.exists() and json.loads(status_file.read_text("utf-8"))["is_private"]
        after = {} if is_private else _files(folder, without=private)
        return RunResult(
            ended=ended,
            observed=read_observation(seen),
            processes=read_processes(seen),
            said=_end_of(log),
            written=None if is_private else _changed(before, after),
            is_all_looked_at=is_private or max(len(before), len(after)) < MOST_FILES,
        )


def _is_done(seen: Path, *, is_short: bool) -> bool:
    """Whether a probe has written all that it will; it is waited for though it has failed, but not in a short run.

    A program that ends by itself is given time to do so: its exit status tells whether it failed.
    """
    for path in seen.glob("complete.*"):
        if not is_running(int(path.suffix[1:])) or time.time() - path.stat().st_mtime > _OWN_END_S:
            return True
    return is_short and any(process.fault is not None for process in read_processes(seen))


def _environment(private: Path, mark: str, settings: Mapping[str, object] | None) -> dict[str, str]:
    name, _, value = mark.partition("=")
    # A compile that we interrupt must not leave half a file in the user's caches.
    caches = {"TORCHINDUCTOR_CACHE_DIR": private / "inductor", "TRITON_CACHE_DIR": private / "triton"}
    environment = {
        **os.environ,
        **{variable: str(place) for variable, place in caches.items()},
        name: value,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if settings is not None:
        path = [str(_ON_PYTHON_PATH), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        environment["SRIFTY_PROBE"] = json.dumps(settings)
    return environment


def _files(folder: Path, without: Path) -> dict[str, tuple[int, int]]:
    """Files below the folder with size and time of change, but for one folder of ours; of a huge one the first."""
    found: dict[str, tuple[int, int]] = {}
    for root, below, names in os.walk(folder):
        below[:] = [name for name in below if os.path.join(root, name) != str(without)]
        for name in names:
            if len(found) >= MOST_FILES:
                return found
            path = os.path.join(root, name)
            with suppress(OSError):
                told = os.lstat(path)
                found[os.path.relpath(path, folder)] = (told.st_size, told.st_mtime_ns)
    return found


def _changed(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    return tuple(sorted(name for name, told in after.items() if before.get(name) != told))


def _end_of(log: Path) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _LONGEST_LOG_BYTES))
        return file.read().decode("utf-8", errors="replace")
