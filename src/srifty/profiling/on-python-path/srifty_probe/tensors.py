"""Tensors in what a model or a loader is given: how many samples, how many elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DEEPEST = 4


def tensors_in(value: Any, kind: type, deepest: int = _DEEPEST) -> Iterator[Any]:
    """Tensors in nested lists, tuples and mappings, in order."""
    if isinstance(value, kind):
        yield value
    elif deepest > 0:
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            for inner in value:
                yield from tensors_in(inner, kind, deepest - 1)


def _packed_in(value: Any, deepest: int = _DEEPEST) -> Iterator[Any]:
    """Packed sequences: as many samples as their first step has, and not the rows of all steps together."""
    if hasattr(value, "batch_sizes") and hasattr(value, "unsorted_indices"):
        yield value
    elif deepest > 0 and isinstance(value, (list, tuple)):
        for inner in value:
            yield from _packed_in(inner, deepest - 1)


def rows_and_elements(value: Any, kind: type) -> tuple[int, int]:
    """First dimension of the first tensor that has one, and size of the largest; 0 where there is none."""
    rows = elements = 0
    try:
        for packed in _packed_in(value):
            rows = rows or int(packed.batch_sizes[0])
        for tensor in tensors_in(value, kind):
            if tensor.dim() > 0:
                rows = rows or int(tensor.shape[0])
                elements = max(elements, int(tensor.numel()))
    except Exception:  # data that cannot be looked at are the program's affair
        return 0, 0
    return rows, elements


def stored_bytes(tensor: Any) -> int:
    """Size of the elements [bytes]; of a sparse tensor its values and indices."""
    if getattr(tensor, "is_sparse", False):
        return stored_bytes(tensor._values()) + stored_bytes(tensor._indices())
    return int(tensor.numel()) * int(tensor.element_size())


def told_parameter(parameter: Any) -> dict[str, Any]:
    """What the record says of a parameter: size [bytes], type of its numbers, place."""
    return {
        "bytes": stored_bytes(parameter),
        "dtype": str(parameter.dtype).replace("torch.", ""),
        "device": str(parameter.device),
    }
