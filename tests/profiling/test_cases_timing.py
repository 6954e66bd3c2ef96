"""What went wrong for users of other tools that time a training, and the right value here.

Each test names the public report that it is about.
"""

from __future__ import annotations

import re
import shutil
import textwrap
import time
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from srifty.errors import WorkloadFailed
from srifty.profiling.profiler import PASSES, profile
from srifty.records import BatchTiming, GradientBucket, Job, JobProfile, Spread
from srifty.records.job_profile import ContentTiming
from tests.profiling.attach_kit import Scripts, scripts
from tests.profiling.sleeping import SleepInBackward

__all__ = ["scripts"]

JobOf = Callable[..., Job]


def _profile(job: Job, **changes: Any) -> JobProfile:
    return profile(job, **{"folder": Path(), "device": "cpu", "seconds_per_batch": 0.3, **changes})


def _vectors(batch: int) -> torch.Tensor:
    return torch.randn(batch, 8)


def _made(model: nn.Module, loss: Any, make_batch: Any = _vectors) -> Callable[[], tuple[Any, ...]]:
    return lambda: (model, torch.optim.AdamW(model.parameters()), make_batch, loss)


def test_cold_steps_are_in_no_timing(job_of: JobOf) -> None:
    """torchdynamo#900: without a warm-up the first steps, ten times as long, were averaged with the others."""
    taken: list[int] = []

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        taken.append(1)
        time.sleep(0.1 if len(taken) <= 3 else 0.005)
        return model(data).square().mean()

    measured = _profile(job_of(_made(nn.Linear(8, 8), loss), batches=(2,)), seconds_per_batch=2.0)
    (timing,) = measured.timings
    assert 0.005 <= timing.forward_s.p50 < 0.02
    assert timing.forward_s.mean < 0.03
    assert measured.compile_s is not None
    assert measured.compile_s > 0.2  # two of them at least were 0.095 s longer


def test_a_block_of_steps_waits_for_the_device_once(job_of: JobOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchdynamo#900: synchronising in each step is what distorts; marks of a block are read at its end."""
    from srifty.profiling.clock import Clock

    marked: list[str] = []
    mark, between = Clock.mark, Clock.between

    def noted_mark(clock: Clock) -> Any:
        marked.append("mark")
        return mark(clock)

    def noted_between(clock: Clock, start: Any, end: Any) -> float:
        marked.append("read")
        return between(clock, start, end)

    monkeypatch.setattr(Clock, "mark", noted_mark)
    monkeypatch.setattr(Clock, "between", noted_between)

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        return model(data).square().mean()

    measured = _profile(job_of(_made(nn.Linear(8, 8), loss), batches=(2,)))
    blocks = [len(run) for run in re.findall("m+", "".join(what[0] for what in marked))]
    steps = sorted(((length - 1) // 3 for length in blocks), reverse=True)[:PASSES]
    assert sum(steps) == measured.timings[0].forward_s.sample_count


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())  # type: ignore[no-any-return]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_compilation_is_told_apart_and_is_in_no_step(job_of: JobOf) -> None:
    """pytorch#97783: a time to finish that came from the first minutes, which were compilation."""
    import torch._inductor.config

    torch._dynamo.reset()
    model = Layers()
    model.compile()

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        return model(data).square().mean()  # type: ignore[no-any-return]

    with torch._inductor.config.patch(force_disable_caches=True):
        measured = _profile(job_of(_made(model, loss, lambda batch: torch.randn(batch, 64)), batches=(4,)))
    (timing,) = measured.timings
    step_s = timing.forward_s.p50 + timing.backward_s.p50 + timing.optimizer_s.p50
    assert measured.compile_s is not None
    assert measured.compile_s > 0.5
    assert measured.compile_s > 5 * step_s


def test_no_hook_of_ours_is_on_while_steps_are_timed_nor_afterwards(
    job_of: JobOf, nothing_left: Callable[[nn.Module], None]
) -> None:
    """adaptdl#120: hooks that stayed on slowed the training from 17.5 to 6.7 steps a second."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    hooked: list[bool] = []

    def loss(called: nn.Module, data: torch.Tensor) -> torch.Tensor:
        on_parameters = any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters())
        on_modules = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
        hooked.append(on_parameters or on_modules or called is not model)
        return called(data).square().mean()  # type: ignore[no-any-return]

    measured = _profile(job_of(_made(model, loss), batches=(2,)))
    timed_count = measured.timings[0].forward_s.sample_count
    assert not any(hooked[:timed_count])
    assert any(hooked[timed_count:])  # the buckets were watched, after all that was timed
    nothing_left(model)


def test_the_wait_for_the_loader_is_no_part_of_the_step(job_of: JobOf) -> None:
    """pytorch/examples#387: 60 % of the step was the loader, which a faster GPU does not change."""

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return SleepInBackward.apply(model(data), 0.01).square().mean()  # type: ignore[no-any-return,no-untyped-call]

    def loader(batch: int) -> Iterator[torch.Tensor]:
        while True:
            time.sleep(0.03)
            yield _vectors(batch)

    make = _made(nn.Linear(8, 8), loss)
    measured = _profile(job_of(lambda: (*make(), loader), batches=(2,)))
    (timing,) = measured.timings
    assert timing.data_wait_s is not None
    gpu_s = timing.forward_s.p50 + timing.backward_s.p50 + timing.optimizer_s.p50
    assert timing.data_wait_s.p50 / (timing.data_wait_s.p50 + gpu_s) == pytest.approx(0.6, abs=0.1)
    assert gpu_s < 0.03


UNITS = ("_s", "_bytes", "_count", "_at", "_sd", "_batch", "batch")
"""Endings of names that hold a number: the last three are shares, logarithms and samples."""


@pytest.mark.parametrize("record", [JobProfile, BatchTiming, GradientBucket, ContentTiming])
def test_every_number_of_a_profile_has_its_unit_in_its_name(record: type[Any]) -> None:
    """gpt-neox#739: milliseconds were taken for seconds."""

    def holds_a_number(kind: Any) -> bool:
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) in (typing.Union, typing.Annotated):
            return any(map(holds_a_number, typing.get_args(kind)))
        return kind in (int, float, Spread)

    for name, field in record.model_fields.items():
        if holds_a_number(field.annotation):
            assert name.endswith(UNITS), name


def test_times_are_seconds_and_a_slip_in_the_unit_is_refused(job_of: JobOf) -> None:
    """gpt-neox#739: a step of 60 ms is 0.06, from the first measurement to the record."""

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return SleepInBackward.apply(model(data), 0.04).square().mean()  # type: ignore[no-any-return,no-untyped-call]

    (timing,) = _profile(job_of(_made(nn.Linear(8, 8), loss), batches=(2,))).timings
    assert 0.02 <= timing.forward_s.p50 < 0.04 <= timing.backward_s.p50 < 0.07
    with pytest.raises(ValidationError, match="slip in the unit"):
        BatchTiming.model_validate(timing.model_dump() | {"forward_s": Spread.exactly(2e6)})


@pytest.mark.parametrize(
    ("error", "told"), [("RuntimeError('(')", "RuntimeError: ("), ("AssertionError()", "AssertionError")]
)
def test_an_error_that_says_nothing_is_told_by_its_kind_and_traceback(
    tmp_path: Path, error: str, told: str
) -> None:
    """DeepSpeed#4759: "Model is not runnable with error = (" was all that was said of the user's own error."""
    (tmp_path / "work.py").write_text(
        textwrap.dedent(
            f"""
            import torch
            def fails(model, data):
                raise {error}
            def make():
                model = torch.nn.Linear(8, 8)
                return model, torch.optim.SGD(model.parameters(), 0.1), lambda batch: torch.ones(batch, 8), fails
            """
        )
    )
    with pytest.raises(WorkloadFailed) as caught:
        _profile(Job(name="a", workload="work:make", batches=(2,)), folder=tmp_path)
    assert str(caught.value).endswith(told)
    assert f"raise {error}" in caught.value.workload_traceback
    assert 'work.py", line 4, in fails' in caught.value.workload_traceback


def test_a_script_s_own_error_is_shown_and_that_it_fails_without_us(scripts: Scripts) -> None:
    """DeepSpeed#4759: whose fault it is was not said; here the script is run once more without the probe."""
    with pytest.raises(WorkloadFailed) as caught:
        scripts.profile("def late():\n    raise RuntimeError('(')\nlate()\n")
    assert "without Srifty" in str(caught.value)
    assert "RuntimeError: (" in f"{caught.value}{caught.value.workload_traceback}"
    assert 'train.py", line 3, in late' in caught.value.workload_traceback
