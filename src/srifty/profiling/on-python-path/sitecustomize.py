"""Found by every Python that starts with this folder on PYTHONPATH: lets Srifty's probe in, then the user's own.

A Python runs one module of this name before the script. Where the user has one too it is run as well, under
its own name, as if this file were not here.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _let_in(here: str) -> None:
    settings = os.environ.get("SRIFTY_PROBE")
    if settings:
        try:
            import srifty_probe

            srifty_probe.start(settings)
        except Exception as error:  # the user's program goes on without us
            print(f"srifty: the probe could not start: {error!r}", file=sys.stderr)
    # The script finds its modules where it would find them without us; PYTHONPATH still tells child processes.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]


def _run_the_users_own() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_let_in(os.path.dirname(os.path.abspath(__file__)))
_run_the_users_own()
