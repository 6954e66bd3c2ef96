"""A profile for people: what was measured on this machine, and what was not."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srifty.records.job_profile import BatchTiming, JobProfile
from srifty.records.text import counted, duration_text, figures
from srifty.reporting.words import gib, time_and_band

WIDE = 76
"""Columns from which the bands are shown too."""


def profile_table(profile: JobProfile, *, width: int = 80) -> RenderableType:
    """Times by batch, the gradient buckets, and the assumptions.

    Args:
        profile: what was measured
        width: columns of the terminal; a narrow one is shown less
    """
    where = f"{profile.gpu} ({profile.hardware})" if profile.hardware else profile.gpu
    has_other = any(timing.data_wait_s or timing.other_s for timing in profile.timings)
    headings = ["batch", "forward", "backward", "optimizer"]
    headings += ["data\n(mean)", "other\n(mean)"] if has_other else []
    headings += ["p10-p90 of\nforward", "p10-p90 of\nbackward"] if width >= WIDE and not has_other else []
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in [*headings, "samples/s"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for timing in profile.timings:
        (forward, forward_band), (backward, backward_band) = map(
            time_and_band, (timing.forward_s, timing.backward_s)
        )
        cells = [str(timing.batch), forward, backward, duration_text(timing.optimizer_s.p50)]
        if has_other:
            cells += [
                duration_text(spread.mean) if spread else "?"
                for spread in (timing.data_wait_s, timing.other_s)
            ]
        elif width >= WIDE:
            cells += [forward_band, backward_band]
        table.add_row(*cells, figures(timing.batch / _step_s(timing)))
    ready = ", ".join(f"{gib(b.gradient_bytes)} at {100 * b.ready_at:.0f} %" for b in profile.buckets)
    said = [
        f"gradients: {gib(profile.trainable_bytes)} in {counted(len(profile.buckets), 'bucket')}, ready in the "
        f"backward pass: {ready or 'none'}",
        f"largest batch known to fit: {counted(profile.max_batch, 'sample')}",
        *(["?: not measured"] if has_other and any(t.data_wait_s is None for t in profile.timings) else []),
        *_what_else(profile),
        *(f"- {assumption}" for assumption in profile.assumptions),
    ]
    return Group(Text(f"{profile.job.name} on {where}", style="bold"), table, Text("\n".join(said)))


def _what_else(profile: JobProfile) -> list[str]:
    said = []
    if profile.accumulation_count > 1:
        when = "each of them" if profile.exchanges_every_micro_step else "the last"
        said.append(f"{profile.accumulation_count} micro-steps a step, gradients exchanged in {when}")
    if profile.precision:
        said.append(f"computed in {profile.precision}")
    if profile.compile_s:
        said.append(f"before the steady state: {duration_text(profile.compile_s)} (compilation, caches)")
    return said


def _step_s(timing: BatchTiming) -> float:
    """What a micro-step takes in the long run: of what comes in bursts, such as a wait, the mean counts."""
    steady = timing.forward_s.p50 + timing.backward_s.p50 + timing.optimizer_s.p50
    return steady + sum(spread.mean for spread in (timing.data_wait_s, timing.other_s) if spread is not None)
