"""Unchanged scripts of less usual kinds: cross-validation, teachers, several optimizers or DDP models, odd ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from srifty.profiling.attached_run import RunResult
from srifty.profiling.observation import Observation
from tests.profiling import attach_kit
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

TORCHRUN = str(Path(sys.executable).parent / "torchrun")


def test_a_new_model_and_optimizer_each_few_steps_follow_the_old_ones(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
for fold in range(1000):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x in loader(count=4 * BATCH):
        tick()
        loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert_holds_together(profile)
    assert profile.total_bytes == MODEL_BYTES
    (timing,) = profile.timings
    assert timing.backward_s.p10 >= LAYERS * LAYER_S
    assert timing.forward_s.sample_count >= 6


@pytest.mark.parametrize("turns", ["12", "1122"])
def test_two_models_alike_that_take_turns_are_not_taken_for_one_after_the_other(
    scripts: Scripts, turns: str
) -> None:
    profile = scripts.profile(
        f"""
models = [make_model(1), make_model(1)]
optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
while True:
    for turn in "{turns}":
        loss_of(models[int(turn) - 1], torch.ones(BATCH, 512)).backward()
        optimizers[int(turn) - 1].step()
        optimizers[int(turn) - 1].zero_grad()
"""
    )
    assert_holds_together(profile, trained_bytes=2 * LAYER_BYTES)


def test_models_that_the_program_drops_are_not_kept_alive_by_us(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
import gc, weakref
seen = []
for fold in range(100):
    model = make_model()
    seen.append(weakref.ref(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x in loader(count=3 * BATCH):
        loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(x)
    gc.collect()
    assert sum(one() is not None for one in seen) <= 2
"""
    )
    assert_holds_together(profile)


def test_a_teacher_without_gradients_is_part_of_forward_and_of_the_model_s_size(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
teacher, student = make_model(), make_model()
optimizer = torch.optim.SGD(student.parameters(), lr=1e-3)
while True:
    for x in loader():
        tick()
        with torch.no_grad():
            wanted = teacher(x)
        (student(x) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert_holds_together(profile)
    assert_agrees_with_own_clock(scripts, profile)
    assert profile.total_bytes == 2 * MODEL_BYTES
    (timing,) = profile.timings
    assert timing.forward_s.p10 >= LAYERS * LAYER_S
    assert timing.other_s is not None
    assert timing.other_s.p50 < LAYER_S


def test_what_is_waited_for_between_calls_without_gradients_is_not_forward(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
policy = make_model()
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
while True:
    for _ in range(3):
        with torch.no_grad():
            policy(torch.ones(1, 512))
        time.sleep(0.01)  # the world takes its step
    loss_of(policy, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    (timing,) = profile.timings
    assert timing.batch == 8
    assert timing.other_s is not None
    assert timing.other_s.p10 >= 0.03
    assert timing.forward_s.p50 == pytest.approx(4 * LAYERS * LAYER_S / 2, rel=0.5)


def test_optimizers_that_step_together_after_several_passes_accumulate(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizers = [torch.optim.SGD(model[0].parameters(), lr=1e-3), torch.optim.Adam(model[1:].parameters())]
while True:
    tick()
    for _ in range(3):
        loss_of(model, torch.ones(BATCH, 512)).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert_holds_together(profile)
    assert profile.accumulation_count == 3
    assert_agrees_with_own_clock(scripts, profile)


def test_two_losses_of_two_models_before_both_steps_do_not_accumulate(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
models = [make_model(1), make_model(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
while True:
    for model in models:
        loss_of(model, torch.ones(BATCH, 512)).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert_holds_together(profile, trained_bytes=3 * LAYER_BYTES)
    assert profile.accumulation_count == 1


DDP = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
"""


def test_several_ddp_models_below_another_tell_their_own_buckets(scripts: Scripts) -> None:
    scripts.write(
        DDP
        + """
class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = DistributedDataParallel(make_model(3))
        self.second = DistributedDataParallel(make_model(1))

    def forward(self, x):
        return self.second(self.first(x))


model = Both()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    loss_of(model, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    profile = scripts.profile(command=[TORCHRUN, "--nproc-per-node", "2", "train.py", "{batch}"])
    assert_holds_together(profile, trained_bytes=4 * LAYER_BYTES)
    sizes = [bucket.gradient_bytes for bucket in profile.buckets]
    assert sizes == [LAYER_BYTES, LAYER_BYTES, 2 * LAYER_BYTES]
    assert not any("does not use DDP" in note for note in profile.assumptions)


def test_a_ddp_model_that_another_calls_exchanges_in_each_micro_step(scripts: Scripts) -> None:
    scripts.write(
        DDP
        + """
class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = DistributedDataParallel(make_model())

    def forward(self, x):
        return self.inner(x)


model = Wrapped()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for _ in range(2):
        loss_of(model, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    profile = scripts.profile(command=[TORCHRUN, "--nproc-per-node", "2", "train.py", "{batch}"])
    assert_holds_together(profile)
    assert profile.accumulation_count == 2
    assert profile.exchanges_every_micro_step


def test_what_a_closure_does_before_it_calls_the_model_is_forward(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def closure():
    time.sleep(0.02)  # augmentation
    optimizer.zero_grad()
    loss = loss_of(model, torch.ones(BATCH, 512))
    loss.backward()
    return loss


while True:
    tick()
    optimizer.step(closure)
"""
    )
    assert_agrees_with_own_clock(scripts, profile)
    (timing,) = profile.timings
    assert timing.forward_s.p10 >= 0.02
    assert timing.optimizer_s.p50 < 0.01


def test_where_a_thread_loads_the_wait_for_it_is_not_known(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
import queue, threading
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
ready = queue.Queue(2)


def fetch():
    for x in loader():
        ready.put(x)


threading.Thread(target=fetch, daemon=True).start()
while True:
    loss_of(model, ready.get()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert_holds_together(profile)
    (timing,) = profile.timings
    assert timing.data_wait_s is None
    assert any("in another thread of the script" in note for note in profile.assumptions)


def test_waiting_for_the_first_batch_is_no_compilation(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
class Late(Samples):
    def __getitem__(self, index):
        if index == 0:
            time.sleep(1.5)
        return torch.ones(512)


model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in DataLoader(Late(), batch_size=BATCH):
    loss_of(model, x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert profile.compile_s is not None
    assert profile.compile_s < 1.0


def test_ddp_itself_is_tried_once_all_else_is_known(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x in loader():
        loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert [bucket.gradient_bytes for bucket in profile.buckets] == [LAYER_BYTES, 3 * LAYER_BYTES]
    assert not any("DDP's rule" in note for note in profile.assumptions)


@pytest.mark.parametrize(
    "why",
    ["it fails in the trial", "it sees that it is distributed", "it has a gradient only now and then"],
)
def test_where_ddp_cannot_be_tried_its_rule_is_taken(scripts: Scripts, why: str) -> None:
    body = {
        "it fails in the trial": """
class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = make_model()
    def forward(self, x):
        import traceback
        if any("distributed.py" in frame.filename for frame in traceback.extract_stack()):
            raise RuntimeError("not in DDP")
        return self.layers(x)
model = Picky()
""",
        "it sees that it is distributed": """
import torch.distributed as dist
model = make_model()
""",
        "it has a gradient only now and then": """
class Moody(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.calls = make_model(), 0
    def forward(self, x):
        self.calls += 1
        return self.layers(x) if self.calls % 3 else self.layers[1:](x)
model = Moody()
""",
    }[why]
    check = 'assert not dist.is_initialized(), "who did that?"' if "sees" in why else "pass"
    profile = scripts.profile(
        body
        + f"""
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    {check}
    loss_of(model, torch.ones(BATCH, 512).requires_grad_()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert_holds_together(profile)
    assert any("could not be tried" in note for note in profile.assumptions)


def test_a_model_with_unused_parameters_is_tried_as_ddp_finds_them(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = make_model(2), make_model(1)

    def forward(self, x):
        return self.used(x)


model = Half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    loss_of(model, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert_holds_together(profile, trained_bytes=3 * LAYER_BYTES)
    assert any("find_unused_parameters" in note for note in profile.assumptions)
    assert not any("DDP's rule" in note for note in profile.assumptions)


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_steps_before_a_sudden_end_are_kept(scripts: Scripts, end: str) -> None:
    scripts.write(
        f"""
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(9):
    loss_of(model, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
{end}
"""
    )
    result = run(scripts)
    assert result.observed is not None
    assert result.observed.reason == "running"
    assert len(result.observed.cuts) >= 6


def test_a_forked_child_that_trains_for_a_few_steps_is_seen(scripts: Scripts) -> None:
    scripts.write(
        """
import multiprocessing


def train():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(9):
        loss_of(model, torch.ones(BATCH, 512)).backward()
        optimizer.step()
        optimizer.zero_grad()


child = multiprocessing.get_context("fork").Process(target=train)
child.start()
child.join()
"""
    )
    assert isinstance(run(scripts).observed, Observation)


def run(scripts: Scripts) -> RunResult:
    return attach_kit.attached_run.run_attached(scripts.command("8"), scripts.folder, seconds=60)


def test_the_wait_for_a_slow_loader_is_still_told(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model(1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in loader():
    loss_of(model, x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    (timing,) = profile.timings
    assert timing.data_wait_s is not None
    assert timing.data_wait_s.p10 >= LOAD_S


def test_a_functional_program_s_tensors_are_counted_once(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
from torch.func import functional_call, grad
model = nn.Linear(8, 8)
values = {name: value.detach() for name, value in model.named_parameters()}


def loss(values, x):
    time.sleep(0.005)
    return functional_call(model, values, (x,)).square().mean()


while True:
    gradients = grad(loss)(values, torch.randn(BATCH, 8))
    values = {name: value - 1e-3 * gradients[name] for name, value in values.items()}
"""
    )
    assert profile.trainable_bytes == 288


def test_a_data_set_that_is_made_anew_each_epoch_is_one(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
from torch.utils.data import TensorDataset
model = make_model(1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for (x,) in DataLoader(TensorDataset(torch.ones(6 * BATCH, 512)), batch_size=BATCH):
        loss_of(model, x).backward()
        loss_of(model, x + 1e-3).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    )
    assert profile.accumulation_count == 1
    assert [timing.batch for timing in profile.timings] == [8]
    assert any("2 backward passes in a step" in note for note in profile.assumptions)


def test_a_row_that_a_sparse_gradient_names_twice_is_exchanged_once(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = nn.Sequential(nn.Embedding(1000, 16, sparse=True), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    loss_of(model, torch.zeros(BATCH, 50, dtype=torch.long)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert 16 * 4 + 8 in [bucket.gradient_bytes for bucket in profile.buckets]


def test_packed_sequences_count_as_samples(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
from torch.nn.utils.rnn import pack_sequence


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(8, 8)

    def forward(self, packed):
        return self.inner(packed)[1][0]


model = Recurrent()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    lengths = torch.randint(5, 60, (18,)).tolist()
    packed = pack_sequence([torch.randn(length, 8) for length in lengths], enforce_sorted=False)
    loss_of(model, packed).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        batches=(),
    )
    assert [timing.batch for timing in profile.timings] == [18]


def test_optimizers_that_step_inside_the_backward_pass_are_noted(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizers = {one: torch.optim.SGD([one], lr=1e-3) for one in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for one in model.parameters():
    one.register_post_accumulate_grad_hook(update)
while True:
    loss_of(model, torch.ones(BATCH, 512)).backward()
"""
    )
    assert_holds_together(profile)
    assert any("inside the backward pass" in note for note in profile.assumptions)
    (timing,) = profile.timings
    assert timing.backward_s.p10 >= LAYERS * LAYER_S


def test_a_model_that_takes_another_s_place_is_measured_alone(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
trunk, head = make_model(1), nn.Linear(512, 10)
model = nn.Sequential(trunk, nn.Linear(512, 20_000))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(200):
    if step == 10:
        model = nn.Sequential(trunk, head)
        optimizer = torch.optim.AdamW(model.parameters())
    loss_of(model, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert_holds_together(profile, trained_bytes=LAYER_BYTES + 512 * 10 * 4 + 10 * 4)
    assert profile.checkpoint_bytes is not None
    assert profile.checkpoint_bytes < 4 * profile.trainable_bytes


def test_parts_that_are_trained_by_turns_are_all_counted_and_noted(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(1000):
    for parameter in model[0].parameters():
        parameter.requires_grad_(step % 2 == 0)
    loss_of(model, torch.ones(BATCH, 512).requires_grad_()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert_holds_together(profile)
    assert any("not the same parameters are trained in each step" in note for note in profile.assumptions)


def test_a_scaler_that_leaves_out_every_step_is_noted(scripts: Scripts) -> None:
    profile = scripts.profile(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
while True:
    scaler.scale(loss_of(model, torch.full((BATCH, 512), float("inf")))).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    )
    assert any("a gradient scaler left out" in note for note in profile.assumptions)


def test_a_folder_that_is_there_can_be_renamed(scripts: Scripts) -> None:
    (scripts.folder / "last").mkdir()
    (scripts.folder / "last" / "model.pt").write_text("old")
    scripts.profile(
        """
os.rename("last", "before")
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    loss_of(model, torch.ones(BATCH, 512)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    assert (scripts.folder / "last" / "model.pt").read_text() == "old"
