"""A trial of DDP: the program's model in a real DistributedDataParallel of one process, for some more steps.

It comes last, when everything else has been written down, since DDP may not bear what the program does. Whatever
goes wrong here ends the program, and the record stands without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from srifty_probe.timeline import seconds

PASSES_BEFORE = 2
"""DDP has one bucket of each kind in its first backward pass, and its final ones from the second on."""
FEWEST_PASSES, MOST_PASSES = 3, 8
LONGEST_S = 20.0


class DdpTrial:
    """Calls of the model go through DDP from `begin` on; `on_done` is called with what was seen, perhaps nothing.

    Args:
        torch: the module
        root: the model
        mark: gives a mark in time
        has_unused: whether some of its trained parameters get no gradient
        on_done: ends the program
    """

    def __init__(
        self,
        torch: Any,
        root: Any,
        mark: Callable[[], Any],
        has_unused: bool,
        on_done: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._torch, self._root, self._mark = torch, root, mark
        self._has_unused, self._on_done = has_unused, on_done
        self._thread = threading.get_ident()
        self._is_inside = self._is_over = False
        self._has_called = False
        self._fired: list[tuple[int, Any]] = []
        self._passes: list[tuple[Any, list[tuple[int, Any]], Any]] = []

    def begin(self, seconds: float) -> None:
        """Put the model into DDP, and take for granted that the program ends within so many seconds."""
        alarm = threading.Timer(seconds, self._end)
        alarm.daemon = True
        alarm.start()
        distributed = self._torch.distributed
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        # init_sync: there is no other rank to agree with.
        self._ddp = self._torch.nn.parallel.DistributedDataParallel(
            self._root, find_unused_parameters=self._has_unused, broadcast_buffers=False, init_sync=False
        )
        self._ddp.register_comm_hook(None, self._hook())
        self._watch_calls(type(self._root))
        self._watch_backward(self._torch.autograd)

    def _hook(self) -> Callable[..., Any]:
        note, mark, future_of = self._note, self._mark, self._torch.futures.Future

        # DDP asks for these two names; annotations that are text would be refused.
        def hook(state, bucket):  # type: ignore[no-untyped-def]
            buffer = bucket.buffer()
            note(buffer.numel() * buffer.element_size(), mark())
            exchanged = future_of()
            exchanged.set_result(buffer)
            return exchanged

        return hook

    def _note(self, size: int, mark: Any) -> None:
        self._fired.append((size, mark))

    def _watch_calls(self, kind: Any) -> None:
        original = kind.__call__

        def call(module: Any, *inputs: Any, **named: Any) -> Any:
            if module is not self._root or self._is_inside or not self._is_ours():
                return original(module, *inputs, **named)
            if not self._torch.is_grad_enabled():
                return original(module, *inputs, **named)
            self._is_inside = self._has_called = True
            try:
                return self._ddp(*inputs, **named)
            except Exception:
                self._end()
                raise
            finally:
                self._is_inside = False

        kind.__call__ = call

    def _watch_backward(self, autograd: Any) -> None:
        original = autograd.backward

        def backward(*given: Any, **named: Any) -> Any:
            if not self._has_called or not self._is_ours():
                return original(*given, **named)
            self._has_called = False
            self._fired = []
            begin = self._mark()
            try:
                result = original(*given, **named)
            except Exception:
                self._end()
                raise
            self._passes.append((begin, self._fired, self._mark()))
            if len(self._passes) >= PASSES_BEFORE + MOST_PASSES:
                self._end()
            return result

        autograd.backward = backward

    def _is_ours(self) -> bool:
        return not self._is_over and threading.get_ident() == self._thread

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_done(self._told())

    def _told(self) -> list[dict[str, Any]]:
        """The backward passes: sizes of their buckets [bytes], and when each was ready, as a share of the pass."""
        kind = next(self._root.parameters()).device.type
        if kind != "cpu":
            getattr(self._torch, kind).synchronize()
        told = []
        for begin, fired, end in self._passes[PASSES_BEFORE:]:
            whole_s = seconds(begin, end)
            if whole_s > 0:
                ready_at = [min(max(seconds(begin, mark) / whole_s, 0.0), 1.0) for _, mark in fired]
                told.append(
                    {"sizes": [size for size, _ in fired], "ready_at": ready_at, "backward_s": whole_s}
                )
        return told if len(told) >= FEWEST_PASSES else []
