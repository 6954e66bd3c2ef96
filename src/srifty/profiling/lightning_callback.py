"""LightningCallback: profiles the training of a Lightning Trainer from within."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from srifty.errors import InvalidInput
from srifty.profiling.inside import StepsProfiler
from srifty.records import JobProfile

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Two names of one library, each with a Callback of its own that its Trainer asks for."""


def _bases() -> tuple[Any, ...]:
    """The Callback of each package that is in use; where none is, of the first that is installed."""
    loaded = [name for name in _PACKAGES if sys.modules.get(name) is not None]
    if loaded:
        return tuple(importlib.import_module(name).Callback for name in loaded)
    for name in _PACKAGES:
        try:
            return (importlib.import_module(name).Callback,)
        except ModuleNotFoundError:
            continue
    raise InvalidInput("LightningCallback needs lightning: pip install lightning")


class LightningCallback(*_bases()):  # type: ignore[misc]  # whichever package the user has
    """Writes a JobProfile of the steps of `Trainer.fit`, once enough of them were seen.

        trainer = Trainer(..., callbacks=[srifty.LightningCallback("t4.profile.json")])

    The keywords are those of `srifty.profile_steps`.
    """

    def __init__(self, path: str | os.PathLike[str], **more: Any) -> None:
        super().__init__()
        self._profiler = StepsProfiler(path, **more)

    @property
    def profile(self) -> JobProfile | None:
        """What was written; None: nothing (yet)."""
        return self._profiler.profile

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to follow the steps; the trial of the validation has been."""
        self._profiler.start()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take the hooks away, and write what was seen."""
        self._profiler.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take the hooks away; nothing is written after an error of the training code."""
        self._profiler.stop(exception)
