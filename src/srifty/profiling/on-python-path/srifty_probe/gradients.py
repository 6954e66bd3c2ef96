"""Gradients: which parameters get one, and when in the backward pass; by hooks that come and go.

Hooks sit on the parameters only in some blocks of steps, so that step time is read where there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from srifty_probe.tensors import stored_bytes
from srifty_probe.timeline import Timeline

_LATE = 3


class Gradients:
    """The parameters under watch; `fired` fills during a backward pass while hooks are on."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after a fork."""
        self.parameters: list[Any] = []
        self._index: dict[int, int] = {}
        self._handles: list[Any] = []
        self.had_gradient: set[int] = set()
        self.sparse_bytes: dict[int, int] = {}
        self.fired: list[tuple[int, Any]] = []
        self._trained_at: list[set[int]] = []

    @property
    def is_hooked(self) -> bool:
        return bool(self._handles)

    def add(self, parameters: list[Any]) -> None:
        """Watch these too; the order is that in which they came first."""
        for parameter in parameters:
            if id(parameter) not in self._index:
                self._index[id(parameter)] = len(self.parameters)
                self.parameters.append(parameter)

    def forget_parameters(self) -> None:
        """Others, alike in number and order, take the place of the parameters."""
        self.unhook()
        self.parameters, self._index = [], {}

    def is_any_silent(self) -> bool:
        """Whether a parameter that is trained has got no gradient yet."""
        return any(
            parameter.requires_grad and index not in self.had_gradient
            for index, parameter in enumerate(self.parameters)
        )

    def is_trained(self, index: int) -> bool:
        """Whether a parameter is trained now or was of late: some programs train parts by turns."""
        late = self._trained_at[-_LATE:]
        return bool(self.parameters[index].requires_grad) or any(index in trained for trained in late)

    def is_in_turns(self) -> bool:
        """Whether not the same parameters were trained each time that was looked at of late."""
        late = self._trained_at[-_LATE:]
        return any(trained != late[0] for trained in late)

    def hook(self) -> None:
        """Put a hook on each parameter that is trained now."""
        self._trained_at.append({i for i, one in enumerate(self.parameters) if one.requires_grad})
        for index, parameter in enumerate(self.parameters):
            register = getattr(parameter, "register_post_accumulate_grad_hook", None)
            if register is not None and parameter.requires_grad and parameter.is_leaf:
                self._handles.append(register(self._noting(index)))

    def unhook(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def take_fired(self) -> list[tuple[int, Any]]:
        """What has fired since the last call."""
        fired = self.fired[:]
        del self.fired[:]  # the hooks hold this very list
        return fired

    def look(self) -> None:
        """Note who has a gradient, and how large a sparse one is."""
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is not None:
                self.had_gradient.add(index)
                if getattr(gradient, "is_sparse", False):
                    self.sparse_bytes[index] = stored_bytes(gradient.coalesce())  # each row is exchanged once

    def _noting(self, index: int) -> Callable[[Any], None]:
        note, mark = self.fired.append, self._timeline.mark

        def hook(_: Any) -> None:
            note((index, mark()))

        return hook
