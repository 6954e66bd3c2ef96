"""A profile for people: what was measured on this machine, and what was not."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srifty.records.job_profile import JobProfile
from srifty.reporting.words import band, duration, figures, gib


def profile_table(profile: JobProfile) -> RenderableType:
    """Times by batch, the gradient buckets, and the assumptions."""
    where = f"{profile.gpu} ({profile.hardware})" if profile.hardware else profile.gpu
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("batch", "forward", "backward", "optimizer", "forward band", "backward band", "samples/s"):
        table.add_column(name, justify="right")
    for timing in profile.timings:
        step_s = timing.forward_s.p50 + timing.backward_s.p50 + timing.optimizer_s.p50
        table.add_row(
            str(timing.batch),
            duration(timing.forward_s.p50),
            duration(timing.backward_s.p50),
            duration(timing.optimizer_s.p50),
            band(timing.forward_s),
            band(timing.backward_s),
            figures(timing.batch / step_s),
        )
    ready = ", ".join(f"{gib(bucket.gradient_bytes)} at {bucket.ready_at:.0%}" for bucket in profile.buckets)
    said = [
        f"gradients: {gib(profile.trainable_bytes)} in {len(profile.buckets)} buckets, ready in the backward pass: "
        f"{ready or 'none'}",
        f"largest batch measured to fit: {profile.max_batch} samples",
        *(f"- {assumption}" for assumption in profile.assumptions),
    ]
    return Group(Text(f"{profile.job.name} on {where}", style="bold"), table, Text("\n".join(said)))
