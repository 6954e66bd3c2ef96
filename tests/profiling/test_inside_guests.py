"""Trainers of other libraries, profiled by their own callbacks, and Accelerate with nothing but a block."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from srifty.profiling.inside import profile_steps
from srifty.records import JobProfile
from srifty.records.files import read
from tests.profiling.inside_kit import (
    LAYER_S,
    Layer,
    assert_agrees,
    assert_holds_together,
    loader,
    loss_of,
    make_model,
    nothing_left_on,
    one_thread,
)
from tests.support_torchvision import make_importable

__all__ = ["one_thread"]


def guest(name: str) -> Any:
    """A library that the tests do without where it is not installed."""
    make_importable()  # some look whether torchvision is there, and import it then
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed, an optional guest")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t4.profile.json"


class Tokens(torch.utils.data.Dataset):
    """Sequences of random tokens, as a causal or a classifying model wants them."""

    def __init__(self, label: Any) -> None:
        self.label = label

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.arange(16) + index % 32
        return {"input_ids": tokens, "labels": tokens if self.label is None else self.label}


def train_by_trainer(model: nn.Module, data: Any, folder: Path, callback: Any, **more: Any) -> None:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=4,
        max_steps=16,
        report_to=[],
        save_strategy="no",
        logging_steps=5,
        disable_tqdm=True,
        use_cpu=True,
        **more,
    )
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[callback]).train()


def tiny_gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    return GPT2LMHeadModel(config), Tokens(None)


def tiny_bert() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    return BertForSequenceClassification(config), Tokens(1)


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_bert])
def test_a_transformers_trainer_that_accumulates(path: Path, make: Any) -> None:
    guest("transformers")
    guest("accelerate")
    from srifty.profiling.transformers_callback import TransformersCallback

    model, data = make()
    callback = TransformersCallback(path, name="tiny")
    with nothing_left_on(model):
        train_by_trainer(model, data, path.parent, callback, gradient_accumulation_steps=2)
    profile = assert_holds_together(callback.profile, model)
    assert read(path, JobProfile) == profile
    assert profile.accumulation_count == 2
    assert [timing.batch for timing in profile.timings] == [4]
    assert profile.timings[0].data_wait_s is not None
    assert profile.versions["transformers"]
    assert profile.job.name == "tiny"


def test_a_trainer_s_own_batch_counts_where_data_are_packed(path: Path) -> None:
    """All samples of a batch in one row: the first dimension tells nothing."""
    guest("transformers")
    guest("accelerate")
    from transformers import Trainer, TrainingArguments

    from srifty.profiling.transformers_callback import TransformersCallback

    model, data = tiny_gpt2()

    def pack(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: torch.cat([one[name][:4] for one in samples])[None] for name in samples[0]}

    callback = TransformersCallback(path)
    arguments = TrainingArguments(
        output_dir=str(path.parent), per_device_train_batch_size=4, max_steps=12, report_to=[],
        save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=data, data_collator=pack, callbacks=[callback]).train()
    profile = assert_holds_together(callback.profile, model)
    assert [timing.batch for timing in profile.timings] == [4]


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_under_both_its_names(path: Path, package: str) -> None:
    guest("lightning")
    guest("pytorch_lightning")
    library = guest(package)
    callbacks = importlib.reload(importlib.import_module("srifty.profiling.lightning_callback"))
    boring = importlib.import_module(f"{package}.demos.boring_classes")
    own_step_s: list[float] = []

    class Boring(boring.BoringModel):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.slow = Layer()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return loss_of(self.slow, batch.new_ones(4, 256)) + self.layer(batch).square().mean()

        def train_dataloader(self) -> Any:
            return DataLoader(boring.RandomDataset(32, 1000), batch_size=4)

    class OwnClock(library.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, *given: Any) -> None:
            now = time.perf_counter()
            if hasattr(self, "at"):
                own_step_s.append(now - self.at)
            self.at = now

    model = Boring()
    callback = callbacks.LightningCallback(path, name="boring")
    with nothing_left_on(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = library.Trainer(
            max_steps=24, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, limit_val_batches=2, val_check_interval=10,
            default_root_dir=str(path.parent), callbacks=[callback, OwnClock()],
        )  # fmt: skip
        trainer.fit(model)
        del trainer
    profile = assert_holds_together(callback.profile, model)
    assert_agrees(profile, own_step_s)
    assert profile.accumulation_count == 1
    (timing,) = profile.timings
    assert timing.batch == 4
    assert timing.forward_s.p10 >= LAYER_S / 2
    assert timing.backward_s.p10 >= LAYER_S
    assert timing.data_wait_s is not None


def test_lightning_that_accumulates_and_fails(path: Path) -> None:
    library = guest("lightning.pytorch")
    boring = guest("lightning.pytorch.demos.boring_classes")
    callbacks = importlib.reload(importlib.import_module("srifty.profiling.lightning_callback"))

    class Failing(boring.BoringModel):  # type: ignore[misc, name-defined]
        last = 1000

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == self.last:
                raise ValueError("mine")
            return super().training_step(batch, batch_idx)

        def train_dataloader(self) -> Any:
            return DataLoader(boring.RandomDataset(32, 1000), batch_size=4)

    def fit(model: nn.Module, callback: Any) -> None:
        library.Trainer(
            max_steps=14, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
            accumulate_grad_batches=2, default_root_dir=str(path.parent), callbacks=[callback],
        ).fit(model)  # fmt: skip

    model, callback = Failing(), callbacks.LightningCallback(path)
    model.last = 26
    with warnings.catch_warnings(), nothing_left_on(model):
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="mine"):
            fit(model, callback)
    assert not path.exists()
    model.last = 1000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(model, callback)
    assert assert_holds_together(callback.profile, model).accumulation_count == 2


def test_a_block_around_an_accelerate_loop_that_accumulates(path: Path) -> None:
    accelerate = guest("accelerate")
    plain = make_model(2)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, optimizer, data = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters()), loader(4))
    own_step_s: list[float] = []
    with nothing_left_on(plain), profile_steps(path, name="accelerated") as profiling:
        begin = time.perf_counter()
        for step, x in enumerate(data):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, x))
                optimizer.step()
                optimizer.zero_grad()
            if step % 3 == 2:
                own_step_s.append(time.perf_counter() - begin)
                begin = time.perf_counter()
            if step == 3 * 14:
                break
    profile = assert_holds_together(profiling.profile, plain)
    assert_agrees(profile, own_step_s)
    assert profile.accumulation_count == 3
    (timing,) = profile.timings
    assert timing.batch == 4
    assert timing.data_wait_s is not None
    assert timing.backward_s.p10 >= 2 * LAYER_S
    assert profile.versions["accelerate"]


def test_no_guest_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, json, srifty.profiling.inside; "
        "print(json.dumps([n for n in ('torch', 'lightning', 'transformers', 'accelerate') if n in sys.modules]))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == []


@pytest.mark.parametrize(
    ("module", "missing", "told"),
    [
        (
            "lightning_callback",
            ("lightning", "lightning.pytorch", "pytorch_lightning"),
            "pip install lightning",
        ),
        ("transformers_callback", ("transformers",), "pip install transformers"),
    ],
)
def test_a_guest_that_is_not_installed_is_named(module: str, missing: tuple[str, ...], told: str) -> None:
    code = (
        f"import sys\nfor name in {missing!r}: sys.modules[name] = None\nimport srifty.profiling.{module}\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "InvalidInput" in said.stderr
    assert told in said.stderr
