"""Optimizers: those that step, who follows whom, and which of their steps ends a step of the training."""

from __future__ import annotations

import gc
import weakref
from typing import Any

FORGOTTEN_AFTER = 64
"""An optimizer that has not stepped for so many cuts is not in use any more."""


class Optimizers:
    """Every optimizer that has stepped, numbered by the order of its first step, each in a role.

    Cross-validation makes a new model and a new optimizer a fold: the new one takes over the role of the old, and
    their steps count as one's. It is taken for that where it is of the same kind with parameters of the same
    shapes, until the old one steps again: then they are two that take turns.
    """

    def __init__(self) -> None:
        self.current: list[Any] = []
        """Those in a role now; the others are not kept alive."""
        self.has_changed = False
        """Whether `current` has changed since this was last set to False."""
        self.has_replaced = False
        """Whether one of them has taken over a role since this was last set to False."""
        self.has_begun_anew = False
        """Whether an optimizer has gone and one of another kind has come since this was last set to False."""
        self._known: list[Any] = []
        self._kinds: list[Any] = []
        self._roles: list[int] = []
        self._counts: list[int] = []
        self._stepped_at: list[int] = []
        self._last_fewest = 0

    def stepped(self, optimizer: Any, cut_count: int) -> int:
        """Note a step, and tell the optimizer's number."""
        known = [number for number, other in enumerate(self._known) if other() is optimizer]
        number = known[0] if known else self._add(optimizer)
        if number != max(i for i, role in enumerate(self._roles) if role == self._roles[number]):
            self._part(number)
        self._counts[number] += 1
        self._stepped_at[number] = cut_count
        return number

    @property
    def role_count(self) -> int:
        """How many there are, of those that follow each other one."""
        return len(set(self._roles))

    def role(self, number: int) -> int:
        """The role in which an optimizer steps."""
        return self._roles[number]

    def has_advanced(self, cut_count: int) -> bool:
        """Whether, of the roles in use, the one that steps least often has stepped again."""
        counts: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, role in enumerate(self._roles):
            counts[role] = counts.get(role, 0) + self._counts[number]
            last[role] = max(last.get(role, 0), self._stepped_at[number])
        in_use = [count for role, count in counts.items() if last[role] >= cut_count - FORGOTTEN_AFTER]
        fewest = min(in_use, default=0)
        has_advanced = fewest > self._last_fewest
        self._last_fewest = fewest
        return has_advanced

    def parameters(self) -> list[Any]:
        """Parameters of the optimizers in a role now."""
        return [
            parameter
            for optimizer in self.current
            for group in getattr(optimizer, "param_groups", ())
            for parameter in group["params"]
        ]

    def _add(self, optimizer: Any) -> int:
        kind = _kind(optimizer)
        number = len(self._known)
        self._known.append(weakref.ref(optimizer))
        self._kinds.append(kind)
        self._counts.append(0)
        self._stepped_at.append(0)
        alike = [other for other in range(number) if self._kinds[other] == kind]
        has_lost = self._let_go()
        if len({self._roles[other] for other in alike}) == 1:
            role = self._roles[alike[-1]]
            before = [other for other in range(number) if self._roles[other] == role]
            gone = {id(self._known[other]()) for other in before}
            self.current = [one for one in self.current if id(one) not in gone]
            self.has_replaced = True
        else:
            role = max(self._roles, default=-1) + 1
            self.has_begun_anew = self.has_replaced = has_lost
        self._roles.append(role)
        self.current.append(optimizer)
        self.has_changed = True
        return number

    def _let_go(self) -> bool:
        """Keep only those that the program keeps, and tell whether any has gone."""
        held = [weakref.ref(one) for one in self.current]
        self.current = []
        gc.collect()
        kept = [one() for one in held]
        self.current = [one for one in kept if one is not None]
        return len(self.current) < len(held)

    def _part(self, number: int) -> None:
        """The old one steps again, so the newer ones of its role are of another."""
        old = self._roles[number]
        new = max(self._roles) + 1
        for other in range(number + 1, len(self._roles)):
            if self._roles[other] == old:
                self._roles[other] = new
        self.current.insert(0, self._known[number]())
        self.has_changed = True


def _kind(optimizer: Any) -> Any:
    groups = getattr(optimizer, "param_groups", ())
    shapes = [tuple(parameter.shape) for group in groups for parameter in group["params"]]
    return type(optimizer), tuple(shapes)
