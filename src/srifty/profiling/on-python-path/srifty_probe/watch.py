"""Watch: follows the steps as they happen, puts hooks on and off, and ends the program once enough was seen.

Its own work is done between two cuts of the timeline, so it falls into no step.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
import weakref
from typing import Any

from srifty_probe.beacon import Beacon
from srifty_probe.ddp_trial import FEWEST_PASSES, LONGEST_S, PASSES_BEFORE, DdpTrial
from srifty_probe.gradients import Gradients
from srifty_probe.models import Models
from srifty_probe.optimizers import Optimizers
from srifty_probe.pace import FEWEST_TO_TELL, Pace
from srifty_probe.record import Recorder
from srifty_probe.sources import Sources
from srifty_probe.timeline import BACKWARD, OPTIMIZER, Cut, Timeline

BACKWARDS_WITHOUT_OPTIMIZER = 20
"""After so many backward passes without an optimizer the end of one is taken for the end of a step."""
STEPS_BEFORE_LOOK = 4
MOST_LOOKS = 2
"""How often a program without optimizers is searched for its models."""
FIRST_KEPT = 6
"""After so many steps, and each time four times as many, what was seen is written down."""
KEPT_EVERY_S = 10.0


class Watch:
    """The state of one process."""

    def __init__(self, torch: Any, settings: dict[str, Any], beacon: Beacon) -> None:
        self._torch, self._settings, self._beacon = torch, settings, beacon
        self.timeline = Timeline()
        self._gradients = Gradients(self.timeline)
        self._models = Models(torch, self.timeline)
        self._recorder = Recorder(torch, self.timeline, self._gradients, self._models, beacon)
        self._recorder.saves_checkpoint = not settings.get("steps")
        self.clear()

    def clear(self) -> None:
        """Begin anew, as after a fork: a child may train, but not go on with its parent's steps."""
        self.timeline.clear()
        self._gradients.clear()
        self._models.clear()
        self._beacon.clear()
        self._beacon.seen["torch"] = str(self._torch.__version__)
        self.autocast: dict[str, int] = {}
        self._optimizers = Optimizers()
        self._pace = self._new_pace()
        self._step_depth = self._scaler_depth = 0
        self._is_pending = self._is_without_optimizer = False
        self._backwards_alone = 0
        self._cut_count = self._look_count = 0
        self._keep_from, self._kept_at = FIRST_KEPT, time.monotonic()
        self._was_at_work = False
        self._cut_at = time.perf_counter()
        self._input_look: Any = None
        self._asked: dict[int, Any] = {}
        self._asked_again: list[Any] = []
        self._asked_last: list[Any] = []
        self._sources = Sources()

    # What the patches tell.

    def loader_starts(self) -> Cut:
        """An epoch begins; before the first backward pass so does the first step."""
        if self.timeline.cut is None or not self._beacon.seen["backwards"]:
            return self.timeline.begin()
        return self.timeline.cut

    def loaded(self, rows: int, elements: int, iterator: Any, batch: int) -> None:
        """A loader has given a batch: of so many rows at first sight, and of the size that it is set to."""
        self._beacon.seen["batches_loaded"] += 1
        if not self._beacon.seen["steps"]:
            self._beacon.write_now_and_then()
        if self.timeline.cut is not None:
            self.timeline.cut.loaded_rows.append(rows)
            self.timeline.cut.loads.append((self._sources.number(iterator, batch), batch or rows))
            self.timeline.cut.loaded_elements += elements

    def asked_for_gradients(self, of: list[Any]) -> None:
        """torch.autograd.grad is asked for gradients; a program without optimizers trains these."""
        if not self._optimizers.current and self._look_count < MOST_LOOKS:
            leaves = [one for one in of if one.requires_grad and one.is_leaf]
            self._asked_last = [weakref.ref(one) for one in leaves]
            for one in leaves:
                known = self._asked.get(id(one))
                self._asked_again += [self._asked[id(one)]] if known and known() is one else []
                self._asked[id(one)] = weakref.ref(one)

    def backward_ended(self, begin: Any, is_backward: bool) -> None:
        """An outermost backward pass (or torch.autograd.grad) has ended."""
        seen, cut = self._beacon.seen, self.timeline.cut
        seen["backwards"] += 1
        if not seen["steps"]:
            self._beacon.write_now_and_then()
        if cut is not None and is_backward and begin is not None:
            cut.backwards.append((begin, cut.marks[-1][1]))
            cut.closure_backwards += bool(self.timeline.depth[OPTIMIZER])
        if self._is_pending and not self.timeline.depth[OPTIMIZER]:
            self._close_cut()
        elif not self._optimizers.current:
            self._backwards_alone += 1
            if self._backwards_alone >= BACKWARDS_WITHOUT_OPTIMIZER:
                if not self._is_without_optimizer:
                    self._is_without_optimizer = True
                    self.timeline.cuts = []
                self._close_cut()

    def step_begins(self) -> None:
        """An optimizer's step begins, perhaps inside another's."""
        self.timeline.claim()
        self._step_depth += 1
        self.timeline.enter(OPTIMIZER)

    def step_ended(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self._step_depth = max(0, self._step_depth - 1)
        self.timeline.leave(OPTIMIZER)
        if self._step_depth == 0:
            self._beacon.seen["optimizer_steps"] += 1
            self._note_optimizer(optimizer)
            self._is_pending = True
            self._recorder.steps_in_backward += bool(self.timeline.depth[BACKWARD])
            if not self.timeline.depth[BACKWARD] and not self._scaler_depth:
                self._close_cut()

    def scaler_begins(self) -> None:
        """A gradient scaler is asked to let an optimizer step."""
        self._scaler_depth += 1

    def scaler_ended(self, optimizer: Any) -> None:
        """It has done so, or has left the step out."""
        self._scaler_depth -= 1
        if self._scaler_depth or self.timeline.depth[BACKWARD] or self.timeline.cut is None:
            return
        if not self._is_pending:
            self.timeline.cut.is_skipped = True
            self._note_optimizer(optimizer)
        self._close_cut()

    def at_exit(self) -> None:
        """The program ends by itself; what was seen is kept."""
        if not self.timeline.is_over:
            self.timeline.is_over = True
            self._beacon.write()
            if self._pace.step_s and self._is_first_rank():
                self._write("failed" if hasattr(sys, "last_value") else "ended")
                self._complete()

    # Between two cuts.

    def _note_optimizer(self, optimizer: Any) -> None:
        number = self._optimizers.stepped(optimizer, self._cut_count)
        if self._is_without_optimizer:  # there is one after all
            self._is_without_optimizer = False
            self.timeline.cuts = []
        if self.timeline.cut is not None:
            self.timeline.cut.optimizers.append(number)

    def _close_cut(self) -> None:
        timeline, cut = self.timeline, self.timeline.cut
        self._is_pending = False
        if cut is None:
            return
        cut.end = timeline.mark()
        now = time.perf_counter()
        cut.host_s = now - self._cut_at
        timeline.cuts.append(cut)
        self._cut_count += 1
        try:
            self._between(cut)
        except Exception:
            timeline.is_over = True
            self._gradients.unhook()
            self._beacon.fault()
        timeline.begin()
        self._cut_at = time.perf_counter()

    def _between(self, cut: Cut) -> None:
        if not _is_alive(self._settings["parent"]):
            os._exit(1)  # nobody waits for this measurement any more
        if not self._is_first_rank():
            self.timeline.cuts = []
            return
        cut.is_hooked = self._gradients.is_hooked
        cut.is_looked_at, self._was_at_work = self._was_at_work, False
        cut.fired = self._gradients.take_fired()
        if cut.is_hooked:
            self._gradients.look()
        self._find_models()
        if not (self._is_without_optimizer or self._optimizers.has_advanced(self._cut_count)):
            return
        self._pace.step(cut.host_s)
        self._beacon.seen["steps"] = len(self._pace.step_s)
        verdict = self._pace.verdict()
        if verdict is not None:
            self._conclude(verdict)
            return
        self._keep()
        self._look_for_the_batch(cut)
        if self._pace.wants_hooks != self._gradients.is_hooked:
            self._gradients.unhook()
            if self._pace.wants_hooks:
                self._gradients.add(self._models.parameters())
                self._gradients.hook()

    def _find_models(self) -> None:
        """Look for the models when an optimizer is new, or a program without one has shown its gradients."""
        optimizers = self._optimizers
        if optimizers.current:
            if not optimizers.has_changed:
                return
            optimizers.has_changed = False
            trained = optimizers.parameters()
            if optimizers.has_begun_anew:
                optimizers.has_begun_anew = False
                self._begin_anew()
            if optimizers.has_replaced:
                optimizers.has_replaced = False
                self._models.forget_roots()
                self._gradients.forget_parameters()
        else:
            if self._look_count >= MOST_LOOKS:
                return
            self._gradients.forget_parameters()
            # A functional program makes its tensors anew each step: the last ones stand for all.
            asked = [one() for one in self._asked_again or self._asked_last]
            trained = self._models.leaves_with_gradient() + [one for one in asked if one is not None]
            trained = trained or self._models.free_parameters()
        self._look_count += 1
        self._models.find(trained)
        self._gradients.add(self._models.parameters())
        self._gradients.add([parameter for parameter in trained if parameter.requires_grad])
        self._use_the_device()

    def _begin_anew(self) -> None:
        """Another model is trained from now on: what was seen of the one before does not count."""
        self.timeline.cuts = []
        self._gradients.clear()
        self._pace = self._new_pace()
        self._keep_from = FIRST_KEPT

    def _new_pace(self) -> Pace:
        return Pace(self._settings)

    def _keep(self) -> None:
        """Write down what was seen so far from time to time: a program may end without telling us."""
        count = len(self._pace.step_s)
        if count <= FEWEST_TO_TELL:
            self._beacon.write()
        self._beacon.write_now_and_then()
        is_due = count >= FIRST_KEPT and time.monotonic() - self._kept_at > KEPT_EVERY_S
        if count >= self._keep_from or is_due:
            self._keep_from *= 4 if count >= self._keep_from else 1
            self._write("running")
            self._kept_at = time.monotonic()
            self._was_at_work = True  # while we were, the program's loaders were too

    def _conclude(self, verdict: str) -> None:
        """Enough was seen, or time is up: write it down, try DDP if that may be, and end the program."""
        self.timeline.is_over = True
        self._gradients.unhook()
        self._write(verdict)
        root = self._root_for_ddp() if verdict == "enough" else None
        if root is not None:
            has_unused = self._gradients.is_any_silent()
            trial = DdpTrial(self._torch, root, self.timeline.mark, has_unused, self._end_trial)
            try:
                trial.begin(LONGEST_S)
                return
            except Exception:
                self._recorder.more["ddp_trial_fault"] = traceback.format_exc()
        self._complete()
        os._exit(0)

    def _end_trial(self, passes: list[dict[str, Any]]) -> None:
        with contextlib.suppress(Exception):
            self._recorder.more["ddp_trial"] = passes
            self._recorder.write_again()
        self._complete()
        os._exit(0)

    def _root_for_ddp(self) -> Any:
        """The model that DDP can be tried on: one that alone holds all that is trained, called once a backward pass.

        None: there is none, it is in DDP already, it is compiled (DDP would have it compiled anew), or its steps
        take too long.
        """
        torch, roots = self._torch, self._models.roots
        distributed = getattr(torch, "distributed", None)
        if len(roots) != 1 or self._models.ddps or _has_compiled() or self._settings.get("steps"):
            return None
        if self._recorder.steps_in_backward:
            return None
        if distributed is None or not distributed.is_available() or distributed.is_initialized():
            return None
        longest_s = min(LONGEST_S, float(self._settings["until"]) - time.monotonic())
        if (PASSES_BEFORE + FEWEST_PASSES) * max(self._pace.step_s[-3:]) > longest_s:
            return None
        if any(cut.forwards != len(cut.backwards) for cut in self.timeline.cuts[-FEWEST_TO_TELL:]):
            return None
        held = {id(parameter) for parameter in roots[0].parameters()}
        trained = [one for one in self._gradients.parameters if one.requires_grad]
        return roots[0] if trained and all(id(one) in held for one in trained) else None

    def _look_for_the_batch(self, cut: Cut) -> None:
        """Look at the inputs of every module for one step, where nothing else has told of the batch."""
        if self._input_look is not None:
            self._input_look.remove()
            cut.is_looked_at, self._input_look = True, None
        elif (
            len(self._pace.step_s) == STEPS_BEFORE_LOOK
            and not (cut.rows or cut.loaded_rows)
            and not _has_compiled()  # a compiled module would be compiled anew
        ):
            self._input_look = self._models.look_at_inputs(self._recorder.looked_rows.append)

    def _use_the_device(self) -> None:
        kinds = {parameter.device.type for parameter in self._gradients.parameters} - {"cpu", "meta"}
        if len(kinds) != 1 or self._recorder.device != "cpu":
            return
        (kind,) = kinds
        if hasattr(self._torch, "Event"):
            new_event = lambda: self._torch.Event(kind, enable_timing=True)  # noqa: E731
        else:
            new_event = lambda: getattr(self._torch, kind).Event(enable_timing=True)  # noqa: E731
        self._recorder.device = kind
        self.timeline.use_events(new_event)

    def _is_first_rank(self) -> bool:
        """Only one of several ranks measures and ends itself; the others end with it."""
        distributed = getattr(self._torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return bool(distributed.get_rank() == 0)
        return os.environ.get("RANK", "0") in ("", "0")

    def _write(self, reason: str) -> None:
        """Write the record; a fault of ours in that is noted."""
        try:
            self._recorder.write(reason, self.autocast, self._is_without_optimizer, self._optimizers)
        except Exception:
            self._beacon.fault()

    def _complete(self) -> None:
        """Say that nothing will be added to the record."""
        self._gradients.unhook()
        self._recorder.complete()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed, replaced, broken: not ours
                stream.flush()


def _has_compiled() -> bool:
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("stats"))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
