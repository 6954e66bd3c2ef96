"""Parts of the measured steps that are held out, and how far predictions of them from the rest are off.

Every part is told by one setting for all jobs and machines, from the known part alone. Layouts are told apart as
multisets (`2+1` and `1+2` are one), so that no other order of a held-out layout is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.accuracy.measured import WILD, step_timings
from benchmarks.accuracy.step_baselines import BASELINES
from srifty.errors import InvalidInput
from srifty.predicting.step_fit import fit_steps
from srifty.predicting.step_model import predict_steps
from srifty.records.step_table import StepGrid, StepTable
from srifty.records.step_timing import StepTiming

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Bands = tuple[Floats, Floats, Floats]
    """p50, p10 and p90 [s] of each row"""

Predict = Callable[[StepTable, StepGrid], "Bands"]
"""Learn from the known rows, tell the asked."""
Layout = tuple[int, ...]

FOLD_SEED = 0
FOLD_COUNT = 3
ASIDE = {("dgx", "yolov3"), ("dgx-ext", "yolov3"), *WILD}
"""Reported, not counted in the means: readings that the data's notes call wrong."""


@dataclass(frozen=True)
class Part:
    """Rows of one job on one machine that are asked for, and the rows that are known."""

    split: str
    session: str
    job: str
    known: StepTable
    asked: StepTable


@dataclass(frozen=True)
class Session:
    """All rows of one measuring session."""

    name: str
    table: StepTable
    layout: tuple[Layout, ...]
    """Of each row as a multiset: largest first."""

    def of_job(self, job: str) -> Bools:
        """Rows of a job."""
        return np.array([each == job for each in self.table.grid.job])

    def where(self, test: Callable[[Layout], bool]) -> Bools:
        """Rows whose layout passes a test."""
        return np.array([test(layout) for layout in self.layout])

    @property
    def jobs(self) -> list[str]:
        """Jobs measured on one GPU and on several."""
        several = self.where(lambda layout: sum(layout) > 1)
        return [j for j in sorted(set(self.table.grid.job)) if (self.of_job(j) & several).any()]

    @property
    def full(self) -> int:
        """Most GPUs used on a node."""
        return max(max(layout) for layout in self.layout)


def sessions(folder: Path) -> dict[str, Session]:
    """The measuring sessions; each counts as a kind of machine of its own."""
    of: dict[str, list[StepTiming]] = {}
    for row in step_timings(folder):
        own = row.step.model_copy(update={"instance_type": f"{row.step.instance_type}/{row.session}"})
        of.setdefault(row.session, []).append(own)
    return {
        name: Session(name, StepTable.of(rows), tuple(tuple(sorted(r.layout, reverse=True)) for r in rows))
        for name, rows in of.items()
    }


def placements(session: Session) -> Iterator[Part]:
    """A third of a job's layouts held out at a time; one GPU is always known."""
    for job in session.jobs:
        own = session.of_job(job)
        layouts = sorted({session.layout[i] for i in np.flatnonzero(own)} - {(1,)})
        order = np.random.default_rng(FOLD_SEED).permutation(len(layouts))
        for fold in range(FOLD_COUNT):
            out = {layouts[i] for i in order[fold::FOLD_COUNT]}
            asked = own & session.where(out.__contains__)
            yield _part("placements", session, job, own & ~asked, asked)


def few_probes(session: Session) -> Iterator[Part]:
    """One GPU, one full machine, 1+1 and two full machines are known; of this job alone."""
    full = session.full
    yield from _probes("few probes", session, {(1,), (full,), (1, 1), (full, full)})


def probes_of_three(session: Session) -> Iterator[Part]:
    """1, 4, 1+1, 4+4, 4+4+4 are known; of this job alone."""
    full = session.full
    known = {(1,), (full,), (1, 1), (full,) * 2, (full,) * 3}
    yield from _probes("probes of three", session, known)


def larger(session: Session) -> Iterator[Part]:
    """Clusters of one machine more than are known; of this job alone."""
    most = max(len(layout) for layout in session.layout)
    for job in session.jobs:
        own = session.of_job(job)
        asked = own & session.where(lambda layout: len(layout) == most)
        if asked.any() and most > 2:
            yield _part("larger clusters", session, job, own & ~asked, asked)


def two_probes(session: Session) -> Iterator[Part]:
    """Of the job one GPU, 1+1 and one full machine are known; of the other jobs all."""
    yield from _left_out("two probes", session, {(1,), (1, 1), (session.full,)}, session.jobs)


def no_probe(session: Session) -> Iterator[Part]:
    """Of the job one GPU and its gradient bytes are known; of the other jobs all."""
    known = [j for j in session.jobs if np.isfinite(session.table.grid.gradient_bytes[session.of_job(j)][0])]
    yield from _left_out("no probe", session, {(1,)}, known)


def bytes_elsewhere(of: dict[str, Session]) -> Iterator[Part]:
    """Jobs that state no gradient bytes, known on one GPU; with the other jobs there, and one other session."""
    for session in of.values():
        for job in session.jobs:
            own = session.of_job(job)
            if np.isfinite(session.table.grid.gradient_bytes[own][0]):
                continue
            asked = own & session.where(lambda layout: sum(layout) > 1)
            part = _part("", session, job, ~asked, asked)
            for lender in of.values():
                if (
                    lender is session
                    or job not in lender.jobs
                    or ASIDE & {(s.name, job) for s in (session, lender)}
                ):
                    continue
                joined = _joined(part.known, lender.table)
                yield replace(part, split=f"bytes from {lender.name}", known=joined)


def _joined(a: StepTable, b: StepTable) -> StepTable:
    grid = StepGrid(
        a.grid.job + b.grid.job,
        a.grid.machine + b.grid.machine,
        a.grid.layout + b.grid.layout,
        np.concatenate([a.grid.batch_per_gpu, b.grid.batch_per_gpu]),
        np.concatenate([a.grid.gradient_bytes, b.grid.gradient_bytes]),
    )
    return StepTable(
        grid,
        np.concatenate([a.step_s, b.step_s]),
        np.concatenate([a.exposed_allreduce_s, b.exposed_allreduce_s]),
    )


def _probes(split: str, session: Session, known: set[Layout]) -> Iterator[Part]:
    for job in session.jobs:
        own = session.of_job(job)
        asked = own & ~session.where(known.__contains__)
        yield _part(split, session, job, own & ~asked, asked)


def _left_out(split: str, session: Session, known: set[Layout], jobs: Sequence[str]) -> Iterator[Part]:
    for job in jobs:
        asked = session.of_job(job) & ~session.where(known.__contains__)
        yield _part(split, session, job, ~asked, asked)


def _part(split: str, session: Session, job: str, known: Bools, asked: Bools) -> Part:
    rows = session.table.rows
    return Part(split, session.name, job, rows(np.flatnonzero(known)), rows(np.flatnonzero(asked)))


SPLITS: tuple[tuple[Callable[[Session], Iterator[Part]], tuple[str, ...]], ...] = (
    (placements, ("aws", "rtx", "dgx", "dgx-ext", "azure")),
    (few_probes, ("rtx", "dgx", "dgx-ext")),
    (probes_of_three, ("aws",)),
    (larger, ("aws", "rtx")),
    (two_probes, ("aws", "rtx", "dgx", "dgx-ext")),
    (no_probe, ("aws", "rtx")),
)
"""What is held out, and in which sessions."""


def parts(of: dict[str, Session]) -> Iterator[Part]:
    """All parts of all splits."""
    for split, names in SPLITS:
        for name in names:
            yield from split(of[name])


@dataclass(frozen=True)
class Score:
    """Relative errors of one job in one split."""

    split: str
    session: str
    job: str
    error: Floats
    """|predicted / measured - 1|"""
    inside: Floats
    """1 where the measured lies in the 80 % band"""
    width: Floats
    """(p90 - p10) / p50"""

    @property
    def counted(self) -> bool:
        """Whether it enters the mean over jobs."""
        return (self.session, self.job) not in ASIDE


def scores(all_parts: Sequence[Part], predict: Predict) -> list[Score]:
    """Errors of each (split, session, job), folds put together."""
    found: dict[tuple[str, str, str], list[tuple[Floats, Floats, Floats]]] = {}
    for part in all_parts:
        p50, p10, p90 = predict(part.known, part.asked.grid)
        step_s = part.asked.step_s
        inside = ((p10 <= step_s) & (step_s <= p90)).astype(float)
        found.setdefault((part.split, part.session, part.job), []).append(
            (np.abs(p50 / step_s - 1), inside, (p90 - p10) / p50)
        )
    return [Score(*key, *(np.concatenate(c) for c in zip(*of, strict=True))) for key, of in found.items()]


def step_model(known: StepTable, asked: StepGrid) -> Bands:
    """What `srifty fit` and `srifty predict --model` do."""
    found = predict_steps(fit_steps(known), asked)
    return found.p50_s, found.p10_s, found.p90_s


def without_band(baseline: Callable[[StepTable, StepGrid], Floats]) -> Predict:
    """A baseline, which has no band."""

    def predict(known: StepTable, asked: StepGrid) -> Bands:
        told = baseline(known, asked)
        return told, told, told

    return predict


def report(held_out: Sequence[Part], ours: Sequence[Score], of: dict[str, Session]) -> str:
    """Two tables, as Markdown: errors by split and machine, each job alike; and the noise of a reading.

    Args:
        held_out: what is asked
        ours: the errors of `step_model` there
        of: the sessions
    """
    others, left_out = {}, []
    for name, baseline in BASELINES.items():
        try:
            others[name] = scores(held_out, without_band(baseline))
        except InvalidInput as why:  # what it needs is not installed
            left_out += [f"Without {name}: {why}", ""]
    names = list(others)
    lines = [
        *left_out,
        f"| held out | machine | jobs | mean | median | p90 | worst | in 80 % band | its width | "
        f"{' | '.join(names)} |",
        f"| --- | --- | ---: | {' | '.join(['---:'] * (6 + len(names)))} |",
    ]
    for split, machine, chosen in _groups(ours):
        mine = [score for score in ours if chosen(score)]
        beside = [np.mean([s.error.mean() for s in found if chosen(s)]) for found in others.values()]
        lines.append(
            f"| {split} | {machine} | {len(mine)} | {_figures(mine)} | {' | '.join(_percent(x) for x in beside)} |"
        )
    return "\n".join([*lines, "", *_noise(of)])


def report_by_job(ours: Sequence[Score]) -> str:
    """The same errors job by job, as Markdown."""
    lines = [
        "| held out | machine | job | rows | mean | median | p90 | worst | in 80 % band | its width |",
        f"| --- | --- | --- | {' | '.join(['---:'] * 7)} |",
    ]
    for score in ours:
        aside = "" if score.counted else " (not counted)"
        lines.append(
            f"| {score.split} | {score.session} | {score.job}{aside} | {len(score.error)} | {_figures([score])} |"
        )
    return "\n".join(lines)


def _noise(of: dict[str, Session]) -> Iterator[str]:
    """What a perfect prediction would miss: |a / b - 1| / sqrt(2) of readings of one configuration, by job.

    Repeats, and other orders of the same layout (which may be more than noise).
    """
    yield "| noise of a reading | mean over jobs | by job | pairs |"
    yield "| --- | ---: | --- | ---: |"
    for name, session in of.items():
        by_job: dict[str, list[float]] = {}
        grid = session.table.grid
        first: dict[tuple[str, Layout, int], float] = {}
        for i, step_s in enumerate(session.table.step_s.tolist()):
            if sum(session.layout[i]) == 1:
                continue
            key = (grid.job[i], session.layout[i], int(grid.batch_per_gpu[i]))
            if key in first:
                by_job.setdefault(grid.job[i], []).append(abs(step_s / first[key] - 1) / 2**0.5)
            first.setdefault(key, step_s)
        counted = {job: pairs for job, pairs in sorted(by_job.items()) if (name, job) not in ASIDE}
        if counted:
            each = ", ".join(f"{job} {_percent(float(np.mean(pairs)))}" for job, pairs in counted.items())
            mean = _percent(float(np.mean([np.mean(pairs) for pairs in counted.values()])))
            yield f"| {name} | {mean} | {each} | {sum(map(len, counted.values()))} |"


def _groups(ours: Sequence[Score]) -> Iterator[tuple[str, str, Callable[[Score], bool]]]:
    """Split, machine, and which scores belong to it."""
    for split, session in dict.fromkeys((s.split, s.session) for s in ours if s.counted):

        def chosen(score: Score, split: str = split, session: str = session) -> bool:
            return score.counted and (score.split, score.session) == (split, session)

        yield split, session, chosen


def _figures(found: Sequence[Score]) -> str:
    """Mean, median, p90 and worst error, coverage and width of the band: each the mean over jobs, worst the worst."""
    summaries: tuple[Callable[[Score], float], ...] = (
        lambda s: float(s.error.mean()),
        lambda s: float(np.median(s.error)),
        lambda s: float(np.quantile(s.error, 0.9)),
    )
    means = [_percent(float(np.mean([summary(s) for s in found]))) for summary in summaries]
    worst = _percent(max(float(s.error.max()) for s in found))
    inside = f"{100 * np.mean([s.inside.mean() for s in found]):.0f} %"
    width = f"{100 * np.mean([s.width.mean() for s in found]):.0f} %"
    return " | ".join([*means, worst, inside, width])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
