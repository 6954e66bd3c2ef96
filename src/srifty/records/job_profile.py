"""BatchTiming, GradientBucket, JobProfile: a job measured on one kind of GPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import AwareDatetime, Field, model_validator

from srifty.records.job import Job
from srifty.records.record import Bytes, Count, Record
from srifty.records.spread import Spread

LONGEST_PHASE_S = 1e6
SHORTEST_STEP_S = 1e-9


class BatchTiming(Record):
    """Phases of one step on one GPU at one batch, without any exchange.

    The optimizer is that of one step, all else that of one micro-step.
    """

    batch: Count
    forward_s: Spread
    backward_s: Spread
    optimizer_s: Spread
    data_wait_s: Spread | None = None
    """Wait for the loader; None: not measured."""
    other_s: Spread | None = None
    """What the script does besides: logging, metrics, a batch function of its own; None: not measured."""
    peak_memory_bytes: Bytes | None = None

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        phases = (self.forward_s, self.backward_s, self.optimizer_s, self.data_wait_s, self.other_s)
        for spread in filter(None, phases):
            if spread.p10 < 0 or spread.mean < 0:
                raise ValueError("a phase cannot take less than 0 s")
            if max(spread.p90, spread.mean) > LONGEST_PHASE_S:
                raise ValueError(
                    f"a phase of more than {LONGEST_PHASE_S:.0e} s is taken for a slip in the unit"
                )
        if self.forward_s.p50 + self.backward_s.p50 < SHORTEST_STEP_S:
            raise ValueError(f"forward and backward together must take at least {SHORTEST_STEP_S:.0e} s")
        return self


class ContentTiming(Record):
    """One step of a job whose batches differ in content, such as sequences of varying length."""

    batch: Count
    element_count: Count
    """Elements of the step's largest input tensor: samples x padded length for token data."""
    step_s: Annotated[float, Field(gt=0)]


class GradientBucket(Record):
    """Gradients that DDP exchanges in one AllReduce."""

    gradient_bytes: Count
    ready_at: Annotated[float, Field(ge=0, le=1)]
    """When it is ready, as a share of the backward pass."""


class JobProfile(Record):
    """A job on one kind of GPU: compute time against batch, and what it will exchange."""

    job: Job
    gpu: str
    """The chip, by the name that offers use; "cpu" where there was none."""
    gpu_memory_bytes: Count | None = None
    """Memory of the GPU that was measured on."""
    max_batch: Count
    """The largest batch known to fit [samples]."""
    min_batch: Count = 1
    """The smallest batch that trains; 2 where there is batch normalisation."""
    timings: Annotated[tuple[BatchTiming, ...], Field(min_length=1)]
    """By rising batch."""
    buckets: tuple[GradientBucket, ...]
    """In the order of their exchange; empty where nothing is exchanged."""
    trainable_bytes: Bytes
    """Size of the parameters that are trained."""
    total_bytes: Bytes | None = None
    """Size of all parameters."""
    checkpoint_bytes: Bytes | None = None
    checkpoint_save_s: Spread | None = None
    """Time to write a checkpoint on the machine that was measured; None: not measured."""
    accumulation_count: Count = 1
    """Micro-steps to one step of the optimizer, as the script does them."""
    exchanges_every_micro_step: bool = False
    """Whether DDP would exchange in each micro-step, because nothing suppresses it (`no_sync`)."""
    precision: str | None = None
    """Type of the parameters, and of autocast where it is on: "float32", "float32, autocast bfloat16"."""
    compile_s: Annotated[float, Field(ge=0)] | None = None
    """What steps before the steady state took beyond as many steady ones: compilation, caches."""
    content_timings: tuple[ContentTiming, ...] = ()
    """Single steps by content, where step time varies with it."""
    estimated_from: str | None = None
    """The GPU that was measured, where this profile is only estimated from it; None: measured."""
    estimate_log_sd: Annotated[float, Field(ge=0)] | None = None
    """Doubt about an estimated profile's times: standard deviation of their logarithm."""
    assumptions: tuple[str, ...] = ()
    """What was not measured and had to be assumed; every plan repeats it."""
    versions: dict[str, str] = Field(default_factory=dict)
    hardware: str = ""
    cpu_count: Count | None = None
    """CPUs that loaded data for the one GPU that was measured; None: not known."""
    taken_at: AwareDatetime

    @model_validator(mode="after")
    def _rising(self) -> Self:
        batches = [timing.batch for timing in self.timings]
        if any(later <= earlier for earlier, later in pairwise(batches)):
            raise ValueError(f"timings must be by rising batch, one each; got {batches}")
        if self.max_batch < batches[-1]:
            raise ValueError(f"max_batch {self.max_batch} is below a batch that was measured, {batches[-1]}")
        if (len(self.buckets) > 0) != (self.trainable_bytes > 0):
            raise ValueError(
                f"trainable_bytes is {self.trainable_bytes} and there are {len(self.buckets)} buckets: "
                f"what is trained is exchanged, and nothing else"
            )
        if (self.estimated_from is None) != (self.estimate_log_sd is None):
            raise ValueError("an estimated profile needs both estimated_from and estimate_log_sd")
        if self.min_batch > self.max_batch:
            raise ValueError(f"min_batch {self.min_batch} is above max_batch {self.max_batch}")
        return self
