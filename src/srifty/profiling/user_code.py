"""User code: run it so that a failure is shown as the user's own, without our frames around it."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from srifty.errors import SriftyError, WorkloadFailed
from srifty.profiling.memory import OutOfMemory, is_out_of_memory

_OURS = str(Path(__file__).resolve().parents[1])
_NOISE = ("<frozen importlib", str(Path(importlib.__file__).parent))


@contextmanager
def user_code(doing: str) -> Iterator[None]:
    """Whatever is raised inside is the training code's.

    Args:
        doing: what is done, as the beginning of a sentence ("making batch 8")

    Raises:
        OutOfMemory: memory ran out
        WorkloadFailed: anything else, with the traceback of the training code alone; an attempt to end the
            program (SystemExit) too. KeyboardInterrupt passes.
    """
    try:
        yield
    except (SriftyError, OutOfMemory):
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it is, it is the training code's
        if is_out_of_memory(error):
            raise OutOfMemory(_first_line(error)) from None
        raise WorkloadFailed(
            f"{doing} failed: {_first_line(error)}", workload_traceback=own_traceback(error)
        ) from None


def own_traceback(error: BaseException) -> str:
    """Traceback without the frames of Srifty and of the import system."""
    told = traceback.TracebackException.from_exception(error)
    _cut_frames(told)
    return "".join(told.format())


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Modules in `folder` can be imported, as if a script in it had been started.

    The folder is not written to (no `__pycache__`), and afterwards nothing of it is left: two jobs may both
    have a module `workload`.
    """
    path, before, quiet = list(sys.path), dict(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        sys.dont_write_bytecode = quiet
        loaded = dict(sys.modules)
        for name, module in loaded.items():
            if before.get(name) is not module and lies_in(folder, loaded.get(name.partition(".")[0])):
                del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name not in sys.modules})


def lies_in(folder: Path, module: ModuleType | None) -> bool:
    """Whether a top-level module or package lies directly in `folder`, and not in a site-packages below it."""
    packages = list(getattr(module, "__path__", ()))
    place = packages[0] if packages else getattr(module, "__file__", None)
    return place is not None and Path(place).resolve().parent == folder


def _cut_frames(told: traceback.TracebackException) -> None:
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if not frame.filename.startswith((_OURS, *_NOISE))]
    )
    for inner in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if inner is not None:
            _cut_frames(inner)


def _first_line(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ended the program with exit status {error.code!r}"
    try:
        said = str(error).strip().partition("\n")[0]
    except Exception:  # an error that cannot say what it is
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
