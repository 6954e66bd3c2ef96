"""Models: those that are trained, found among the program's objects, and their outermost calls.

They are looked for after the first step, by the parameters that an optimizer holds or that have gradients: so
nothing of ours is in the way while a first step is compiled. Then the call of their class is wrapped, not
hooks put on them, which a compiler would trace. Modules with parameters that nobody trains (a teacher, a frozen
backbone) are watched too: they are part of a step where they are called in it.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

from srifty_probe.tensors import rows_and_elements, stored_bytes
from srifty_probe.timeline import BACKWARD, FORWARD, INFERENCE, Timeline


class Models:
    """The outermost modules that hold trained parameters, and those that hold others."""

    def __init__(self, torch: Any, timeline: Timeline) -> None:
        self._torch, self._timeline = torch, timeline
        self._is_compiling: Callable[[], bool] = getattr(
            getattr(torch, "compiler", None), "is_compiling", lambda: False
        )
        self._wrapped: set[type] = set()
        self.clear()

    def clear(self) -> None:
        """Forget them, as after a fork."""
        self.roots: list[Any] = []
        self.ddps: list[Any] = []
        """Those of class DistributedDataParallel, the roots themselves or below them."""
        self._root_ids: set[int] = set()
        self._untrained: dict[int, Any] = {}
        self.untrained: dict[int, list[tuple[int, int]]] = {}
        """Id and size [bytes] of each parameter of an untrained module that was called, by the module's id."""

    def forget_roots(self) -> None:
        """Others are trained now."""
        self.roots, self.ddps = [], []
        self._root_ids.clear()

    def find(self, trained: list[Any]) -> None:
        """Look for the outermost modules that hold any of these parameters, and watch their calls."""
        kind = self._torch.nn.Module
        modules = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
        inner = {id(child) for module in modules for child in _children(module)}
        wanted = {id(parameter) for parameter in trained}
        for module in modules:
            if id(module) in inner or id(module) in self._root_ids:
                continue
            held = [id(parameter) for parameter in module.parameters()]
            if not wanted.isdisjoint(held):
                self._untrained.pop(id(module), None)
                self.roots.append(module)
                self._root_ids.add(id(module))
                self._watch_calls(type(module))
            elif held and not _is_laid_out(module):
                self._untrained[id(module)] = weakref.ref(module)  # it is not kept from going
                self._watch_calls(type(module))
        for gone in [root for root in self.roots if id(root) in inner]:  # wrapped in another since
            self.roots.remove(gone)
            self._root_ids.discard(id(gone))
        below = [module for root in self.roots for module in root.modules()]
        self.ddps = [module for module in below if type(module).__name__ == "DistributedDataParallel"]
        for module in self.ddps:
            self._root_ids.add(id(module))
            self._watch_calls(type(module))

    def leaves_with_gradient(self) -> list[Any]:
        """Trained tensors of a program without optimizers."""
        kind = self._torch.Tensor
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
        return [one for one in tensors if one.requires_grad and one.is_leaf and one.grad is not None]

    def free_parameters(self) -> list[Any]:
        """Parameters that could be trained, where no tensor shows a gradient."""
        kind = self._torch.nn.Parameter
        return [one for one in gc.get_objects() if issubclass(type(one), kind) and one.requires_grad]

    def look_at_inputs(self, tell: Callable[[int], None]) -> Any:
        """Tell the first dimension of what enters any module, until the handle returned is removed.

        For models of which no outermost call is seen. It slows each module, so it is for one step.
        """

        def hook(module: Any, inputs: Any) -> None:
            rows, _ = rows_and_elements(inputs, self._torch.Tensor)
            if rows and not self._timeline.depth[BACKWARD] and not self._timeline.is_elsewhere():
                tell(rows)

        return self._torch.nn.modules.module.register_module_forward_pre_hook(hook)

    def parameters(self) -> list[Any]:
        """Parameters of the models, each once, in the order of registration."""
        once = {id(parameter): parameter for root in self.roots for parameter in root.parameters()}
        return list(once.values())

    def _watch_calls(self, kind: Any) -> None:
        if any(base in self._wrapped for base in kind.__mro__):
            return
        self._wrapped.add(kind)
        original = kind.__call__
        timeline, models, tensor = self._timeline, self, self._torch.Tensor
        is_compiling, is_grad_enabled = self._is_compiling, self._torch.is_grad_enabled

        def infer(module: Any, inputs: Any, named: Any) -> Any:
            timeline.enter(INFERENCE)
            try:
                return original(module, *inputs, **named)
            finally:
                timeline.leave(INFERENCE)

        @functools.wraps(original)
        def call(self: Any, *inputs: Any, **named: Any) -> Any:
            is_root = id(self) in models._root_ids
            if is_compiling() or not (is_root or models._is_untrained(self)):
                return original(self, *inputs, **named)
            depth = timeline.depth
            if depth[FORWARD] or depth[INFERENCE] or depth[BACKWARD] or timeline.is_elsewhere():
                return original(self, *inputs, **named)
            cut = timeline.cut or timeline.begin()
            if not is_root:
                if id(self) not in models.untrained:
                    models.untrained[id(self)] = [(id(one), stored_bytes(one)) for one in self.parameters()]
                cut.untrained_calls.append(id(self))
                return infer(self, inputs, named)
            if not is_grad_enabled():
                cut.no_grad_forwards += 1
                return infer(self, inputs, named)
            cut.forwards += 1
            cut.synced_forwards += models._is_synced(self)
            rows, elements = rows_and_elements((inputs, named), tensor)
            cut.rows.append(rows)
            cut.elements += elements
            timeline.enter(FORWARD)
            try:
                return original(self, *inputs, **named)
            finally:
                timeline.leave(FORWARD)

        kind.__call__ = call

    def _is_untrained(self, called: Any) -> bool:
        known = self._untrained.get(id(called))
        return known is not None and known() is called

    def _is_synced(self, called: Any) -> bool:
        """Whether the call of a model is one after which DDP exchanges."""
        if hasattr(called, "require_backward_grad_sync"):
            return bool(called.require_backward_grad_sync)
        return any(ddp.require_backward_grad_sync for ddp in self.ddps)


def _children(module: Any) -> list[Any]:
    return [child for child in module.__dict__.get("_modules", {}).values() if child is not None]


def _is_laid_out(module: Any) -> bool:
    """Whether its parameters are on no real device: a plan of a model, and no model."""
    return any(parameter.device.type == "meta" for parameter in module.parameters())
