"""Tries of batches, each in a fresh process, and what the way in which it ended means.

Memory that ran out is an Outcome and the search goes on; a failure of the training code is an error at once, with
its own traceback. Whatever happens here, no process is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from srifty.errors import InvalidInput, WorkloadFailed
from srifty.profiling.host_memory import available_bytes
from srifty.profiling.largest_batch import Ending, Outcome
from srifty.profiling.memory import says_out_of_memory
from srifty.profiling.private_folder import private_folder
from srifty.profiling.try_batch import Report, Request

LONGEST_TRY_S = 600.0
_POLL_S = 0.02
_LOG_BYTES = 16_384
_ABNORMAL_SHORTAGE = ("memoryerror", "failed to map segment", "thread creation failed")
"""What an interpreter or a library prints that ends for want of memory, beside an allocator's words."""


@dataclass(frozen=True)
class BatchTries:
    """Tries batches of one workload on one device.

    Attributes:
        workload: "module:function"
        folder: where the module is looked for
        device: to try on
        host_limit_bytes: what a try may allocate on the CPU; None: no limit, as the device has its own memory
        host_reserve_bytes: a try ends as out of memory once less than this is available on the machine
        longest_s: a try that takes longer is ended, and told as too slow [s]
    """

    workload: str
    folder: Path
    device: torch.device
    host_limit_bytes: int | None = None
    host_reserve_bytes: int = 0
    longest_s: float = LONGEST_TRY_S

    def __call__(self, batch: int) -> Outcome:
        """Take two steps at this batch in a fresh process.

        Raises:
            WorkloadFailed: the training code raised, or ended the process
            InvalidInput: the workload cannot be found
        """
        with private_folder() as folder:
            report, log = folder / "report.json", folder / "log"
            request = Request(
                workload=self.workload,
                folder=str(self.folder),
                device=str(self.device),
                batch=batch,
                host_limit_bytes=self.host_limit_bytes,
                import_path=[os.path.abspath(place) for place in sys.path],
                report=str(report),
                parent_id=os.getpid(),
            )
            ended = self._run(request, log)
            if isinstance(ended, Outcome):
                return ended
            if report.exists():
                return _outcome(Report(**json.loads(report.read_text(encoding="utf-8"))), batch)
            return _without_report(ended, _end_of(log), batch)

    def _run(self, request: Request, log: Path) -> Outcome | int:
        """Exit status of the process, or the outcome of one that had to be ended."""
        # -P: the folder from which Srifty was started is no place for modules.
        command = [sys.executable, "-P", "-m", "srifty.profiling.try_batch", json.dumps(asdict(request))]
        process = None
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            until = time.monotonic() + self.longest_s
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_S)
                if time.monotonic() > until:
                    return Outcome(Ending.TOO_SLOW, said=f"two steps did not end within {self.longest_s:g} s")
                if self.host_reserve_bytes and available_bytes() < self.host_reserve_bytes:
                    return Outcome(Ending.OUT_OF_MEMORY, said="the machine ran short of memory")
        finally:
            if process is not None:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and with it all that it has started: they are one group, of a session of its own."""
    with suppress(ProcessLookupError, PermissionError):  # macOS says the second where only a zombie is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _outcome(report: Report, batch: int) -> Outcome:
    match report.ending:
        case "workload failed":
            raise WorkloadFailed(
                f"batch {batch}: {report.said}", workload_traceback=report.workload_traceback
            )
        case "invalid input":
            raise InvalidInput(report.said)
        case "fault":
            raise RuntimeError(f"trying batch {batch}: {report.said}\n{report.workload_traceback}")
    return Outcome(
        Ending(report.ending),
        peak_memory_bytes=report.peak_memory_bytes,
        step_s=report.step_s,
        smallest_batch=report.smallest_batch,
        said=report.said,
    )


def _without_report(status: int, log: str, batch: int) -> Outcome:
    """What it means that the process ended before it could tell."""
    if status == -signal.SIGKILL:
        return Outcome(
            Ending.OUT_OF_MEMORY, said="its process was killed, as the kernel does where memory runs out"
        )
    if says_out_of_memory(log) or any(words in log.lower() for words in _ABNORMAL_SHORTAGE):
        return Outcome(Ending.OUT_OF_MEMORY, said=_last_line(log))
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
    raise WorkloadFailed(f"batch {batch}: its process ended {how}", workload_traceback=log)


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return file.read().decode("utf-8", errors="replace")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
