"""Start the ranks of a command on this machine, where torchrun did not.

torch's own launcher at work, without its log folders, banners and last words: a user's mistake and Ctrl-C end in a
line and the right exit status.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from srifty.errors import InvalidInput, NotMeasured
from srifty.profiling.network_probe import check_asked

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
OWN_STATUSES = range(1, 6)
"""With which srifty ends after it has said why."""


def start_ranks(count: int, arguments: Sequence[str], *, backend: str | None, max_seconds: float) -> int:
    """Run `srifty ARGUMENTS` in `count` ranks until all have ended; the exit status. See `verbs.start_ranks`.

    Rank 0 has the terminal. What the others say is kept, and told where one of them was the first to fail.
    """
    check_asked(backend=backend, max_seconds=max_seconds)
    if backend == "nccl" and torch.cuda.device_count() < count:
        raise InvalidInput(
            f"nccl needs a GPU for each rank: {count} ranks were asked for, and this machine has "
            f"{torch.cuda.device_count()}; give --ranks of them, or --backend gloo"
        )
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="srifty-ranks-") as folder:
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=count,
                run_id=str(uuid.uuid4()),
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                max_restarts=0,
                monitor_interval=0.1,
                logs_specs=DefaultLogsSpecs(
                    log_dir=folder, redirects=dict.fromkeys(range(1, count), Std.ERR)
                ),
            )
            config.signals_to_handle = ""  # they are the program's own
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            try:
                elastic_launch(config, sys.executable)("-m", "srifty", *arguments)
            except ChildFailedError as error:
                return _status(error.failures.values(), folder)
            except SignalException as error:  # versions of torch that take the signals for themselves
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                signal.raise_signal(error.sigval)
                return 128 + int(error.sigval)
    finally:
        logging.disable(logging.NOTSET)
    return 0


def _status(failures: Iterable[ProcessFailure], folder: str) -> int:
    """The exit status of rank 0, which has said why; of another rank, its word is passed on as an error.

    Raises:
        InvalidInput, NotMeasured: another rank than 0 was the first to fail
    """
    ordered = sorted(failures, key=lambda failure: failure.local_rank)
    first = ordered[0]
    if first.local_rank == 0 and first.exitcode in OWN_STATUSES:
        return int(first.exitcode)
    if first.exitcode < 0:
        name = signal.Signals(-first.exitcode).name
        raise NotMeasured(f"rank {first.local_rank} was ended by {name}; nothing was written")
    said = _last_word(folder, first.local_rank)
    kind = InvalidInput if first.exitcode == InvalidInput.exit_status else NotMeasured
    raise kind(said or f"rank {first.local_rank} ended with status {first.exitcode}; nothing was written")


def _last_word(folder: str, rank: int) -> str:
    """What a rank said last."""
    lines: list[str] = []
    for file in Path(folder).rglob(os.path.join(str(rank), "stderr.log")):
        lines += file.read_text(errors="replace").splitlines()
    own = [line for line in lines if line.startswith("srifty: ")]
    return own[-1].removeprefix("srifty: ") if own else ""
