"""Steps of an unchanged script: cuts of its timeline put together, cold and odd ones left out, phases told.

Pure functions of an Observation's cuts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median

from srifty.profiling.attached_phases import phase_times
from srifty.profiling.observation import Cut, Observation
from srifty.records import Spread

FEWEST_STEPS = 3
_WINDOW = 5
_STEADY_WITHIN = 0.05
_SLOW = 1.5
_MOSTLY = 0.5
_ONE_MORE = 2


@dataclass(frozen=True)
class Step:
    """One step of the optimizer: one cut, or several where several optimizers take turns."""

    cuts: tuple[Cut, ...]
    phase_s: dict[str, float] = field(compare=False)
    """Time by phase [s]; they add up to the whole."""

    @property
    def step_s(self) -> float:
        """The whole step [s]."""
        return sum(cut.length_s for cut in self.cuts)

    @property
    def is_hooked(self) -> bool:
        """Whether hooks were on the parameters throughout."""
        return all(cut.is_hooked for cut in self.cuts)

    @property
    def is_plain(self) -> bool:
        """Whether no hook was on a parameter."""
        return not any(cut.is_hooked for cut in self.cuts)

    @property
    def backward_count(self) -> int:
        """Outermost backward passes."""
        return sum(len(cut.backwards) for cut in self.cuts)

    @property
    def is_of_one_piece(self) -> bool:
        """Whether all its optimizers step together, after its last backward pass."""
        return not any(cut.backwards or cut.loads for cut in self.cuts[1:])

    @property
    def forward_count(self) -> int:
        """Outermost calls of a model, with gradients."""
        return sum(cut.forwards for cut in self.cuts)

    @property
    def rows(self) -> tuple[int, ...]:
        """First dimensions of what entered the model."""
        return tuple(chain.from_iterable(cut.rows for cut in self.cuts))

    @property
    def loads(self) -> tuple[tuple[int, int], ...]:
        """Number of the data set, and batch, of each batch that a loader gave."""
        return tuple(chain.from_iterable(cut.loads for cut in self.cuts))

    @property
    def elements(self) -> int:
        """Elements of the largest tensor that entered the model, over all micro-steps."""
        return sum(cut.elements for cut in self.cuts)


@dataclass(frozen=True)
class SeenSteps:
    """What is left of an observation to be evaluated.

    Attributes:
        all: every whole step, in order
        steady: those from the steady state on that are like most
        cold_count: how many came before the steady state
        accumulation_count: micro-steps to one step
        loaded_batch: what one loader gave for each micro-step [samples]; None: no loader, or several
        closure_count: backward passes inside one step of the optimizer; 0 where it does not drive the model
    """

    all: tuple[Step, ...]
    steady: tuple[Step, ...]
    cold_count: int
    accumulation_count: int
    closure_count: int
    loaded_batch: int | None = None

    @property
    def timed(self) -> tuple[Step, ...]:
        """Steps whose time counts: without hooks on the parameters, unless there are too few."""
        plain = tuple(step for step in self.steady if step.is_plain)
        return plain if len(plain) >= FEWEST_STEPS else self.steady

    @property
    def hooked(self) -> tuple[Step, ...]:
        """Steps that tell when gradients were there."""
        return tuple(step for step in self.steady if step.is_hooked)

    @property
    def compile_s(self) -> float:
        """What the steps before the steady state took beyond as many steady ones, but for data [s]."""
        usual = median([step.step_s for step in self.timed])
        wait = median([step.phase_s["data"] for step in self.timed])
        cold = self.all[: self.cold_count]
        # Waiting for the loader's workers to start is no compilation.
        return max(0.0, sum(step.step_s - step.phase_s["data"] - (usual - wait) for step in cold))


def see_steps(observed: Observation) -> SeenSteps:
    """Put cuts together to steps, and choose those that are evaluated."""
    steps = [
        Step(cuts, phase_times(cuts, is_without_optimizer=observed.is_without_optimizer))
        for cuts in whole_steps(observed.cuts)
    ]
    cold_count = max(1, first_steady([step.step_s for step in steps])) if len(steps) > FEWEST_STEPS else 0
    warm = steps[cold_count:]
    like_most = _like_most(warm)
    in_closure = max((cut.closure_backwards for step in like_most for cut in step.cuts), default=0)
    loaded = _loaded(like_most)
    if loaded is not None and in_closure <= 1:
        accumulation_count, loaded_batch = loaded
    else:
        accumulation_count, loaded_batch = 1, None
        if all(step.is_of_one_piece for step in like_most) and in_closure <= 1:
            count, usual = _by_backward_passes(like_most)
            if observed.optimizer_count == 1 or _fires_each_time(steps, count):
                accumulation_count, like_most = count, usual
    return SeenSteps(
        all=tuple(steps),
        steady=tuple(like_most),
        cold_count=cold_count,
        accumulation_count=accumulation_count,
        closure_count=in_closure if in_closure > 1 else 0,
        loaded_batch=loaded_batch,
    )


def _loaded(steps: Sequence[Step]) -> tuple[int, int] | None:
    """Micro-steps to a step and the batch of each, from what one loader gives; None where that does not tell.

    What a loader hands out is what is trained on, however often a batch goes through a model (adversarial training,
    two heads) and whatever dimension comes first there. Where the program cuts a loaded batch into parts and trains
    on each, those are the micro-steps. Where optimizers take turns within a step, batches belong to some of them.
    """
    if not steps or not all(step.is_of_one_piece for step in steps):
        return None
    if len({source for step in steps for source, _ in step.loads}) != 1:
        return None
    counts = Counter(len(step.loads) for step in steps)
    most, count = counts.most_common(1)[0]
    batches = Counter(batch for step in steps for _, batch in step.loads)
    batch = batches.most_common(1)[0][0]
    if most == 0 or count < _MOSTLY * len(steps) or batch == 0 or batches[batch] < _MOSTLY * batches.total():
        return None
    parts = Counter(step.backward_count for step in steps if sum(step.rows) == most * batch)
    if parts and parts.most_common(1)[0][1] >= _MOSTLY * len(steps):
        cut_into = parts.most_common(1)[0][0]
        if cut_into > most and most * batch % cut_into == 0:
            return cut_into, most * batch // cut_into
    return most, batch


def _by_backward_passes(steps: list[Step]) -> tuple[int, list[Step]]:
    """Micro-steps to a step where optimizers step after several backward passes, and the steps that have them."""
    counts = Counter(step.backward_count for step in steps)
    if not counts:
        return 1, steps
    most, count = counts.most_common(1)[0]
    usual = [step for step in steps if step.backward_count == most]
    if count < _MOSTLY * len(steps):  # it varies: none is usual
        most, usual = max(1, round(sum(counts.elements()) / len(steps))), steps
    forward_counts = [step.forward_count for step in usual]
    if most > 1 and (max(forward_counts) == 0 or min(forward_counts) >= min(most, min(counts))):
        return most, usual
    return 1, steps


def _fires_each_time(steps: Sequence[Step], count: int) -> bool:
    """Whether most gradients come in each of so many backward passes, and not some in one and some in another."""
    per_step = [
        median(Counter(index for cut in step.cuts for index, _ in cut.fired).values())
        for step in steps
        if step.is_hooked and any(cut.fired for cut in step.cuts)
    ]
    return bool(per_step) and median(per_step) >= count


def whole_steps(cuts: Sequence[Cut]) -> list[tuple[Cut, ...]]:
    """Groups of cuts, each ended by the optimizer that, of those in use at the end, steps least often."""
    later = cuts[len(cuts) // 2 :]
    counts = Counter(number for cut in later for number in set(cut.optimizers))
    if not counts:
        return [(cut,) for cut in cuts]
    fewest = min(counts.values())
    # Half of the cuts may hold one more step of one than of another that steps as often.
    anchor = max(number for number, count in counts.items() if count <= fewest + (fewest > _ONE_MORE))
    groups: list[tuple[Cut, ...]] = []
    open_cuts: list[Cut] = []
    for cut in cuts:
        open_cuts.append(cut)
        if anchor in cut.optimizers:
            groups.append(tuple(open_cuts))
            open_cuts = []
    return groups


def first_steady(step_s: Sequence[float]) -> int:
    """The first step from which the median of five is within 5 % of the median of all that follow.

    A single slow step would hide in a median of five: it must not be the first of them. Where steps never
    settle, it is the middle.
    """
    for start in range(len(step_s) - _WINDOW):
        usual = median(step_s[start:])
        is_level = abs(median(step_s[start : start + _WINDOW]) - usual) <= _STEADY_WITHIN * usual
        if is_level and step_s[start] <= _SLOW * usual:
            return start
    return len(step_s) // 2


def spread_of(values: Sequence[float], steps: Sequence[Step]) -> Spread:
    """Spread of a phase over steps, whose p50 is the mean over the middle half of the steps.

    Medians of phases do not add up to the median of their sum where steps vary (7.2 of 11.2 ms were seen);
    means over the same steps do. p50 stays between p10 and p90.
    """
    told = Spread.of(values)
    order = sorted(range(len(steps)), key=lambda index: steps[index].step_s)
    quarter = len(order) // 4
    middle = order[quarter : len(order) - quarter]
    centre = sum(values[index] for index in middle) / len(middle)
    return told.model_copy(update={"p50": min(max(centre, told.p10), told.p90)})


def _like_most(steps: Sequence[Step]) -> list[Step]:
    """Steps in which nothing happens besides (evaluation, saving, a new epoch, a short batch) but what mostly does."""

    def besides(step: Step) -> tuple[object, ...]:
        return (
            any(cut.is_skipped for cut in step.cuts),
            any(cut.is_looked_at for cut in step.cuts),
            sum(cut.no_grad_forwards for cut in step.cuts),
            sum(len(cut.untrained_calls) for cut in step.cuts),
            sum(cut.loader_starts for cut in step.cuts),
            sum(cut.saves for cut in step.cuts),
        )

    counts = Counter(besides(step) for step in steps)
    if not counts:
        return []
    most, count = counts.most_common(1)[0]
    if count >= _MOSTLY * len(steps):
        alike = [step for step in steps if besides(step) == most]
    else:  # what happens besides differs from step to step, so none is odd
        alike = [step for step in steps if not any(cut.is_skipped or cut.is_looked_at for cut in step.cuts)]
    ((rows, count),) = Counter(step.rows for step in alike).most_common(1) or [((), 0)]
    # Where most batches have one size, another is the rest at the end of an epoch; else sizes just vary.
    return [step for step in alike if step.rows == rows] if count >= _MOSTLY * len(alike) else alike


def usual_rows(steps: Sequence[Step]) -> tuple[int | None, bool]:
    """First dimension that most calls had, and whether it varies; None: no tensor was seen."""
    counts: Counter[int] = Counter(chain.from_iterable(step.rows for step in steps))
    counts.pop(0, None)
    if not counts:
        return None, False
    most, count = counts.most_common(1)[0]
    if count >= _MOSTLY * counts.total():
        return most, False
    return max(1, round(sum(rows * times for rows, times in counts.items()) / counts.total())), True
