"""Patches: the few functions of torch through which every training loop goes, made to tell the watch."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from typing import Any

from srifty_probe.beacon import Beacon
from srifty_probe.tensors import rows_and_elements, tensors_in
from srifty_probe.timeline import BACKWARD, DATA, OPTIMIZER, ZERO_GRAD
from srifty_probe.watch import Watch


def install(torch: Any, settings: dict[str, Any], beacon: Beacon) -> None:
    """Patch torch, which has just been imported; the program has not seen it yet."""
    beacon.seen["torch"] = str(torch.__version__)
    watch = Watch(torch, settings, beacon)
    _watch_backward(torch, watch)
    _watch_optimizers(torch, watch)
    _watch_scaler(torch, watch)
    _watch_loader(torch, watch)
    _watch_autocast(torch, watch)
    _watch_saving(torch, watch)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=watch.clear)
    atexit.register(watch.at_exit)
    beacon.write()


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _kept_from_compilers(torch: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What keeps torch.compile from tracing a function of ours into the program; imports no compiler."""
    keep = getattr(torch, "_disable_dynamo", None)
    return keep if callable(keep) else lambda function: function


def _watch_backward(torch: Any, watch: Watch) -> None:
    timeline = watch.timeline
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

    def make(original: Callable[..., Any], is_backward: bool) -> Callable[..., Any]:
        def backward(*given: Any, **named: Any) -> Any:
            if is_compiling() or timeline.is_elsewhere():
                return original(*given, **named)
            timeline.claim()
            timeline.enter(BACKWARD)
            is_outermost = timeline.depth[BACKWARD] == 1
            begin = timeline.cut.marks[-1][1] if timeline.cut is not None else None
            try:
                result = original(*given, **named)
            finally:
                timeline.leave(BACKWARD)
            if is_outermost:
                if not is_backward:
                    asked = named.get("inputs", given[1] if len(given) > 1 else ())
                    watch.asked_for_gradients(list(tensors_in(asked, torch.Tensor)))
                watch.backward_ended(begin, is_backward)
            return result

        return backward

    # Tensor.backward looks this name up when it is called.
    _wrap(torch.autograd, "backward", lambda original: make(original, True))
    _wrap(torch.autograd, "grad", lambda original: make(original, False))


def _watch_optimizers(torch: Any, watch: Watch) -> None:
    from torch.optim import optimizer as optim

    timeline = watch.timeline
    kept_from_compilers = _kept_from_compilers(torch)

    @kept_from_compilers
    def before(optimizer: Any, given: Any, named: Any) -> None:
        if not timeline.is_elsewhere():
            watch.step_begins()

    @kept_from_compilers
    def after(optimizer: Any, given: Any, named: Any) -> None:
        if not timeline.is_elsewhere():
            watch.step_ended(optimizer)

    optim.register_optimizer_step_pre_hook(before)
    optim.register_optimizer_step_post_hook(after)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @kept_from_compilers
        def zero_grad(*given: Any, **named: Any) -> Any:
            if timeline.is_elsewhere():
                return original(*given, **named)
            timeline.enter(ZERO_GRAD)
            try:
                return original(*given, **named)
            finally:
                timeline.leave(ZERO_GRAD)

        return zero_grad

    _wrap(optim.Optimizer, "zero_grad", make)


def _watch_scaler(torch: Any, watch: Watch) -> None:
    """A gradient scaler that meets infinities leaves the step out: no optimizer tells of that."""
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None) or torch.cuda.amp.GradScaler
    timeline = watch.timeline

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, optimizer: Any, *given: Any, **named: Any) -> Any:
            if timeline.is_elsewhere():
                return original(self, optimizer, *given, **named)
            watch.scaler_begins()
            timeline.enter(OPTIMIZER)
            try:
                return original(self, optimizer, *given, **named)
            finally:
                timeline.leave(OPTIMIZER)
                watch.scaler_ended(optimizer)

        return step

    _wrap(scaler, "step", make)


def _watch_loader(torch: Any, watch: Watch) -> None:
    from torch.utils.data import dataloader

    timeline, tensor = watch.timeline, torch.Tensor

    def make_iter(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(self: Any) -> Any:
            if timeline.is_elsewhere():
                return original(self)
            cut = watch.loader_starts()
            timeline.enter(DATA)
            try:
                return original(self)
            finally:
                timeline.leave(DATA)
                cut.loader_starts += 1

        return start

    def make_next(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(self: Any) -> Any:
            if timeline.is_elsewhere():
                timeline.loads_elsewhere += not timeline.is_over
                return original(self)
            timeline.enter(DATA)
            try:
                batch = original(self)
            finally:
                timeline.leave(DATA)
            if timeline.depth[DATA] == 0:
                watch.loaded(*rows_and_elements(batch, tensor), self, _set_to(self))
            return batch

        return load

    _wrap(dataloader.DataLoader, "__iter__", make_iter)
    _wrap(dataloader._BaseDataLoaderIter, "__next__", make_next)


def _set_to(iterator: Any) -> int:
    """The batch that a loader is set to, where it puts samples together itself; 0: not known."""
    if not getattr(iterator, "_auto_collation", False):
        return 0
    return int(getattr(getattr(iterator, "_index_sampler", None), "batch_size", None) or 0)


def _watch_autocast(torch: Any, watch: Watch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(self: Any) -> Any:
            if getattr(self, "_enabled", False) and torch.is_grad_enabled():
                kind = getattr(self, "fast_dtype", None)
                watch.autocast[str(kind)] = watch.autocast.get(str(kind), 0) + 1
            return original(self)

        return enter

    _wrap(torch.autocast, "__enter__", make)


def _watch_saving(torch: Any, watch: Watch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*given: Any, **named: Any) -> Any:
            if watch.timeline.cut is not None:
                watch.timeline.cut.saves += 1
            return original(*given, **named)

        return save

    _wrap(torch, "save", make)
