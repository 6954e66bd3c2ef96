"""Predicted against measured step time on the multi-GPU rows, by machine and model.

Each prediction sees the job's single-GPU curve on that machine, its gradient bytes and what a catalogue says of
the machine; no multi-GPU row. Phases, spread and ready times, which the rows lack, are assumed as in the sample
profiles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.accuracy.machines import MACHINES
from benchmarks.accuracy.measured import WILD, Measured, step_timings
from srifty.predicting.predictor import Predictor
from srifty.records import BatchTiming, Cluster, GradientBucket, Job, JobProfile, NodeGroup, Spread
from srifty.records.cluster_table import ClusterTable, EstimateTable

OPTIMIZER_SHARE = 0.07
STEP_LOG_SD = 0.014
BUCKET_BYTES = 25 * 2**20
UNKNOWN_BYTES = ("deepspeech2", "ncf")


@dataclass(frozen=True)
class Errors:
    """Relative errors of one job on one machine kind, beside those of a baseline that knows only compute."""

    session: str
    job: str
    predicted: np.ndarray
    p10: np.ndarray
    p90: np.ndarray
    compute_only: np.ndarray
    measured: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """|predicted / measured - 1|."""
        return np.asarray(np.abs(self.predicted / self.measured - 1))

    @property
    def covered(self) -> float:
        """Share of rows inside the 80 % band."""
        return float(np.mean((self.p10 <= self.measured) & (self.measured <= self.p90)))


def errors(folder: Path) -> list[Errors]:
    """Errors of every (session, job) that has rows of one GPU and of several."""
    rows: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for row in step_timings(folder):
        rows[row.session, row.step.job].append(row)
    return [found for key in sorted(rows) if (found := _errors(*key, rows[key])) is not None]


def profile_of(session: str, job: str, single_gpu_rows: Iterable[Measured]) -> JobProfile | None:
    """A profile from a curve of one GPU alone; None where there is no curve."""
    step_s: dict[int, list[float]] = defaultdict(list)
    gradient_bytes = None
    for row in single_gpu_rows:
        step_s[row.step.batch_per_gpu].append(row.step.step_s)
        gradient_bytes = row.step.gradient_bytes
    if not step_s:
        return None
    buckets = _even_buckets(gradient_bytes) if gradient_bytes else ()
    return JobProfile(
        job=Job(name=job, step_count=1),
        gpu=MACHINES[session].gpu,
        max_batch=max(step_s),
        timings=tuple(_timing(batch, float(np.mean(step_s[batch]))) for batch in sorted(step_s)),
        buckets=buckets,
        trainable_bytes=gradient_bytes or 0,
        taken_at=datetime(2021, 1, 1, tzinfo=UTC),
    )


def _errors(session: str, job: str, rows: Sequence[Measured]) -> Errors | None:
    profile = profile_of(session, job, (row for row in rows if row.step.gpu_count == 1))
    if profile is None:
        return None
    asked = [
        row
        for row in rows
        if row.step.gpu_count > 1 and profile.timings[0].batch <= row.step.batch_per_gpu <= profile.max_batch
    ]
    if not asked:
        return None
    clusters = [_cluster(row) for row in asked]
    table = Predictor((profile,)).estimate(ClusterTable.of(clusters), profile.job)
    return Errors(
        session=session,
        job=job,
        predicted=table.step_s.p50,
        p10=table.step_s.p10,
        p90=table.step_s.p90,
        compute_only=_compute_only(table),
        measured=np.array([row.step.step_s for row in asked]),
    )


def _compute_only(table: EstimateTable) -> np.ndarray:
    return table.compute_s.p50


def _cluster(row: Measured) -> Cluster:
    machine = MACHINES[row.session]
    counts = sorted(set(row.step.layout), reverse=True)
    return Cluster(
        groups=tuple(
            NodeGroup(
                offer=machine.offer(count),
                node_count=row.step.layout.count(count),
                batch_per_gpu=row.step.batch_per_gpu,
            )
            for count in counts
        )
    )


def _timing(batch: int, step_s: float) -> BatchTiming:
    optimizer_s = OPTIMIZER_SHARE * step_s
    forward_s = (step_s - optimizer_s) / 3

    def spread(seconds: float) -> Spread:
        wide = 1.2816 * STEP_LOG_SD
        return Spread(
            p10=seconds * (1 - wide), p50=seconds, p90=seconds * (1 + wide), mean=seconds, sample_count=1
        )

    return BatchTiming(
        batch=batch,
        forward_s=spread(forward_s),
        backward_s=spread(2 * forward_s),
        optimizer_s=spread(optimizer_s),
    )


def _even_buckets(gradient_bytes: int) -> tuple[GradientBucket, ...]:
    """Buckets of 25 MiB, ready at even steps: nothing is known of the layers."""
    count = -(-gradient_bytes // BUCKET_BYTES)
    sizes = [BUCKET_BYTES] * (count - 1) + [gradient_bytes - BUCKET_BYTES * (count - 1)]
    return tuple(
        GradientBucket(gradient_bytes=size, ready_at=(i + 1) / count) for i, size in enumerate(sizes)
    )


def report(folder: Path) -> str:
    """The table, as Markdown."""
    lines = [
        "| machine | job | rows | mean | median | p90 | worst | bias | in 80 % band | compute only, mean |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    found = errors(folder)
    for each in found:
        wild = " (wild)" if (each.session, each.job) in WILD else ""
        unknown = " (bytes unknown)" if each.job in UNKNOWN_BYTES else ""
        lines.append(_line(each.session, f"{each.job}{wild}{unknown}", [each]))
    known = [each for each in found if each.job not in UNKNOWN_BYTES]
    tame = [each for each in known if (each.session, each.job) not in WILD]
    lines.append(_line("all", "all jobs", found))
    lines.append(_line("all", "jobs of known bytes", known))
    lines.append(_line("all", "jobs of known bytes but the wild ones", tame))
    return "\n".join(lines)


def _line(session: str, job: str, found: Sequence[Errors]) -> str:
    relative = np.concatenate([each.relative for each in found])
    bias = np.concatenate([each.predicted / each.measured - 1 for each in found])
    baseline = np.concatenate([np.abs(each.compute_only / each.measured - 1) for each in found])
    covered = np.average([each.covered for each in found], weights=[len(each.measured) for each in found])
    shares = [
        relative.mean(),
        np.median(relative),
        np.quantile(relative, 0.9),
        relative.max(),
        np.median(bias),
    ]
    figures = " | ".join(f"{100 * share:.1f} %" for share in shares)
    last = f"{100 * covered:.0f} % | {100 * baseline.mean():.1f} %"
    return f"| {session} | {job} | {len(relative)} | {figures} | {last} |"
