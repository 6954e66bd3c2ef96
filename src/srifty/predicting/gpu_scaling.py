"""A rough profile for a GPU that was not measured, from one that was and what both vendors publish.

Good enough to see whether a kind of GPU is worth measuring; a plan that rests on one says so first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from srifty.errors import NotMeasured
from srifty.predicting.memory_model import largest_batch
from srifty.records.job_profile import BatchTiming, JobProfile
from srifty.records.offer import Offer
from srifty.records.spread import Spread


@dataclass(frozen=True)
class Peaks:
    """What a vendor publishes of one GPU: dense rates, without sparsity."""

    fp32_flop_per_s: float
    half_flop_per_s: float
    """fp16 or bf16, on tensor cores where there are any."""
    memory_bytes_per_s: float


_NOTABLE_WAIT = 0.05
"""Share of forward and backward above which a wait for data shows a loader that does not keep up."""


def _peaks(fp32_tflop: float, half_tflop: float, memory_gbyte: float) -> Peaks:
    return Peaks(fp32_tflop * 1e12, half_tflop * 1e12, memory_gbyte * 1e9)


PEAKS = {
    "A10": _peaks(31.2, 125, 600),
    "A100": _peaks(19.5, 312, 1555),
    "A10G": _peaks(31.2, 70, 600),
    "A6000": _peaks(38.7, 155, 768),
    "B200": _peaks(80, 2250, 8000),
    "GH200": _peaks(67, 990, 4000),
    "H100": _peaks(66.9, 989, 3350),
    "H100-NVL": _peaks(60, 835, 3900),
    "H200": _peaks(66.9, 989, 4800),
    "K80": _peaks(4.37, 4.37, 240),  # one of the board's two
    "L4": _peaks(30.3, 121, 300),
    "L40S": _peaks(91.6, 362, 864),
    "M60": _peaks(4.8, 4.8, 160),  # one of the board's two
    "MI300X": _peaks(163.4, 1307, 5300),
    "RTX6000": _peaks(16.3, 130, 672),
    "T4": _peaks(8.1, 65, 320),
    "T4g": _peaks(8.1, 65, 320),
    "V100": _peaks(15.7, 125, 900),
}
"""From the vendors' data sheets (NVIDIA, AMD), the variant that clouds rent as a rule."""

UNMEASURED_LOG_SD = 0.56
"""Doubt about an estimated profile's times. On 12 networks and 4 GPUs, pairs as in benchmarks/accuracy: 80 % of
the logarithms lie within 0.60; times 1.2, Student's factor for so few machines, over 1.28."""


def estimated_profile(profile: JobProfile, gpu: str, gpu_memory_bytes: int) -> JobProfile:
    """What the profile would be on another GPU, by the ratio of published peaks.

        forward, backward: time x peak FLOP/s measured / peak FLOP/s asked, fp32 or half as the job computes
        optimizer:         time x memory rate measured / memory rate asked

    Tried on published measurements, a share of the memory's rate in the first line made it no better. The
    doubt covers what peaks do not say: how well a generation's kernels use it, and what the host takes.

    Args:
        profile: measured
        gpu: the chip asked for
        gpu_memory_bytes: of one such GPU

    Raises:
        NotMeasured: no peaks are at hand for one of the two, or the profile is itself an estimate
    """
    if profile.estimated_from is not None:
        raise NotMeasured(f"the profile of {profile.gpu} is itself an estimate; start from a measured one")
    for name in (profile.gpu, gpu):
        if name not in PEAKS:
            raise NotMeasured(f"no published peaks of {name} are at hand; run 'srifty profile' on it")
    measured, asked = PEAKS[profile.gpu], PEAKS[gpu]
    is_half = profile.precision is not None and "float16" in profile.precision
    if is_half:
        compute = measured.half_flop_per_s / asked.half_flop_per_s
    else:
        compute = measured.fp32_flop_per_s / asked.fp32_flop_per_s
    memory = measured.memory_bytes_per_s / asked.memory_bytes_per_s
    largest = largest_batch(profile, gpu_memory_bytes)
    timings = [timing for timing in profile.timings if timing.batch <= largest]
    if not timings:
        raise NotMeasured(f"no measured batch fits into the memory of {gpu}")
    return profile.model_copy(
        update={
            "gpu": gpu,
            "gpu_memory_bytes": gpu_memory_bytes,
            "max_batch": largest,
            "timings": tuple(_scaled_timing(timing, compute, memory) for timing in timings),
            "estimated_from": profile.gpu,
            "estimate_log_sd": UNMEASURED_LOG_SD,
            "hardware": "",
            "assumptions": (
                f"all times on {gpu} are estimated from {profile.gpu} by published peaks, none was measured",
                *profile.assumptions,
            ),
        }
    )


def with_estimates(profiles: Sequence[JobProfile], offers: Iterable[Offer]) -> tuple[JobProfile, ...]:
    """The profiles, and an estimated one for each kind of GPU on offer that lacks one and whose peaks are known.

    Each is told from the measured GPU whose peak rate is nearest.
    """
    measured = [p for p in profiles if p.gpu in PEAKS and p.estimated_from is None]
    have = {profile.gpu.casefold() for profile in profiles}
    lacking = sorted(
        {(o.gpu, o.gpu_memory_bytes) for o in offers if o.gpu in PEAKS and o.gpu.casefold() not in have}
    )
    estimates = []
    for gpu, memory_bytes in lacking if measured else ():
        asked = PEAKS[gpu].fp32_flop_per_s
        nearest = min(measured, key=lambda p: abs(math.log(PEAKS[p.gpu].fp32_flop_per_s / asked)))
        with suppress(NotMeasured):  # no batch fits
            estimates.append(estimated_profile(nearest, gpu, memory_bytes))
    return (*profiles, *estimates)


def _scaled_timing(timing: BatchTiming, compute: float, memory: float) -> BatchTiming:
    """A loader that works ahead needs as long for a batch as it did: what a faster GPU gains is waited for.

    wait' = wait + max(0, compute - compute'),   where the wait is a notable share of the step
    """
    wait, computing_s = timing.data_wait_s, timing.forward_s.p50 + timing.backward_s.p50
    if wait is not None and wait.mean > _NOTABLE_WAIT * computing_s:
        wait = _moved(wait, max(0.0, (1 - compute) * computing_s))
    return timing.model_copy(
        update={
            "data_wait_s": wait,
            "forward_s": _scaled(timing.forward_s, compute),
            "backward_s": _scaled(timing.backward_s, compute),
            "optimizer_s": _scaled(timing.optimizer_s, memory),
        }
    )


def _moved(spread: Spread, by: float) -> Spread:
    return Spread(
        p10=spread.p10 + by,
        p50=spread.p50 + by,
        p90=spread.p90 + by,
        mean=spread.mean + by,
        sample_count=spread.sample_count,
    )


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(
        p10=spread.p10 * factor,
        p50=spread.p50 * factor,
        p90=spread.p90 * factor,
        mean=spread.mean * factor,
        sample_count=spread.sample_count,
    )
