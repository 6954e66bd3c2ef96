"""TransformersCallback: profiles the training of a Hugging Face Trainer from within."""

from __future__ import annotations

import importlib
import os
from typing import Any

from srifty.errors import InvalidInput
from srifty.profiling.inside import StepsProfiler
from srifty.records import JobProfile


def _base() -> Any:
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ModuleNotFoundError:
        raise InvalidInput("TransformersCallback needs transformers: pip install transformers") from None


class TransformersCallback(_base()):  # type: ignore[misc]  # known only where it is installed
    """Writes a JobProfile of the steps of `Trainer.train`, once enough of them were seen.

        trainer = Trainer(..., callbacks=[srifty.TransformersCallback("t4.profile.json")])

    The keywords are those of `srifty.profile_steps`, but that `batch` is the Trainer's own unless it is given.
    """

    def __init__(self, path: str | os.PathLike[str], *, batch: int | None = None, **more: Any) -> None:
        self._batch = batch
        self._profiler = StepsProfiler(path, batch=batch, **more)

    @property
    def profile(self) -> JobProfile | None:
        """What was written; None: nothing (yet)."""
        return self._profiler.profile

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Begin to follow the steps."""
        if self._batch is None:
            self._profiler.batch = getattr(state, "train_batch_size", None) or getattr(
                args, "per_device_train_batch_size", None
            )
        self._profiler.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Take the hooks away, and write what was seen."""
        self._profiler.stop()
