"""The probe inside the user's own process: put on, and taken off again as if it had never been there.

In a process of our own the probe may stay and end the program. Here it may do neither: what it replaces comes
back, and an error of its own is noted and goes no further. Import this after `find_probe`.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

from srifty_probe import patches, record
from srifty_probe.beacon import Beacon
from srifty_probe.models import Models
from srifty_probe.pace import Pace
from srifty_probe.record import Recorder
from srifty_probe.timeline import Cut
from srifty_probe.watch import Watch

_ABSENT = object()


def compiled_s() -> float:
    """Time that this process has spent in torch.compile so far [s]; 0 where that is not told."""
    return float(record._guarded(record._told_compile_s) or 0.0)


class InsideWatch(Watch):
    """Follows the steps of this process; tells when enough was seen, and never ends anything.

    Args:
        torch: the module
        seconds: how long to watch steady steps, where they are short [s]
        has_checkpoint: whether to save a checkpoint at the end, to time it
        on_enough: called between two steps once enough was seen, or nothing will be seen here
        on_fault: called with the traceback of an error of the probe's own
    """

    def __init__(
        self,
        torch: Any,
        *,
        seconds: float,
        has_checkpoint: bool,
        on_enough: Callable[[], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._process = os.getpid()
        self._on_enough = on_enough
        self.patches = Patches(torch, lambda: on_fault(traceback.format_exc()))
        settings = {"until": float("inf"), "steady_s": seconds, "parent": self._process}
        super().__init__(torch, settings, _Quiet("", on_fault))
        self._models = _Models(torch, self.timeline, self.patches)
        kind = Recorder if has_checkpoint else _WithoutCheckpoint
        self._recorder = kind(torch, self.timeline, self._gradients, self._models, self._beacon)

    def begin(self) -> None:
        """Watch from now on what the calling thread trains."""
        self.patches.put_on(self)
        self.timeline.claim()

    def _new_pace(self) -> Pace:
        return _Endless(self._settings)

    def end(self) -> None:
        """Watch no more; what was patched is to be taken off besides."""
        self.timeline.is_over = True
        self._gradients.unhook()
        if self._input_look is not None:
            self._input_look.remove()
        for parameter in self._gradients.parameters:
            with suppress(AttributeError):
                if not parameter._post_accumulate_grad_hooks:
                    parameter._post_accumulate_grad_hooks = None  # as before the first hook

    def write(self, folder: str, *, is_enough: bool) -> None:
        """Write the record into the folder."""
        self._beacon.folder = folder
        reason = "enough" if is_enough else "ended"
        self._recorder.write(reason, self.autocast, self._is_without_optimizer, self._optimizers)

    def _keep(self) -> None:
        pass  # the training goes on in this process, and nobody reads

    @property
    def is_first_rank(self) -> bool:
        return self._is_first_rank()

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a fork of the process that began."""
        return os.getpid() != self._process

    def _between(self, cut: Cut) -> None:
        if self.timeline.is_over:
            return
        if self.is_elsewhere:
            self.timeline.is_over = True
            return
        super()._between(cut)
        if not self.is_first_rank or (isinstance(self._pace, _Endless) and self._pace.is_enough):
            self._on_enough()


class _Endless(Pace):
    """Never a reason to end the program."""

    def verdict(self) -> str | None:
        return None

    @property
    def is_enough(self) -> bool:
        return super().verdict() is not None


class _Quiet(Beacon):
    """Writes nothing: nobody waits for it."""

    def __init__(self, folder: str, on_fault: Callable[[str], None]) -> None:
        super().__init__(folder)
        self._on_fault = on_fault

    def write(self) -> None:
        pass

    def fault(self) -> None:
        self._on_fault(traceback.format_exc())


class _WithoutCheckpoint(Recorder):
    def _told_checkpoint(self, optimizers: Any) -> dict[str, Any]:
        return {}


class _Models(Models):
    """Models whose calls are watched in a way that can be undone."""

    def __init__(self, torch: Any, timeline: Any, patches: Patches) -> None:
        super().__init__(torch, timeline)
        self._patches = patches

    def _watch_calls(self, kind: Any) -> None:
        self._patches.replace(kind, "__call__", lambda: super(_Models, self)._watch_calls(kind))


class Patches:
    """What the probe has replaced: harmless while it is there, and gone when it is taken off."""

    def __init__(self, torch: Any, on_fault: Callable[[], None]) -> None:
        self._torch, self._on_fault = torch, on_fault
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._hooks: list[tuple[dict[int, Any], int]] = []

    def put_on(self, watch: Watch) -> None:
        """Put on all that the probe watches."""
        with self._in_our_hands():
            for name, put in list(vars(patches).items()):
                if name.startswith("_watch_"):
                    put(self._torch, watch)

    def replace(self, owner: Any, name: str, put: Callable[[], None]) -> None:
        """Let `put` replace an attribute; around what it puts there, only what the original does gets out."""
        before = vars(owner).get(name, _ABSENT)
        harmless = _Harmless(getattr(owner, name), self._is_compiling, self._on_fault)
        setattr(owner, name, harmless.original())
        seen = vars(owner)[name]
        try:
            put()
        finally:
            now = vars(owner).get(name)
            ours = seen if now is seen else harmless.around(now)
            setattr(owner, name, ours)
            self._replaced.append((owner, name, before, ours))
            if ours is seen:  # nothing was put there
                self._restore(*self._replaced.pop())

    def take_off(self, *, is_at_once: bool) -> None:
        """Restore everything.

        An optimizer that calls its hooks would fall over one removed just then. So where that may be, the hooks
        stay until the next backward pass begins; they do nothing in the meantime.
        """
        while self._replaced:
            self._restore(*self._replaced.pop())
        if is_at_once:
            self._remove_hooks()
            return
        autograd, original = self._torch.autograd, self._torch.autograd.backward

        @wraps(original)
        def backward(*given: Any, **named: Any) -> Any:
            if self._is_compiling():
                return original(*given, **named)
            self.take_off(is_at_once=True)
            return original(*given, **named)

        autograd.backward = backward
        self._replaced.append((autograd, "backward", original, backward))

    def _restore(self, owner: Any, name: str, before: Any, ours: Any) -> None:
        if vars(owner).get(name) is not ours:
            return  # somebody has put theirs over it; ours lets everything pass
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    def _remove_hooks(self) -> None:
        for hooks, key in self._hooks:
            hooks.pop(key, None)
        self._hooks = []

    @contextmanager
    def _in_our_hands(self) -> Iterator[None]:
        """What the probe replaces, and the hooks that it registers, are noted."""
        from torch.optim import optimizer as optim

        registries: list[dict[int, Any]] = [
            optim._global_optimizer_pre_hooks,
            optim._global_optimizer_post_hooks,
        ]
        known = [set(hooks) for hooks in registries]
        plain = patches._wrap
        patches._wrap = lambda owner, name, make: self.replace(owner, name, lambda: plain(owner, name, make))
        try:
            yield
        finally:
            patches._wrap = plain
            for hooks, before in zip(registries, known, strict=True):
                for key in set(hooks) - before:
                    hooks[key] = self._harmless_hook(hooks[key])
                    self._hooks.append((hooks, key))

    def _harmless_hook(self, hook: Callable[..., None]) -> Callable[..., None]:
        def harmless(*given: Any) -> None:
            try:
                hook(*given)
            except Exception:
                self._on_fault()

        keep = getattr(self._torch, "_disable_dynamo", None)
        return keep(harmless) if callable(keep) else harmless


class _Harmless:
    """A function of the user's or torch's, and the probe's wrapper of it, of which no error gets out."""

    def __init__(
        self, function: Callable[..., Any], is_compiling: Callable[[], bool], on_fault: Callable[[], None]
    ) -> None:
        self._function, self._is_compiling, self._on_fault = function, is_compiling, on_fault
        self._local = threading.local()

    def original(self) -> Callable[..., Any]:
        """What the wrapper is to call: the function, whose result or error is noted."""
        function, local, is_compiling = self._function, self._local, self._is_compiling

        @wraps(function)
        def original(*given: Any, **named: Any) -> Any:
            if is_compiling():
                return function(*given, **named)
            outcomes = local.outcomes
            try:
                result = function(*given, **named)
            except BaseException as error:
                outcomes[-1] = (error, None)
                raise
            outcomes[-1] = (None, result)
            return result

        return original

    def around(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        """What is called in place of the function."""
        function, local, is_compiling = self._function, self._local, self._is_compiling

        @wraps(function)
        def harmless(*given: Any, **named: Any) -> Any:
            if is_compiling():
                return function(*given, **named)
            outcomes = local.__dict__.setdefault("outcomes", [])
            outcomes.append(None)
            try:
                return wrapper(*given, **named)
            except Exception as error:
                outcome = outcomes[-1]
                if outcome is not None and outcome[0] is error:
                    raise
                self._on_fault()
            finally:
                outcome = outcomes.pop()
            if outcome is None:
                return function(*given, **named)
            if outcome[0] is not None:
                raise outcome[0]
            return outcome[1]

        return harmless
