"""One try of one batch, in a process of its own: `python -m srifty.profiling.try_batch REQUEST`.

A fresh process finds the memory as a training run would: no fragments of earlier tries, no other model. It makes
the workload, takes two steps and writes how that ended to a file. Whoever started it reads that file, and knows
from the way the process ended what it could not write any more.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from srifty.errors import InvalidInput, WorkloadFailed
from srifty.profiling.batches import smallest_batch
from srifty.profiling.clock import Clock
from srifty.profiling.device import find_device
from srifty.profiling.host_memory import forget_resident_peak, limit_further_data, resident_peak_bytes
from srifty.profiling.memory import is_out_of_memory, peak_bytes, reset_peak
from srifty.profiling.steps import time_steps
from srifty.profiling.user_code import importing_from, own_traceback
from srifty.profiling.workload import Workload, load_workload

STEPS = 2
"""The first stores the optimizer's state, the second finds the memory as all later ones do."""
DRAWS = 4
"""Where batches vary in length the longest of so many is tried."""
_LOOK_FOR_PARENT_S = 0.5


@dataclass(frozen=True)
class Request:
    """What is to be tried, and where the answer goes.

    Attributes:
        workload: "module:function"
        folder: where the module is looked for
        device: as torch names it
        batch: samples on the device
        host_limit_bytes: what may be allocated on the CPU beyond what torch itself takes; None: no limit
        import_path: where modules are looked for by the process that asks
        report: file to write the Report to
        parent_id: process that asks; without it this one ends
    """

    workload: str
    folder: str
    device: str
    batch: int
    host_limit_bytes: int | None
    import_path: list[str]
    report: str
    parent_id: int


@dataclass(frozen=True)
class Report:
    """How a try ended.

    Attributes:
        ending: "fits", "out of memory", "too small", "invalid input", "workload failed", "fault" (in Srifty)
        said: why, in the words of the error
        workload_traceback: of the training code, where that failed; of Srifty, where it did
        peak_memory_bytes: most memory in use; None: not known
        step_s: length of the last step [s]
        smallest_batch: fewest samples that the model trains with; None: it could not be made
    """

    ending: str
    said: str = ""
    workload_traceback: str = ""
    peak_memory_bytes: int | None = None
    step_s: float | None = None
    smallest_batch: int | None = None


def attempt(request: Request) -> Report:
    """Make the workload and take two steps; memory that runs out and failures of the code are told apart."""
    smallest = None
    try:
        found = find_device(request.device)
        folder = Path(request.folder)
        with importing_from(folder), found.current():
            on_cpu = found.place.type == "cpu"
            _load_libraries()
            forget_resident_peak()
            before_bytes = resident_peak_bytes()
            if request.host_limit_bytes is not None:
                limit_further_data(request.host_limit_bytes)
            workload = load_workload(request.workload, folder)
            smallest = smallest_batch(workload.model)
            if request.batch < smallest:
                return Report("too small", smallest_batch=smallest)
            workload.move_to(found.place)
            buckets = _like_ddp_buckets(workload)
            data = workload.data(request.batch, found.place, draws=DRAWS)
            reset_peak(found.place)
            block = time_steps(workload, data, Clock(found.place), STEPS)
            peak = resident_peak_bytes() - before_bytes if on_cpu else peak_bytes(found.place)
            del buckets
            if request.host_limit_bytes is not None and peak is not None and peak > request.host_limit_bytes:
                return Report(  # where the kernel does not keep the limit
                    "out of memory", said=f"it took {peak} bytes of memory", smallest_batch=smallest
                )
            return Report(
                "fits", peak_memory_bytes=peak, step_s=block.steps[-1].step_s, smallest_batch=smallest
            )
    except InvalidInput as error:
        return Report("invalid input", said=str(error))
    except WorkloadFailed as error:
        return Report("workload failed", said=str(error), workload_traceback=error.workload_traceback)
    except Exception as error:
        if is_out_of_memory(error):
            return Report("out of memory", said=_first_line(error), smallest_batch=smallest)
        return Report("fault", said=_first_line(error), workload_traceback=traceback.format_exc())
    except BaseException as error:  # the training code interrupts itself
        return Report("workload failed", said=type(error).__name__, workload_traceback=own_traceback(error))


def _load_libraries() -> None:
    """Take a step of next to nothing on the CPU: what torch loads for its first one is no memory of the job's."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 8)).square().mean().backward()
    optimizer.step()


def _like_ddp_buckets(workload: Workload) -> list[torch.Tensor]:
    """Memory as DDP holds it beside the gradients while it exchanges them.

    Gradients of sparse embeddings are exchanged by what is in them, which is little.
    """
    sparse = {
        id(parameter)
        for module in workload.model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        for parameter in module.parameters(recurse=False)
    }
    return [
        torch.ones_like(parameter, requires_grad=False)  # ones, so that the pages are really there
        for parameter in workload.trained_parameters
        if id(parameter) not in sparse
    ]


def end_with(parent_id: int) -> None:
    """End this process and all that it has started, once its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent_id:
            time.sleep(_LOOK_FOR_PARENT_S)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> None:
    """Try what the request says, write the report, and end without waiting for threads of the training code."""
    request = Request(**json.loads(arguments[0]))
    end_with(request.parent_id)
    faulthandler.enable()
    sys.path.extend(place for place in request.import_path if place not in sys.path)
    report = attempt(request)
    beside = Path(f"{request.report}.part")
    beside.write_text(json.dumps(asdict(report)), encoding="utf-8")
    beside.replace(request.report)
    os._exit(0)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
