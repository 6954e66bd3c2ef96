"""The probe: what Srifty puts into a user's own training process to see its steps.

It runs in the user's interpreter, so it needs nothing but the standard library, imports nothing of Srifty and
keeps to what Python 3.8 understands. Until the program imports torch it costs next to nothing: launchers and
helper processes load this file too.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

from srifty_probe.beacon import Beacon


def start(settings_text: str) -> None:
    """Say that this process is there, and wait for torch.

    Args:
        settings_text: JSON with folder, until (time.monotonic [s]), steady_s [s] and parent (process id)
    """
    settings = json.loads(settings_text)
    beacon = Beacon(settings["folder"])
    beacon.write()
    sys.meta_path.insert(0, _AfterTorch(settings, beacon))


class _AfterTorch:
    """Finds torch as the other finders do, and patches it once it has been imported whole."""

    def __init__(self, settings: dict[str, Any], beacon: Beacon) -> None:
        self._settings, self._beacon = settings, beacon
        self._is_asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            self._patch(spec.loader)
        return spec

    def _patch(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            try:
                from srifty_probe.patches import install

                install(module, self._settings, self._beacon)
            except Exception:
                self._beacon.fault()

        loader.exec_module = exec_module
