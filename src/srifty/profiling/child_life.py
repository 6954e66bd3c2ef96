"""A child's life: started in a session of its own, waited for, and gone with all its descendants at the end.

A training command leaves processes behind when it is stopped short: loader workers, compile workers, servers
that start other processes. All of them go, whatever ends the command or us.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from srifty.profiling.tree_memory import TreeMemory

_GET_SUBREAPER, _SET_SUBREAPER = 37, 36
_POLL_S = 0.05
_GRACE_S = 1.5
"""For a launcher to end by itself once its trainer has."""
_TRACKER_S = 3.0
"""For multiprocessing's resource tracker, which removes shared memory that the others have left."""
_KILL_S = 10.0


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: exit status; below 0 the signal that ended it; None: we ended it
        is_out_of_time: whether that was because its time was up
        took_s: from its start [s]
        is_too_much: whether that was because it took too much memory
    """

    status: int | None
    is_out_of_time: bool
    took_s: float
    is_too_much: bool = False


def live(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    mark: str,
    log: Path,
    seconds: float,
    is_done: Callable[[], bool] = lambda: False,
    on_look: Callable[[], None] = lambda: None,
    memory: TreeMemory | None = None,
) -> Ended:
    """Run a command to its end, to `is_done`, or for so long; afterwards none of its processes is left.

    Args:
        command: an argument list
        environment: all variables
        mark: one of them, "NAME=value", of this run alone: by it descendants are known
        log: where what it prints goes
        seconds: when to stop it [s]
        is_done: asked again and again: whether it has done what it was started for
        on_look: called as often
        memory: watched as often; when it is too much, the command ends; None: it may take what it will
    """
    start = time.monotonic()
    with log.open("wb") as output, _reaping(), _ending_in_order():
        strangers = _children_of_ours()
        child = subprocess.Popen(  # noqa: S603 - the user's own command, as an argument list
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            done_at: float | None = None
            while child.poll() is None:
                now = time.monotonic()
                on_look()
                if done_at is None and is_done():
                    done_at = now
                if done_at is not None and now - done_at > _GRACE_S:
                    return Ended(None, False, now - start)
                if done_at is None and now - start > seconds:
                    return Ended(None, True, now - start)
                if memory is not None and memory.is_due() and memory.is_too_much(_family_of(child.pid)):
                    return Ended(None, False, now - start, is_too_much=True)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
            return Ended(child.returncode, False, time.monotonic() - start)
        finally:
            _end_all(child, mark, strangers)


def is_running(process: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        told = Path(f"/proc/{process}/stat").read_text(errors="replace")
        return told.rpartition(")")[2].split()[0] != "Z"
    except OSError:
        pass  # gone, or no Linux
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _end_all(child: subprocess.Popen[bytes], mark: str, strangers: set[int]) -> None:
    """Kill the child and all that stems from it; a second Ctrl-C does not stop that."""
    with _undisturbed():
        begin = time.monotonic()
        while time.monotonic() - begin < _KILL_S:
            if child.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(1)
            left = _left_by(child.pid, mark, strangers)
            if not left:
                break
            for process in left:
                is_young = time.monotonic() - begin < _TRACKER_S
                if not (is_young and _is_resource_tracker(process)):
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(process, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.02)
        if not sys.platform.startswith("linux"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # others of its group


def _family_of(session: int) -> set[int]:
    """The child, the processes of its session, and all that stem from these."""
    found, told = {session}, list(_processes())
    is_growing = True
    while is_growing:
        count = len(found)
        found |= {process for process, parent, of, _ in told if of == session or parent in found}
        is_growing = len(found) > count
    return found


def _left_by(session: int, mark: str, strangers: set[int]) -> list[int]:
    """Processes of the child's session, or with its mark, or that came to us when their parent died."""
    ours, our_session = os.getpid(), os.getsid(0)
    found = []
    for process, parent, of_session, state in _processes():
        is_adopted = parent == ours and process not in strangers and of_session != our_session
        if state == "Z":
            if is_adopted:
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
            continue
        if process != ours and (is_adopted or of_session == session or _has_mark(process, mark)):
            found.append(process)
    return found


def _processes() -> Iterator[tuple[int, int, int, str]]:
    """Number, parent, session and state of every process; nothing where there is no /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything, brackets too.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield int(entry.name), int(fields[1]), int(fields[3]), fields[0]


def _has_mark(process: int, mark: str) -> bool:
    try:
        return os.fsencode(mark) in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # gone, or another user's


def _is_resource_tracker(process: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def _children_of_ours() -> set[int]:
    return {process for process, parent, _, _ in _processes() if parent == os.getpid()}


@contextmanager
def _reaping() -> Iterator[None]:
    """Orphans of ours become our children and not init's, on Linux."""
    if not sys.platform.startswith("linux"):
        yield
        return
    library = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    library.prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    library.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        library.prctl(_SET_SUBREAPER, before.value, 0, 0, 0)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process by an exception, so that what it has started ends before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ours = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would interrupt wait until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
