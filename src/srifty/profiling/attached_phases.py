"""Phases of a step of an unchanged script: every moment of its timeline belongs to one of them."""

from __future__ import annotations

from collections.abc import Iterable

from srifty.profiling.observation import Cut

PHASES = ("forward", "backward", "optimizer", "data", "other")


def phase_times(cuts: Iterable[Cut], *, is_without_optimizer: bool) -> dict[str, float]:
    """Time by phase of the cuts [s]: every moment belongs to one of them."""
    spent = dict.fromkeys(PHASES, 0.0)
    for cut in cuts:
        for label, start, end in _labelled(cut, is_without_optimizer):
            spent[label] += end - start
    return spent


def _labelled(cut: Cut, is_without_optimizer: bool) -> list[tuple[str, float, float]]:
    """Stretches of a cut by phase.

    Between a forward and a backward pass the loss is computed, which counts as forward. Where no call of a
    model was seen, so does what comes before a backward pass without another label, and what the closure of
    an optimizer does before it calls the model. A call without gradients is forward too. Between backward pass
    and optimizer gradients are clipped or scaled, which counts as optimizer; so does, in a program without one,
    what follows the backward pass.
    """
    starts = [at for _, at in cut.marks]
    ends = [*starts[1:], cut.length_s]
    labels = [label for label, _ in cut.marks]
    for index, label in enumerate(labels):
        if label == "backward":
            _label_before_backward(labels, index)
        elif label == "optimizer":
            _label_before_optimizer(labels, index)
    if is_without_optimizer and not {"forward", "data"}.isdisjoint(labels):
        first = next(i for i, label in enumerate(labels) if label in ("forward", "data", "backward"))
        labels[:first] = ["optimizer"] * first
    labels = [{"zero_grad": "optimizer", "inference": "forward"}.get(label, label) for label in labels]
    return list(zip(labels, starts, ends, strict=True))


def _label_before_backward(labels: list[str], index: int) -> None:
    start = index
    while start > 0 and labels[start - 1] not in ("backward", "data"):
        start -= 1
    if "forward" in labels[start:index]:
        start = _closure_s_start(labels, labels.index("forward", start))
        unlabelled = {"other", "optimizer"}
    elif start < index and labels[index - 1] == "optimizer":
        unlabelled = {"optimizer"}  # the optimizer's closure
    else:
        unlabelled = {"other"}
    labels[start:index] = ["forward" if label in unlabelled else label for label in labels[start:index]]


def _closure_s_start(labels: list[str], forward: int) -> int:
    """Where a closure begins that calls the model at `forward`: what its optimizer does before is next to nothing.

    After a backward pass of the same step it may be much (a search for the length of the step), and stays its own.
    """
    start = forward
    while start > 0 and labels[start - 1] == "optimizer":
        start -= 1
    return forward if start > 0 and labels[start - 1] in ("backward", "zero_grad") else start


def _label_before_optimizer(labels: list[str], index: int) -> None:
    start = index
    while start > 0 and labels[start - 1] in ("other", "zero_grad"):
        start -= 1
    if start > 0 and labels[start - 1] == "backward":
        labels[start:index] = ["optimizer"] * (index - start)
