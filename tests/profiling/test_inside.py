"""Loops of the user's own with a profiler around them: what it sees, what it leaves behind, what it never does."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from srifty.errors import InvalidInput
from srifty.profiling import inside
from srifty.profiling.inside import profile_steps
from srifty.profiling.merged_profile import merged
from srifty.profiling.observation import Observation
from srifty.records import JobProfile
from srifty.records.files import read
from tests.profiling.inside_kit import (
    LAYER_S,
    LAYERS,
    LOAD_S,
    assert_agrees,
    assert_holds_together,
    loader,
    loss_of,
    make_model,
    nothing_left_on,
    one_thread,
    train,
)

__all__ = ["one_thread"]

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.filterwarnings("error:srifty")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t4.profile.json"


def refused(path: Any, told: str, *, model: nn.Module | None = None, **given: Any) -> None:
    """The loop runs, there is one warning, and no profile."""
    model = model or make_model(1, 0.0001)
    with nothing_left_on(model), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with profile_steps(path, **given) as profiling:
            assert len(train(model, 14)) == 14
    assert profiling.profile is None
    assert [one.category for one in warned] == [UserWarning]
    assert re.search(told, str(warned[0].message)), str(warned[0].message)


def test_a_plain_loop_is_told_phase_by_phase(path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    own_s: list[float] = []
    with nothing_left_on(model), profile_steps(path, name="mine", seconds_per_batch=0.2) as profiling:
        begin = time.perf_counter()
        for x in loader():
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
            own_s.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            if profiling.profile is not None:
                break
    profile = assert_holds_together(profiling.profile, model)
    assert read(path, JobProfile) == profile
    assert profile.job.name == "mine"
    assert_agrees(profile, own_s[:-1])
    (timing,) = profile.timings
    assert timing.batch == 8
    assert timing.forward_s.p10 >= LAYERS * LAYER_S / 2
    assert timing.backward_s.p10 >= LAYERS * LAYER_S
    assert timing.data_wait_s is not None
    assert timing.data_wait_s.p10 >= LOAD_S
    assert timing.optimizer_s.p10 < LAYER_S
    assert profile.checkpoint_save_s is not None
    assert profile.accumulation_count == 1
    assert profile.precision == "float32"
    assert sorted(one.name for one in path.parent.iterdir()) == [path.name]


def test_once_enough_was_seen_nothing_is_left_while_the_loop_goes_on(path: Path) -> None:
    model = make_model(2, 0.0005)
    with profile_steps(path, seconds_per_batch=0) as profiling:
        train(model, 200, until=lambda: profiling.profile is not None)
        assert profiling.profile is not None
        train(model, 1)  # an optimizer that calls its hooks lets none of them go: the next backward pass does
        with nothing_left_on(model):
            train(model, 3)
    assert inside._active is None


def test_a_loop_without_a_loader_and_a_block_that_ends_early(path: Path) -> None:
    model = make_model()
    with nothing_left_on(model), profile_steps(path) as profiling:
        own_s = train(model, 16)
    profile = assert_holds_together(profiling.profile, model)
    assert_agrees(profile, own_s)
    (timing,) = profile.timings
    assert timing.batch == 8
    assert timing.data_wait_s is None
    assert timing.other_s is not None
    assert any(
        note.startswith("batch 8: what was watched ended after 16 steps") for note in profile.assumptions
    )


def test_a_block_around_a_part_of_a_loop_that_runs_already(path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    profiling = profile_steps(path)
    for step in range(20):
        if step == 4:
            profiling.start()
        loss_of(model, torch.ones(8, 256)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 16:
            profiling.stop()
    profile = assert_holds_together(profiling.profile, model)
    assert any("ended after 13 steps" in note for note in profile.assumptions)


def test_accumulation_autocast_and_a_scaler(path: Path) -> None:
    model = make_model(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with nothing_left_on(model), profile_steps(path) as profiling:
        for micro in range(42):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, torch.ones(4, 256)) / 3
            scaler.scale(loss).backward()
            if micro % 3 == 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    profile = assert_holds_together(profiling.profile, model)
    assert profile.accumulation_count == 3
    assert profile.precision == "float32, autocast bfloat16"
    (timing,) = profile.timings
    assert timing.batch == 4
    assert 2 * LAYER_S <= timing.backward_s.p10 < 2 * 2 * LAYER_S


def test_a_model_that_is_in_ddp_tells_its_own_buckets(path: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(make_model())
        with nothing_left_on(model), profile_steps(path) as profiling:
            train(model, 20)
        profile = assert_holds_together(profiling.profile, model)
        assert not any("does not use DDP" in note for note in profile.assumptions)
    finally:
        dist.destroy_process_group()


def test_batches_of_one_job_come_into_one_file(path: Path) -> None:
    for batch in (16, 4, 8):
        model = make_model(seconds=batch * 2e-4)
        with profile_steps(path, name="mine", batch=batch) as profiling:
            train(model, 14, batch)
    profile = read(path, JobProfile)
    assert profile == profiling.profile
    assert [timing.batch for timing in profile.timings] == [4, 8, 16]
    backward_s = [timing.backward_s.p50 for timing in profile.timings]
    assert backward_s == sorted(backward_s)
    assert profile.max_batch == 16
    largest = [note for note in profile.assumptions if note.startswith("max_batch is")]
    assert largest == ["max_batch is the largest batch measured, 16 [samples]; a larger one may fit"]
    ended = [note for note in profile.assumptions if "what was watched ended" in note]
    assert [note.partition(":")[0] for note in ended] == ["batch 16", "batch 4", "batch 8"]


def test_a_batch_measured_again_takes_the_place_of_the_old(path: Path) -> None:
    for seconds in (0.002, 0.004):
        with profile_steps(path, name="mine"):
            train(make_model(seconds=seconds), 14)
    profile = read(path, JobProfile)
    (timing,) = profile.timings
    assert timing.backward_s.p10 >= LAYERS * 0.004
    assert sum("what was watched ended" in note for note in profile.assumptions) == 1


def test_a_file_of_another_job_is_left_as_it_is(path: Path) -> None:
    with profile_steps(path, name="mine"):
        train(make_model(2), 14)
    before = path.read_bytes()
    refused(path, "holds job 'mine', and not 'yours'; give another path, or remove the file", name="yours")
    told = "holds a profile whose trainable_bytes is .* and this one's is"
    refused(path, told, model=make_model(3), name="mine")
    assert path.read_bytes() == before
    path.write_text("my notes")
    refused(path, "is not JSON", name="mine")
    assert path.read_text() == "my notes"


@pytest.mark.parametrize(
    ("field", "value"),
    [("gpu", "T4"), ("hardware", "another"), ("precision", "float16"), ("versions", {"torch": "1.0"})],
)
def test_profiles_of_two_machines_are_not_merged(path: Path, field: str, value: Any) -> None:
    with profile_steps(path, name="mine") as profiling:
        train(make_model(1), 10)
    now = profiling.profile
    assert now is not None
    assert merged(now, now, "x").timings == now.timings
    with pytest.raises(InvalidInput, match="give another path, or remove the file"):
        merged(now.model_copy(update={field: value}), now, "x")


def test_arguments_that_cannot_be_used_are_warned_of_and_the_loop_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    refused(tmp_path / "nowhere" / "x.json", "cannot write")
    refused(tmp_path, "is a directory")
    refused(path, "batches", batch=0)
    refused(path, "batches", batch="many")
    refused(path, "name", name="")
    refused(path, "seconds_per_batch", seconds_per_batch=-1)
    refused(None, "no profile")
    assert list(tmp_path.iterdir()) == []


def test_what_is_too_little_is_told(path: Path) -> None:
    with pytest.warns(UserWarning, match="no step of an optimizer was seen"), profile_steps(path):
        pass
    with pytest.warns(UserWarning, match="at least 3 are needed: let more steps run"), profile_steps(path):
        train(make_model(1), 2)
    assert not path.exists()


def test_an_error_of_the_training_code_goes_through_and_nothing_is_written(path: Path) -> None:
    model = make_model(2, 0.0005)
    error = ValueError("mine")

    def fail(step: int) -> None:
        if step == 14:
            raise error

    with nothing_left_on(model), pytest.raises(ValueError, match="mine") as raised, profile_steps(path):
        train(model, before_step=fail)
    assert raised.value is error
    assert not path.exists()


def test_a_block_that_is_interrupted_keeps_what_was_seen(path: Path) -> None:
    def interrupt(step: int) -> None:
        if step == 14:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), profile_steps(path):
        train(make_model(2), before_step=interrupt)
    assert read(path, JobProfile).timings[0].batch == 8


def test_what_torch_raises_comes_out_as_it_is(path: Path) -> None:
    model = make_model(1, 0.0001)
    with nothing_left_on(model), profile_steps(path) as profiling:
        train(model, 12)
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.ones(1).backward()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.ones(3, 3))
    assert profiling.profile is not None


class Unruly(Mapping[str, torch.Tensor]):
    """A batch that can be trained on, but not be looked at."""

    def __getitem__(self, key: str) -> torch.Tensor:
        return torch.ones(8, 256)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("not to be looked at")

    def __len__(self) -> int:
        return 1


class OfUnruly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model(1, 0.0001)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.inner(batch["x"]).square().mean()


def test_data_that_cannot_be_looked_at_does_not_stop_the_training(path: Path) -> None:
    model = OfUnruly()
    losses = []

    def loop() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(10):
            loss = model(Unruly())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

    profiling = profile_steps(path)
    with nothing_left_on(model), pytest.warns(UserWarning, match="the batch could not be seen"), profiling:
        loop()
    assert losses == sorted(losses, reverse=True)
    assert not path.exists()


@pytest.mark.parametrize(
    "place",
    [
        *("watch.Watch._between", "watch.Watch.backward_ended", "watch.Watch.step_begins"),
        *(
            "watch.Watch.step_ended",
            "models.Models.find",
            "gradients.Gradients.hook",
            "gradients.Gradients.look",
        ),
        *("record.Recorder.write", "timeline.Timeline.enter", "timeline.Timeline.claim"),
    ],
)
def test_a_fault_of_ours_is_a_warning_and_no_more(
    path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.find_probe()

    def fault(*given: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(f"srifty_probe.{place}", fault)
    torch.manual_seed(0)
    model, twin = make_model(1, 0.0001), make_model(1, 0.0001)
    twin.load_state_dict(model.state_dict())
    refused(path, "RuntimeError: ours", model=model, seconds_per_batch=0)
    train(twin, 14)
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_warning_that_is_an_error_elsewhere_is_printed(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with profile_steps(path):
            pass
    assert "no step of an optimizer was seen" in capsys.readouterr().err


def test_a_training_is_the_same_to_the_last_bit(path: Path) -> None:
    ends = []
    for is_profiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.5), nn.Linear(256, 256))
        if is_profiled:
            with profile_steps(path, seconds_per_batch=0) as profiling:
                train(model, 60)
            assert profiling.profile is not None
        else:
            train(model, 60)
        ends.append([parameter.detach().clone() for parameter in model.parameters()] + [torch.rand(3)])
    for left, right in zip(*ends, strict=True):
        assert torch.equal(left, right)


def test_another_profiler_ends_the_first(path: Path) -> None:
    model = make_model(2, 0.0005)
    with nothing_left_on(model), profile_steps(path) as first:
        train(model, 14)
        with profile_steps(path.with_name("second.json")) as second:
            train(model, 14)
        train(model, 3)
    for profiling in (first, second):
        profile = assert_holds_together(profiling.profile, model)
        assert any("ended after 14 steps" in note for note in profile.assumptions)


def test_what_another_thread_trains_is_not_ours(path: Path) -> None:
    model, other = make_model(2), make_model(3)
    is_over = threading.Event()
    thread = threading.Thread(target=lambda: train(other, 10_000, until=is_over.is_set))
    with nothing_left_on(model), profile_steps(path) as profiling:
        thread.start()
        train(model, 16)
        is_over.set()
        thread.join()
    assert_holds_together(profiling.profile, model)


FORK = """
import multiprocessing, sys, torch
from srifty.profiling.inside import profile_steps
from tests.profiling.inside_kit import make_model, train
torch.set_num_threads(1)
with profile_steps(sys.argv[1], seconds_per_batch=0):
    process = multiprocessing.get_context("fork").Process(target=lambda: train(make_model(1, 0.0001), 60))
    process.start()
    process.join()
sys.exit(process.exitcode)
"""


def test_a_fork_that_trains_does_not_write(path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", FORK, str(path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "no step of an optimizer was seen" in said.stderr
    assert not path.exists()


def test_only_rank_0_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    model = make_model(1, 0.0001)
    with nothing_left_on(model), profile_steps(path) as profiling:
        train(model, 14)
    assert profiling.profile is None
    assert not path.exists()


RANKS = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from srifty.profiling.inside import profile_steps
from tests.profiling.inside_kit import make_model, nothing_left_on, train
torch.set_num_threads(1)
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}.meeting", rank=rank, world_size=2)
model = DistributedDataParallel(make_model(2))
with nothing_left_on(model), profile_steps(path) as profiling:
    train(model, 20)
assert (profiling.profile is not None) == (rank == 0)
dist.destroy_process_group()
"""


def test_of_two_ranks_that_exchange_one_writes(path: Path) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANKS, str(rank), str(path)], cwd=ROOT) for rank in (0, 1)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    profile = read(path, JobProfile)
    assert profile.job.name == "-c"
    assert sum(bucket.gradient_bytes for bucket in profile.buckets) == profile.trainable_bytes > 0
    assert any(note.startswith("batch 8: 2 ranks trained at once") for note in profile.assumptions)


def test_what_the_process_did_before_the_block_is_not_counted(path: Path) -> None:
    profiling = profile_steps(path)
    with profiling:
        train(make_model(1), 8)
    profiling._peak_before_bytes, profiling._compiled_before_s = 100, 7.0

    def told(peak: int | None, compile_s: float | None) -> tuple[Any, Any]:
        before = {"peak_memory_bytes": peak, "compile_s": compile_s}
        seen = profiling._of_this_block(Observation("enough", False, 1, (), (), {}, before)).told
        return seen["peak_memory_bytes"], seen["compile_s"]

    assert told(100, 7.0) == (None, 0.0)
    assert told(101, 9.0) == (101, 2.0)
    assert told(None, None) == (None, None)


def test_somebody_else_s_patch_over_ours_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # comes back in the end
    with profile_steps(path) as profiling:
        ours = torch.autograd.backward

        def theirs(*given: Any, **named: Any) -> Any:
            calls.append(1)
            return ours(*given, **named)

        torch.autograd.backward = theirs
        train(make_model(2), 14)
    assert profiling.profile is not None
    assert torch.autograd.backward is theirs
    train(make_model(1), 2)
    assert len(calls) == 16


def test_a_profile_made_inside_can_be_planned_with(path: Path) -> None:
    from srifty import predict

    for batch in (4, 8, 16):
        with profile_steps(path, name="mine"):
            train(make_model(seconds=batch * 2e-4), 12, batch)
    profile = read(path, JobProfile)
    table = path.with_name("offers.csv")
    table.write_text(
        "cloud,region,instance_type,gpu,gpu_count,gpu_memory_gib,vcpu_count,network_gbit_per_s,usd_per_hour\n"
        "lab,basement,box,cpu,1,16,16,10,0.40\n"
    )
    (estimate,) = predict(profile, "2xbox", batch=32, catalog=str(table))
    assert estimate.iteration.cluster.gpu_count == 2
