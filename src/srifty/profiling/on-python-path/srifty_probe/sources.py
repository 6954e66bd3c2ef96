"""Sources: the data sets that loaders give batches of, numbered."""

from __future__ import annotations

import weakref
from typing import Any


class Sources:
    """A data set that is made anew, as some programs do each epoch, goes on with the old one's number."""

    def __init__(self) -> None:
        self._known: list[tuple[int, Any, Any]] = []

    def number(self, iterator: Any, batch: int) -> int:
        """The number of an iterator's data set.

        Args:
            iterator: of a loader
            batch: that it is set to
        """
        data = getattr(iterator, "_dataset", iterator)
        kind = (type(data), type(iterator), batch)
        for number, (place, _, _) in enumerate(self._known):
            if place == id(data):
                self._known[number] = (place, kind, weakref.ref(iterator))
                return number
        for number, (_, other, user) in enumerate(self._known):
            if other == kind and user() is None:
                self._known[number] = (id(data), kind, weakref.ref(iterator))
                return number
        self._known.append((id(data), kind, weakref.ref(iterator)))
        return len(self._known) - 1
