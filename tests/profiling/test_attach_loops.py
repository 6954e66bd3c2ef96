"""Unchanged scripts of many kinds: their steps, phases, gradients and buckets, against what is known of them."""

from __future__ import annotations

import shutil
from statistics import median

import pytest

from srifty.records import JobProfile
from srifty.records.files import from_json, to_json
from tests.profiling.attach_kit import (
    LAYER_BYTES,
    LAYER_S,
    LAYERS,
    LOAD_S,
    MODEL_BYTES,
    Scripts,
    assert_agrees_with_own_clock,
    assert_holds_together,
    scripts,
)

__all__ = ["scripts"]

LOOP = """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x in loader():
        tick()
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
"""


def test_a_plain_loop_is_told_phase_by_phase(scripts: Scripts) -> None:
    profile = scripts.profile(LOOP)
    assert_holds_together(profile)
    assert_agrees_with_own_clock(scripts, profile)
    (timing,) = profile.timings
    assert timing.forward_s.p50 == pytest.approx(LAYERS * LAYER_S / 2, rel=0.5)
    assert timing.backward_s.p50 == pytest.approx(LAYERS * LAYER_S, rel=0.4)
    assert timing.forward_s.p10 >= LAYERS * LAYER_S / 2
    assert timing.backward_s.p10 >= LAYERS * LAYER_S
    assert timing.data_wait_s is not None
    assert timing.data_wait_s.p10 >= LOAD_S
    assert timing.optimizer_s.p50 < LAYER_S
    assert timing.forward_s.sample_count >= 6
    assert [bucket.gradient_bytes for bucket in profile.buckets] == [LAYER_BYTES, 3 * LAYER_BYTES]
    assert profile.buckets[0].ready_at == pytest.approx(1 / LAYERS, abs=0.12)
    assert profile.buckets[1].ready_at > 0.9
    assert profile.total_bytes == MODEL_BYTES
    assert profile.checkpoint_bytes == MODEL_BYTES
    assert profile.checkpoint_save_s is not None
    assert profile.min_batch == 1
    assert profile.accumulation_count == 1
    assert profile.precision == "float32"
    assert profile.content_timings == ()
    assert not any("own hooks" in note for note in profile.assumptions)
    assert from_json(to_json(profile), JobProfile) == profile
    assert sorted(path.name for path in scripts.folder.iterdir()) == ["kit.py", "train.py"]


def test_each_batch_is_a_run_of_its_own(scripts: Scripts) -> None:
    profile = scripts.profile(LOOP.replace("tick()", "time.sleep(BATCH / 4000)"), batches=(16, 4), seconds=30)
    small, large = profile.timings
    assert (small.batch, large.batch) == (4, 16)
    assert profile.max_batch == 16
    assert small.other_s is not None
    assert large.other_s is not None
    assert small.other_s.p10 >= 0.001
    assert large.other_s.p10 >= 0.004


def test_without_a_place_for_it_the_batch_is_seen_in_the_data(scripts: Scripts) -> None:
    assert_holds_together(scripts.profile(LOOP, batches=()), batch=8)
    told = scripts.profile(LOOP, batches=(), samples_per_step=24)
    assert [timing.batch for timing in told.timings] == [24]


def test_a_loop_without_a_loader_has_no_wait_for_data(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    tick()
    x = torch.ones(BATCH, 512)
    time.sleep(0.003)
    loss_of(model, x).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    time.sleep(0.003)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
""",
        batches=(),
    )
    assert_holds_together(profile)
    assert_agrees_with_own_clock(scripts, profile)
    (timing,) = profile.timings
    assert timing.data_wait_s is None
    assert timing.other_s is not None
    assert timing.other_s.p10 >= 0.003
    assert timing.optimizer_s.p10 >= 0.003  # from the backward pass to the optimizer: clipping
    assert profile.checkpoint_bytes is not None
    assert profile.checkpoint_bytes >= 3 * MODEL_BYTES


def test_evaluation_and_saving_in_between_do_not_count(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step, x in enumerate(loader()):
    tick()
    loss_of(model, x).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        with torch.no_grad():
            model(x)
        torch.save(model.state_dict(), "model.pt")
        time.sleep(0.05)
"""
    )
    assert_holds_together(profile)
    (timing,) = profile.timings
    assert timing.other_s is not None
    assert timing.other_s.p90 < 0.03
    assert not (scripts.folder / "model.pt").exists() or any("model.pt" in n for n in profile.assumptions)


def test_accumulation_is_told_by_micro_step(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step, x in enumerate(loader()):
    if step % 4 == 0:
        tick()
    (loss_of(model, x) / 4).backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert_holds_together(profile)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.accumulation_count == 4
    assert not profile.exchanges_every_micro_step
    assert any("accumulates 4 micro-steps without DDP" in note for note in profile.assumptions)
    (timing,) = profile.timings
    assert timing.backward_s.p50 == pytest.approx(LAYERS * LAYER_S, rel=0.4)
    assert profile.buckets[0].ready_at == pytest.approx(1 / LAYERS, abs=0.12)


def test_a_batch_that_the_script_shares_among_micro_steps_is_told_so(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in loader():
    for part in x.chunk(2):
        (loss_of(model, part) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        batches=(8,),
    )
    assert [timing.batch for timing in profile.timings] == [4]
    assert any("shares it among 2 micro-steps" in note for note in profile.assumptions)


DDP = """
import contextlib, tempfile
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step, x in enumerate(loader()):
    is_last = step % 2 == 1
    with contextlib.nullcontext() if is_last or {always} else model.no_sync():
        loss_of(model, x).backward()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("always", [True, False])
def test_an_exchange_in_each_micro_step_is_seen(scripts: Scripts, always: bool) -> None:
    profile = scripts.profile(DDP.replace("{always}", str(always)))
    assert_holds_together(profile)
    assert profile.accumulation_count == 2
    assert profile.exchanges_every_micro_step is always
    assert [bucket.gradient_bytes for bucket in profile.buckets] == [LAYER_BYTES, 3 * LAYER_BYTES]
    assert not any("does not use DDP" in note for note in profile.assumptions)


def test_two_optimizers_that_take_turns_make_one_step(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
makes, judges = make_model(2), make_model(2)
of_makes = torch.optim.SGD(makes.parameters(), lr=1e-3)
of_judges = torch.optim.SGD(judges.parameters(), lr=1e-3)
for x in loader():
    tick()
    of_judges.zero_grad()
    loss_of(judges, x).backward()
    loss_of(judges, makes(x).detach()).backward()
    of_judges.step()
    of_makes.zero_grad()
    judges(makes(x)).mean().backward()
    of_makes.step()
"""
    )
    assert_holds_together(profile)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.accumulation_count == 1
    (timing,) = profile.timings
    assert timing.backward_s.p50 == pytest.approx(8 * LAYER_S, rel=0.4)


def test_what_a_closure_runs_is_forward_and_backward(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model(2)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=1e-4)
for x in loader():
    tick()

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, x + torch.rand_like(x))
        loss.backward()
        return loss

    optimizer.step(closure)
"""
    )
    assert_holds_together(profile, trained_bytes=2 * LAYER_BYTES)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.accumulation_count == 1
    assert any("runs the model up to 2 times a step" in note for note in profile.assumptions)
    (timing,) = profile.timings
    assert timing.backward_s.p10 >= 2 * 2 * LAYER_S
    assert timing.forward_s.p10 >= 2 * LAYER_S


def test_updates_by_hand_count_as_the_optimizer(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model(2)
for x in loader():
    tick()
    loss_of(model, x).backward()
    time.sleep(0.003)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None
"""
    )
    assert_holds_together(profile, trained_bytes=2 * LAYER_BYTES)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.timings[0].optimizer_s.p10 >= 0.003
    assert any("no optimizer stepped" in note for note in profile.assumptions)


def test_gradients_that_are_asked_for_are_found_too(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
weights = [(torch.randn(512, 512) / 30).requires_grad_() for _ in range(3)]
while True:
    tick()
    x = torch.ones(BATCH, 512)
    for weight in weights:
        x = Slow.apply(x @ weight, 0.002)
    gradients = torch.autograd.grad(x.square().mean(), weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients):
            weight -= 1e-6 * gradient
""",
        batches=(),
        samples_per_step=8,
    )
    assert_holds_together(profile, trained_bytes=3 * 512 * 512 * 4)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.timings[0].backward_s.p10 >= 3 * 0.002
    assert {bucket.ready_at for bucket in profile.buckets} == {1.0}
    assert any("when gradients are ready was not seen" in note for note in profile.assumptions)


def test_the_batch_is_found_where_no_call_of_a_whole_model_is_seen(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model(2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    tick()
    optimizer.zero_grad()
    model[1:](model[:1](torch.ones(BATCH, 512))).square().mean().backward()
    optimizer.step()
""",
        batches=(),
    )
    assert_holds_together(profile, trained_bytes=2 * LAYER_BYTES)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.timings[0].forward_s.p10 >= LAYER_S


def test_only_what_is_trained_is_exchanged_and_once(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.first, self.last = Layer(), Layer(), Layer()
        self.unused = nn.Linear(512, 2, bias=False)
        self.last.linear.weight = self.first.linear.weight
        self.norm = nn.BatchNorm1d(512)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.last(self.norm(self.first(self.frozen(x))))


model = Model()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for x in loader():
    loss_of(model, x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    trained = 512 * 512 * 4 + 2 * 512 * 4 + 2 * 512 * 4 + 2 * 512 * 4
    assert_holds_together(profile, trained_bytes=trained)
    assert profile.total_bytes == trained + LAYER_BYTES
    assert profile.min_batch == 2
    assert any(note.startswith("1 trainable parameters get no gradient") for note in profile.assumptions)


def test_a_sparse_gradient_has_a_bucket_of_its_own(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
words = nn.EmbeddingBag(100, 512, sparse=True, mode="sum")
model = nn.Sequential(words, Layer())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    loss_of(model, torch.arange(BATCH * 2).view(BATCH, 2)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert profile.trainable_bytes == LAYER_BYTES + 100 * 512 * 4
    sizes = [bucket.gradient_bytes for bucket in profile.buckets]
    assert sizes == [LAYER_BYTES, 16 * 512 * 4 + 16 * 8]  # values and indices of 16 rows
    assert any("1 gradients are sparse" in note for note in profile.assumptions)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_checkpointed_blocks_compute_again_is_backward(scripts: Scripts, reentrant: bool) -> None:
    profile = scripts.profile(
        f"""
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range({LAYERS}))

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant={reentrant})
        return x


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in loader():
    tick()
    loss_of(model, x.requires_grad_()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert_holds_together(profile)
    assert_agrees_with_own_clock(scripts, profile)
    (timing,) = profile.timings
    assert timing.forward_s.p50 == pytest.approx(LAYERS * LAYER_S / 2, rel=0.5)
    assert timing.backward_s.p50 == pytest.approx(LAYERS * LAYER_S * 1.5, rel=0.4)
    assert profile.buckets[0].ready_at == pytest.approx(1 / LAYERS, abs=0.12)


def test_precision_and_a_scaler_s_skipped_steps(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model(2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for step, x in enumerate(loader()):
    tick()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model, x)
    if step % 5 == 4:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
"""
    )
    assert_holds_together(profile, trained_bytes=2 * LAYER_BYTES)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.precision == "float32, autocast bfloat16"
    assert profile.accumulation_count == 1
    assert profile.timings[0].backward_s.p90 < 2 * 2 * LAYER_S  # no two passes taken for one step


def test_batches_of_varying_length_tell_time_by_content(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model(1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = 0
while True:
    step += 1
    length = 1 + step % 5
    loss_of(model, torch.ones(BATCH, length, 512)).backward()
    time.sleep(0.002 * length)
    optimizer.step()
    optimizer.zero_grad()
""",
        batches=(),
    )
    assert_holds_together(profile, trained_bytes=LAYER_BYTES)
    times: dict[int, list[float]] = {}
    for timing in profile.content_timings:
        assert timing.batch == 8
        times.setdefault(timing.element_count, []).append(timing.step_s)
    assert sorted(times) == [8 * 512 * length for length in range(1, 6)]
    assert median(times[8 * 512 * 5]) > median(times[8 * 512]) + 0.005
    assert not any("unstable" in note for note in profile.assumptions)


def test_short_batches_at_the_end_of_an_epoch_do_not_count(scripts: Scripts) -> None:
    profile = scripts.profile(LOOP.replace("loader()", "loader(count=8 * 6 + 3)"), batches=())
    assert_holds_together(profile, batch=8)
    assert profile.content_timings == ()


def test_a_loader_with_workers_leaves_none_behind(scripts: Scripts) -> None:
    from tests.profiling.attach_kit import processes_of

    profile = scripts.profile(LOOP.replace("loader()", "loader(num_workers=2)"))
    assert_holds_together(profile)
    assert processes_of(scripts.folder) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
@pytest.mark.parametrize("compiled", ["model.compile()", "model = torch.compile(model)"])
def test_compilation_is_told_apart_from_steps(scripts: Scripts, compiled: str) -> None:
    profile = scripts.profile(
        f"""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, x):
        return self.last(self.first(x).relu())


model = Model()
{compiled}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step, x in enumerate(loader()):
    tick()
    loss_of(model, x).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 20:
        made = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        broken = len(torch._dynamo.utils.counters["graph_break"])
        open(os.environ["OWN_CLOCK"] + ".made", "w").write(f"{{made}} {{broken}}")
""",
        seconds=120,
    )
    assert_holds_together(profile, trained_bytes=2 * LAYER_BYTES)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.compile_s is not None
    assert profile.compile_s > 0.5
    assert scripts.clock.with_name(scripts.clock.name + ".made").read_text() == "1 0"  # as without us
