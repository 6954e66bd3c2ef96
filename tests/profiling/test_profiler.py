"""The profiler: whole profiles of real models, what does not fit, and an interrupt at any step."""

from __future__ import annotations

import itertools
import queue
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from srifty.errors import InvalidInput, NotMeasured, WorkloadFailed
from srifty.profiling import profiler
from srifty.profiling.bench import LOOKS
from srifty.profiling.gradient_buckets import MeasuredBuckets
from srifty.profiling.memory import OutOfMemory
from srifty.profiling.profiler import PASSES, profile
from srifty.records import Job, JobProfile
from srifty.records.files import from_json, to_json
from srifty.records.job_file import read_job

JobOf = Callable[..., Job]
Check = Callable[[nn.Module], None]


def _profile(job: Job, **changes: Any) -> JobProfile:
    return profile(job, **{"folder": Path(), "device": "cpu", "seconds_per_batch": 0.02, **changes})


def _vectors(batch: int) -> torch.Tensor:
    return torch.randn(batch, 8)


def _loss(model: nn.Module, data: Any) -> torch.Tensor:
    return model(data).square().mean()


def _made(model: nn.Module, make_batch: Any = _vectors, loss: Any = _loss) -> Callable[[], tuple[Any, ...]]:
    return lambda: (model, torch.optim.AdamW(model.parameters()), make_batch, loss)


def _holds_together(measured: JobProfile, batches: list[int]) -> None:
    assert [timing.batch for timing in measured.timings] == batches
    assert all(timing.forward_s.sample_count >= 5 for timing in measured.timings)
    assert sum(bucket.gradient_bytes for bucket in measured.buckets) == measured.trainable_bytes
    ready = [bucket.ready_at for bucket in measured.buckets]
    assert len(ready) >= 2
    assert ready == sorted(ready)
    assert ready[0] < ready[-1]
    assert measured.max_batch == batches[-1]
    assert measured.gpu == "cpu"
    assert measured.versions["torch"] == torch.__version__
    assert from_json(to_json(measured), JobProfile) == measured


@pytest.mark.usefixtures("with_torchvision")
@pytest.mark.parametrize(
    ("name", "parameter_bytes", "min_batch"),
    [
        ("resnet50", 102_228_128, 2),
        ("vgg19", 574_668_960, 1),
        ("squeezenet", 4_941_984, 1),
        ("alexnet", 244_403_360, 1),
    ],
)
def test_the_four_networks_of_the_paper_are_profiled(
    examples: Path, name: str, parameter_bytes: int, min_batch: int
) -> None:
    path = examples / "torchvision" / f"{name}.toml"
    job = read_job(path)
    assert job.batches == (2, 4, 8)
    before = sorted(path.parent.iterdir())
    measured = _profile(job.model_copy(update={"batches": (2, 4)}), folder=path.parent)
    _holds_together(measured, [2, 4])
    assert measured.trainable_bytes == measured.total_bytes == parameter_bytes
    assert measured.min_batch == min_batch
    assert measured.checkpoint_bytes is not None
    assert measured.checkpoint_bytes >= 2 * parameter_bytes  # weights and momentum
    assert "torchvision" in measured.versions
    assert sorted(path.parent.iterdir()) == before


def test_the_small_transformer_is_profiled(examples: Path) -> None:
    path = examples / "small_transformer" / "job.toml"
    measured = _profile(read_job(path), folder=path.parent, seconds_per_batch=0.3)
    _holds_together(measured, [1, 2, 4, 8])
    model_bytes = measured.trainable_bytes
    assert measured.checkpoint_bytes is not None
    assert (
        3 * model_bytes <= measured.checkpoint_bytes < 3.01 * model_bytes
    )  # weights and both moments of AdamW
    first, last = measured.timings[0], measured.timings[-1]
    assert last.forward_s.p50 > 1.5 * first.forward_s.p50
    assert last.backward_s.p50 > 1.5 * first.backward_s.p50
    assert measured.assumptions == (
        "the wait for data was not measured: each batch was made before its steps",
        "max_batch is the largest batch measured, 8 [samples]; a larger one may fit",
    )


def test_batches_come_in_passes_up_and_down_and_progress_rises(job_of: JobOf) -> None:
    made: list[int] = []
    told: list[float] = []

    def make_batch(batch: int) -> torch.Tensor:
        made.append(batch)
        return _vectors(batch)

    job = job_of(_made(nn.Linear(8, 8), make_batch), batches=(4, 2, 8, 2))
    _profile(job, on_progress=lambda share, doing: told.append(share))
    assert made[LOOKS : LOOKS + 3 * PASSES] == [2, 4, 8, 8, 4, 2, 2, 4, 8]
    assert told == sorted(told)
    assert told[-1] == 1.0


def _sequences(batch: int) -> torch.Tensor:
    return torch.randn(batch, int(torch.randint(1, 9, ())), 8)


def _slow_by_length(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
    time.sleep(0.001 * data.shape[1])
    return _loss(model, data)


def test_batches_of_varying_length_tell_time_by_content(job_of: JobOf) -> None:
    job = job_of(_made(nn.Linear(8, 8), _sequences, _slow_by_length), batches=(2, 4))
    measured = _profile(job, seconds_per_batch=0.6)
    for timing in measured.timings:
        found = [seen for seen in measured.content_timings if seen.batch == timing.batch]
        lengths = [seen.element_count / timing.batch / 8 for seen in found]
        assert len(lengths) >= 5  # 24 draws of 8 lengths
        assert lengths == sorted(set(lengths))
        for seen, length in zip(found, lengths, strict=True):
            assert seen.step_s >= 0.001 * length
        assert found[-1].step_s > found[0].step_s + 0.0006 * (lengths[-1] - lengths[0])
        assert timing.forward_s.p90 > timing.forward_s.p10 + 0.002  # the spread is that of the content
        assert timing.forward_s.sample_count >= 3 * 4
    assert any("batches of one size differ in content" in note for note in measured.assumptions)
    assert from_json(to_json(measured), JobProfile) == measured


def test_batches_of_one_length_tell_no_time_by_content_and_are_made_as_often_as_they_are_visited(
    job_of: JobOf,
) -> None:
    made: list[int] = []

    def make_batch(batch: int) -> torch.Tensor:
        made.append(batch)
        return _vectors(batch)

    measured = _profile(job_of(_made(nn.Linear(8, 8), make_batch), batches=(4,)))
    assert measured.content_timings == ()
    assert not any("content" in note for note in measured.assumptions)
    # The looks, a visit a pass, one for the precision and one for the buckets; two sizes are compared.
    assert len(made) == LOOKS + PASSES + 2 + 2


def _with_loader(
    loader: Callable[[int], Any], step_s: float = 0.0, model: nn.Module | None = None
) -> Callable[[], Any]:
    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        time.sleep(step_s)
        return _loss(model, data)

    return lambda: (*_made(model or nn.Linear(8, 8), loss=loss)(), loader)


LOAD_S = 0.02


def _slowly(batch: int) -> Iterator[torch.Tensor]:
    for _ in range(8):
        time.sleep(LOAD_S)
        yield _vectors(batch)


def _ahead(batch: int) -> Iterator[torch.Tensor]:
    """What `_slowly` gives, made by a thread that works ahead by one batch."""
    ready: queue.Queue[Any] = queue.Queue(maxsize=1)

    def work() -> None:
        for data in itertools.chain.from_iterable(_slowly(batch) for _ in range(8)):
            ready.put(data)
        ready.put(None)

    threading.Thread(target=work, daemon=True).start()
    return iter(ready.get, None)


@pytest.mark.parametrize(
    ("loader", "step_s", "least_s", "most_s"),
    [
        (_slowly, 0.0, LOAD_S, 1.6 * LOAD_S),
        (_slowly, 2 * LOAD_S, LOAD_S, 1.6 * LOAD_S),
        (_ahead, 0.0, 0.5 * LOAD_S, 1.6 * LOAD_S),
        (_ahead, 2 * LOAD_S, 0.0, 0.3 * LOAD_S),
    ],
    ids=["each in its turn", "each in its turn, slow steps", "ahead", "ahead, slow steps"],
)
def test_the_wait_for_a_loader_is_what_it_does_not_hide_behind_the_step(
    job_of: JobOf, loader: Callable[[int], Any], step_s: float, least_s: float, most_s: float
) -> None:
    measured = _profile(job_of(_with_loader(loader, step_s), batches=(2,)))
    (timing,) = measured.timings
    assert timing.data_wait_s is not None
    assert least_s <= timing.data_wait_s.p50 <= most_s
    assert timing.data_wait_s.sample_count >= 6
    assert not any("wait for data" in note for note in measured.assumptions)


def test_a_loader_of_torch_s_own_is_waited_for(job_of: JobOf) -> None:
    class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(LOAD_S / 4)
            return torch.zeros(8)

    make = _with_loader(lambda batch: torch.utils.data.DataLoader(Samples(), batch_size=batch))
    small, large = _profile(job_of(make, batches=(2, 4))).timings
    assert small.data_wait_s is not None
    assert large.data_wait_s is not None
    assert LOAD_S / 2 <= small.data_wait_s.p50 < LOAD_S <= large.data_wait_s.p50


def test_without_a_loader_the_wait_for_data_is_not_known(job_of: JobOf) -> None:
    measured = _profile(job_of(_made(nn.Linear(8, 8)), batches=(2,)))
    assert measured.timings[0].data_wait_s is None
    assert any("the wait for data was not measured" in note for note in measured.assumptions)


def test_epochs_of_one_batch_tell_no_wait(job_of: JobOf) -> None:
    measured = _profile(job_of(_with_loader(lambda batch: [_vectors(batch)]), batches=(2,)))
    assert measured.timings[0].data_wait_s is None
    assert any("an epoch of the loader is one batch" in note for note in measured.assumptions)


def test_a_loader_without_a_batch_and_one_that_fails_are_told(job_of: JobOf) -> None:
    with pytest.raises(WorkloadFailed, match=r"loader\(2\) gave no batch"):
        _profile(job_of(_with_loader(lambda batch: []), batches=(2,)))
    with pytest.raises(WorkloadFailed, match=r"loader\(2\) failed: OSError: no disk"):
        _profile(job_of(_with_loader(_failing), batches=(2,)))


def _failing(batch: int) -> Iterator[torch.Tensor]:
    yield _vectors(batch)
    raise OSError("no disk")


def test_a_loader_is_closed_and_the_model_is_as_before(job_of: JobOf, nothing_left: Check) -> None:
    model, opened, closed = nn.Linear(8, 8), [], []
    before = model.weight.clone()

    def loader(batch: int) -> Iterator[torch.Tensor]:
        opened.append(batch)
        try:
            while True:
                yield _vectors(batch)
        finally:
            closed.append(batch)

    _profile(job_of(_with_loader(loader, model=model), batches=(2, 4)))
    assert opened == closed == [2, 4]
    assert torch.equal(model.weight, before)
    nothing_left(model)


def test_without_batches_some_are_chosen_by_doubling(job_of: JobOf) -> None:
    measured = _profile(job_of(_made(nn.Linear(8, 8)), global_batch=20))
    assert [timing.batch for timing in measured.timings] == [1, 2, 4, 8, 16]


def test_with_batch_normalisation_no_batch_is_below_two(job_of: JobOf) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    chosen = _profile(job_of(_made(model), global_batch=8))
    assert chosen.min_batch == 2
    assert [timing.batch for timing in chosen.timings] == [2, 4, 8]
    given = _profile(job_of(_made(model), batches=(1, 4)))
    assert [timing.batch for timing in given.timings] == [4]
    assert any("batch 1 was left out" in note for note in given.assumptions)
    with pytest.raises(InvalidInput, match="batch normalisation trains with 2 samples or more"):
        _profile(job_of(_made(model), batches=(1,)))


def test_model_and_optimizer_are_as_before_afterwards(job_of: JobOf, nothing_left: Check) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _profile(job_of(lambda: (model, optimizer, _vectors, _loss), batches=(2, 4)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not optimizer.state_dict()["state"]
    nothing_left(model)


def test_training_that_diverges_starts_anew_with_each_batch(job_of: JobOf) -> None:
    model = nn.Linear(8, 8)
    first_losses: dict[int, list[float]] = {}

    def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
        result = _loss(model, data)
        first_losses.setdefault(len(data), []).append(result.item())
        return result

    optimizer = torch.optim.SGD(model.parameters(), lr=1e6)
    measured = _profile(
        job_of(lambda: (model, optimizer, _vectors, loss), batches=(2, 4)), seconds_per_batch=0.5
    )
    assert all(losses[0] < 10 for losses in first_losses.values())
    assert any("the loss was not finite" in note for note in measured.assumptions)


def _too_large_above(largest: int, error: Callable[[], Any]) -> Callable[[int], torch.Tensor]:
    def make_batch(batch: int) -> torch.Tensor:
        if batch > largest:
            error()
        return _vectors(batch)

    return make_batch


def _cuda_runs_out() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _cpu_runs_out() -> None:
    torch.empty(2**50, dtype=torch.uint8)


@pytest.mark.parametrize("error", [_cuda_runs_out, _cpu_runs_out])
def test_a_batch_that_does_not_fit_is_left_out_and_noted(job_of: JobOf, error: Callable[[], Any]) -> None:
    make_batch = _too_large_above(4, error)
    given = _profile(job_of(_made(nn.Linear(8, 8), make_batch), batches=(2, 4, 8, 16)))
    assert [timing.batch for timing in given.timings] == [2, 4]
    assert given.max_batch == 4
    assert any("batch 8 was left out: it does not fit into memory" in note for note in given.assumptions)
    chosen = _profile(job_of(_made(nn.Linear(8, 8), make_batch)))
    assert chosen.max_batch == 4
    assert any("batch 8 was left out" in note for note in chosen.assumptions)


def test_a_batch_that_fits_at_first_only_is_left_out(job_of: JobOf) -> None:
    count = itertools.count()

    def make_batch(batch: int) -> torch.Tensor:
        if batch == 4 and next(count) == 1:
            _cuda_runs_out()
        return _vectors(batch)

    measured = _profile(job_of(_made(nn.Linear(8, 8), make_batch), batches=(2, 4, 8)))
    assert [timing.batch for timing in measured.timings] == [2]


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ((64, 128), "batch 64 does not fit into the memory of this machine; give smaller 'batches'"),
        ((), "batch 1 "),
    ],
)
def test_where_no_batch_fits_that_is_said(job_of: JobOf, batches: tuple[int, ...], said: str) -> None:
    with pytest.raises(NotMeasured, match=said):
        _profile(job_of(_made(nn.Linear(8, 8), _too_large_above(0, _cuda_runs_out)), batches=batches))


def test_a_model_that_does_not_fit_is_said(job_of: JobOf) -> None:
    with pytest.raises(NotMeasured, match="the model alone does not fit into the memory of this machine"):
        _profile(job_of(_cpu_runs_out))


def test_a_bug_is_never_taken_for_a_batch_that_does_not_fit(job_of: JobOf) -> None:
    tries: list[int] = []

    def bug() -> None:
        tries.append(1)
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(WorkloadFailed, match="device-side assert"):
        _profile(job_of(_made(nn.Linear(8, 8), _too_large_above(2, bug))))
    assert len(tries) == 1


def test_a_batch_that_fits_only_without_ddp_is_left_out(
    job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = profiler.measure_buckets

    def short_of_memory(workload: Any, data: torch.Tensor, *rest: Any, **more: Any) -> MeasuredBuckets:
        if len(data) > largest:
            raise OutOfMemory
        return real(workload, data, *rest, **more)

    monkeypatch.setattr(profiler, "measure_buckets", short_of_memory)
    job = job_of(_made(nn.Linear(8, 8)), batches=(2, 4, 8))
    largest = 4
    measured = _profile(job)
    assert measured.max_batch == 4
    assert any("batch 8 was left out: it fits alone" in note for note in measured.assumptions)
    largest = 1
    measured = _profile(job)
    assert measured.max_batch == 8
    assert any("does not fit beside any measured batch" in note for note in measured.assumptions)


def test_a_model_in_evaluation_mode_is_noted(job_of: JobOf) -> None:
    measured = _profile(job_of(_made(nn.Linear(8, 8).eval()), batches=(2,)))
    assert "the model was in evaluation mode, and was measured so" in measured.assumptions


def test_an_interrupt_at_any_step_passes_through_and_leaves_nothing(
    job_of: JobOf, nothing_left: Check
) -> None:
    model = nn.Linear(8, 8)
    for fatal in itertools.count(1):
        calls = itertools.count(1)

        def loss(model: nn.Module, data: Any, calls: Any = calls, fatal: int = fatal) -> torch.Tensor:
            if next(calls) == fatal:
                raise KeyboardInterrupt
            return _loss(model, data)

        job = job_of(_made(model, loss=loss), batches=(2,))
        interrupted = False
        try:
            _profile(job, seconds_per_batch=1e-6)
        except KeyboardInterrupt:
            interrupted = True
        if not interrupted:
            break
        model.zero_grad()
        nothing_left(model)
    assert fatal > 2 * PASSES + 5


def test_an_interrupt_inside_a_backward_hook_of_ddp_leaves_nothing(
    job_of: JobOf, nothing_left: Check
) -> None:
    class Interrupting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            if torch.distributed.is_initialized():
                raise KeyboardInterrupt
            return gradient

    model = nn.Linear(8, 8)
    job = job_of(_made(model, loss=lambda model, data: Interrupting.apply(model(data)).mean()), batches=(2,))
    with pytest.raises(KeyboardInterrupt):
        _profile(job)
    nothing_left(model)


def _measured_odd(tmp_path: Path, body: str, batches: tuple[int, ...] = (2, 4)) -> JobProfile:
    (tmp_path / "odd.py").write_text(
        "import collections\nimport torch\nfrom torch import nn\n" + textwrap.dedent(body)
    )
    return _profile(
        Job(name="odd", workload="odd:make", batches=batches), folder=tmp_path, seconds_per_batch=0.1
    )


PLAIN = """
def make():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return model, optimizer, lambda batch: {data}, lambda model, data: {loss}
"""


def test_a_batch_maker_that_ignores_the_batch_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(WorkloadFailed, match="made data of the same size, 32 elements"):
        _measured_odd(tmp_path, PLAIN.format(data="torch.zeros(8, 4)", loss="model(data).sum()"))


def test_dictionaries_of_any_kind_are_data(tmp_path: Path) -> None:
    data = "collections.defaultdict(list, {'x': torch.zeros(batch, 4)})"
    assert _measured_odd(tmp_path, PLAIN.format(data=data, loss="model(data['x']).sum()")).max_batch == 4


def test_a_buffer_that_follows_the_batch_is_put_back(tmp_path: Path) -> None:
    body = """
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("last", torch.zeros(1, 4))

        def forward(self, x):
            out = self.layer(x) + self.last
            self.last = out.detach()
            return out

    def make():
        model = Remembering()
        return (model, torch.optim.SGD(model.parameters(), 0.0), lambda batch: torch.zeros(batch, 4),
                lambda model, data: model(data).sum())
    """
    assert _measured_odd(tmp_path, body, batches=(2, 4, 8)).max_batch == 8


def test_batch_normalisation_hidden_in_a_function_starts_at_two(tmp_path: Path) -> None:
    loss = "nn.functional.batch_norm(model(data), torch.zeros(1), torch.ones(1), training=True).sum()"
    measured = _measured_odd(tmp_path, PLAIN.format(data="torch.zeros(batch, 4)", loss=loss), batches=())
    assert (measured.min_batch, measured.timings[0].batch) == (2, 2)


def test_lbfgs_is_sent_to_the_way_that_can(tmp_path: Path) -> None:
    body = PLAIN.replace("SGD(model.parameters(), 0.1)", "LBFGS(model.parameters())")
    with pytest.raises(WorkloadFailed, match="needs a closure; profile the training script"):
        _measured_odd(tmp_path, body.format(data="torch.zeros(batch, 4)", loss="model(data).sum()"))


@pytest.mark.parametrize(
    ("raised", "said"),
    [("GeneratorExit()", "GeneratorExit"), ("Mute()", "Mute"), ("BaseException('x')", "BaseException: x")],
)
def test_whatever_the_training_code_raises_is_its_own(tmp_path: Path, raised: str, said: str) -> None:
    body = f"""
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError
    def make():
        raise {raised}
    """
    with pytest.raises(WorkloadFailed, match=said):
        _measured_odd(tmp_path, body)
