"""Unchanged scripts that train the models which people train, by name: what their profiles must hold.

Every script tells a file what is true of its model, as it knows it: bytes, parameters without a gradient, and how
long its own steps took. Counts and bytes must be met exactly; times only roughly, since machines are shared.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from srifty.records import JobProfile
from tests.profiling.attach_kit import Scripts, scripts, step_s

__all__ = ["scripts"]

ROOT = Path(__file__).resolve().parents[2]
LONGEST_RUN_S = 60
"""Where a busy machine is slower, the profile rests on fewer steps."""

PREAMBLE = f"""
import json, os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.support_torchvision import make_importable
make_importable()
sys.path.pop(0)
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
BATCH = int(sys.argv[1])


class Images(Dataset):
    def __init__(self, pixels):
        self.image = torch.randn(3, pixels, pixels)

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.image, index % 10


class Tokens(Dataset):
    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        tokens = (torch.arange(self.length) + index) % 97
        return {{"input_ids": tokens, "labels": tokens}}


def tell(model, **more):
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    truth = dict(
        total=sum(p.numel() * p.element_size() for p in parameters),
        trained=sum(p.numel() * p.element_size() for p in trained),
        silent=sum(p.grad is None for p in trained),
        **more,
    )
    with open(os.environ["OWN_CLOCK"] + ".truth", "w") as file:
        json.dump(truth, file)


def gpt2(**more):
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=97, n_positions=32, n_embd=64, n_layer=4, n_head=4, pad_token_id=0, **more)
    )


def bert_config():
    from transformers import BertConfig
    return BertConfig(
        vocab_size=97, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64,
    )


def train(model, data, loss_of, optimizer=None):
    # The loop of most scripts; the first step tells what is true of the model.
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    last = None
    while True:
        for batch in data:
            now = time.perf_counter()
            if last is None:
                loss_of(model, batch).backward()
                tell(model)
                optimizer.zero_grad()
            else:
                with open(os.environ["OWN_CLOCK"], "a") as file:
                    file.write(f"{{now - last}}\\n")
            last = time.perf_counter()
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()


def of_classes(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def of_main_output(model, batch):
    return F.cross_entropy(model(batch[0]).logits, batch[1])


def of_text(model, batch):
    return model(**batch).loss
"""


@dataclass(frozen=True)
class Case:
    """A script, and what must be said of it besides."""

    script: str
    trained_bytes: int | None = None
    batch: int = 2
    silent_count: int = 0


def images(model: str, pixels: int, loss: str = "of_classes") -> str:
    return f"train({model}, DataLoader(Images({pixels}), batch_size=BATCH), {loss})"


def text(model: str, loss: str = "of_text") -> str:
    return f"train({model}, DataLoader(Tokens(), batch_size=BATCH), {loss})"


VISION = "import torchvision.models as models\n"
TIMM = "import timm\n"
CASES = {
    "resnet50": Case(VISION + images("models.resnet50(weights=None)", 64), 102_228_128),
    "vgg19": Case(VISION + images("models.vgg19(weights=None)", 32), 574_668_960),
    "squeezenet": Case(VISION + images("models.squeezenet1_1(weights=None)", 64), 4_941_984),
    "alexnet": Case(VISION + images("models.alexnet(weights=None)", 64), 244_403_360),
    "inception_v3, main output": Case(
        VISION + images("models.inception_v3(weights=None, init_weights=False)", 299, "of_main_output"),
        108_645_056,
        silent_count=8,
    ),
    "googlenet, main output": Case(
        VISION + images("models.googlenet(weights=None, init_weights=False)", 64, "of_main_output"),
        52_019_552,
        silent_count=14,
    ),
    "a vision transformer of timm": Case(
        TIMM + images("timm.create_model('vit_tiny_patch16_224', img_size=32, num_classes=10)", 32)
    ),
    "resnet18 with a frozen backbone": Case(
        VISION + "model = models.resnet18(weights=None).requires_grad_(False)\n"
        "model.fc = nn.Linear(512, 10)\n" + images("model", 64),
        (512 * 10 + 10) * 4,
    ),
    "GPT-2, tied": Case(text("gpt2()"), batch=4),
    "GPT-2, checkpointed": Case(
        "model = gpt2()\n"
        "model.gradient_checkpointing_enable({'use_reentrant': False})\nmodel.train()\n" + text("model")
    ),
    "GPT-2, checkpointed, re-entrant": Case(
        "model = gpt2()\n"
        "model.gradient_checkpointing_enable({'use_reentrant': True})\nmodel.train()\n" + text("model")
    ),
    "BERT for masked words": Case(
        "from transformers import BertForMaskedLM\n" + text("BertForMaskedLM(bert_config())"), batch=4
    ),
    "BERT without its pooler's output": Case(
        "from transformers import BertModel\n"
        "def of_hidden(model, batch):\n"
        "    return model(batch['input_ids']).last_hidden_state.square().mean()\n"
        + text("BertModel(bert_config())", "of_hidden"),
        silent_count=2,
    ),
}


def profiled(
    scripts: Scripts, body: str, *, batch: int = 2, **more: Any
) -> tuple[JobProfile, dict[str, Any]]:
    """The profile of a script, and what the script has told."""
    scripts.folder.joinpath("train.py").write_text(PREAMBLE + body)
    profile = scripts.profile(batches=(batch,), **{"seconds": LONGEST_RUN_S, **more})
    told = scripts.clock.with_name(scripts.clock.name + ".truth").read_text()
    return profile, json.loads(told)


def assert_true(profile: JobProfile, truth: dict[str, Any], *, batch: int) -> None:
    """What holds for every model."""
    assert [timing.batch for timing in profile.timings] == [batch]
    assert profile.trainable_bytes == truth["trained"]
    assert profile.total_bytes == truth["total"]
    assert sum(bucket.gradient_bytes for bucket in profile.buckets) == truth["trained"]
    ready = [bucket.ready_at for bucket in profile.buckets]
    assert ready == sorted(ready)
    silent = [note for note in profile.assumptions if "trainable parameters get no gradient" in note]
    assert len(silent) == (truth["silent"] > 0)
    assert all(note.startswith(f"{truth['silent']} ") for note in silent)
    (timing,) = profile.timings
    assert timing.forward_s.p10 > 0
    assert timing.backward_s.p10 > 0


def assert_agrees_with_own_clock(scripts: Scripts, profile: JobProfile) -> None:
    """Phases add up to a step as the script itself saw it, by what most of its steps took."""
    own = sorted(scripts.own_step_s())
    few = len(own) // 10
    assert 0.8 * own[few] <= step_s(profile) <= 1.25 * own[-1 - few]


@pytest.mark.usefixtures("with_torchvision")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_model_that_people_train_is_profiled_unchanged(scripts: Scripts, case: Case) -> None:
    for guest in ("timm", "transformers"):
        if guest in case.script or ("gpt2" in case.script and guest == "transformers"):
            pytest.importorskip(guest)
    profile, truth = profiled(scripts, case.script, batch=case.batch)
    assert_true(profile, truth, batch=case.batch)
    assert_agrees_with_own_clock(scripts, profile)
    assert truth["silent"] == case.silent_count
    if case.trained_bytes is not None:
        assert profile.trainable_bytes == case.trained_bytes
    assert profile.accumulation_count == 1
    assert profile.precision == "float32"
    assert profile.content_timings == ()
    assert profile.timings[0].data_wait_s is not None


def test_backward_is_longer_where_blocks_are_computed_again(scripts: Scripts) -> None:
    pytest.importorskip("transformers")
    shares = []
    for again in (False, True):
        body = "model = gpt2()\nmodel.train()\n"
        if again:
            body += "model.gradient_checkpointing_enable({'use_reentrant': False})\n"
        profile, _ = profiled(scripts, body + text("model"), batch=16)
        (timing,) = profile.timings
        shares.append(timing.backward_s.p50 / (timing.forward_s.p50 + timing.backward_s.p50))
    assert shares[1] > shares[0]


def test_a_trainer_of_transformers_accumulates(scripts: Scripts) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    profile, truth = profiled(
        scripts,
        """
from transformers import BertForMaskedLM, Trainer, TrainingArguments
model = BertForMaskedLM(bert_config())
(model(**{k: v[None] for k, v in Tokens()[0].items()}).loss).backward()
tell(model)
model.zero_grad()
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=BATCH, gradient_accumulation_steps=3, max_steps=10_000,
    report_to=[], save_strategy="no", logging_steps=5, disable_tqdm=True, use_cpu=True,
)
Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
""",
    )
    assert_true(profile, truth, batch=2)
    assert profile.accumulation_count == 3
    assert not profile.exchanges_every_micro_step
    assert not (scripts.folder / "out").exists() or any("out" in note for note in profile.assumptions)


def test_lightning_s_boring_model(scripts: Scripts) -> None:
    pytest.importorskip("lightning")
    profile, truth = profiled(
        scripts,
        """
import lightning as L
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

class Boring(BoringModel):
    def train_dataloader(self):
        return DataLoader(RandomDataset(32, 100_000), batch_size=BATCH)

model = Boring()
model(torch.ones(1, 32)).sum().backward()
tell(model)
model.zero_grad()
L.Trainer(
    max_steps=10_000, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, limit_val_batches=0,
).fit(model)
""",
        batch=4,
    )
    assert_true(profile, truth, batch=4)
    assert profile.trainable_bytes == (32 * 2 + 2) * 4
    assert profile.accumulation_count == 1
    assert profile.timings[0].data_wait_s is not None


def test_random_tokens_without_a_loader_in_micro_steps(scripts: Scripts) -> None:
    pytest.importorskip("transformers")
    profile, truth = profiled(
        scripts,
        """
model = gpt2()
optimizer = torch.optim.AdamW(model.parameters())
is_told = False
while True:
    for _ in range(4):
        tokens = torch.randint(97, (BATCH, 16))
        (model(input_ids=tokens, labels=tokens).loss / 4).backward()
    if not is_told:
        is_told = True
        tell(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
        batch=3,
    )
    assert_true(profile, truth, batch=3)
    assert profile.accumulation_count == 4
    assert profile.timings[0].data_wait_s is None
    assert profile.checkpoint_bytes is not None
    assert 3 * truth["trained"] <= profile.checkpoint_bytes < 3.1 * truth["trained"]


def test_two_optimizers_with_three_backward_passes_a_step(scripts: Scripts) -> None:
    profile, truth = profiled(
        scripts,
        """
makes = nn.Sequential(
    nn.ConvTranspose2d(16, 32, 4), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()
)
judges = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4))
of_makes = torch.optim.Adam(makes.parameters(), lr=2e-4)
of_judges = torch.optim.Adam(judges.parameters(), lr=2e-4)
is_told = False
for real, _ in DataLoader(Images(8), batch_size=BATCH):
    of_judges.zero_grad()
    judges(real).sigmoid().log().mean().neg().backward()
    fake = makes(torch.randn(len(real), 16, 1, 1))
    (1 - judges(fake.detach()).sigmoid()).log().mean().neg().backward()
    of_judges.step()
    of_makes.zero_grad()
    judges(fake).sigmoid().log().mean().neg().backward()
    if not is_told:
        is_told = True
        tell(nn.ModuleList([makes, judges]))
    of_makes.step()
""",
        batch=8,
    )
    assert_true(profile, truth, batch=8)
    assert profile.accumulation_count == 1


def test_words_with_sparse_gradients_are_exchanged_by_the_rows_that_occur(scripts: Scripts) -> None:
    profile, truth = profiled(
        scripts,
        """
class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.context = nn.Embedding(5000, 32, sparse=True), nn.Embedding(5000, 32, sparse=True)
        self.scale = nn.Linear(1, 1)

    def forward(self, word, near):
        return self.scale((self.words(word) * self.context(near)).sum(-1, keepdim=True))


model = SkipGram()
word, near = torch.arange(BATCH), torch.arange(BATCH) + 100
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(word, near).mean().backward()
tell(model)
optimizer.zero_grad()
while True:
    model(word, near).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        batch=16,
    )
    assert profile.trainable_bytes == truth["trained"] == 2 * 5000 * 32 * 4 + 8
    assert sorted(bucket.gradient_bytes for bucket in profile.buckets) == [8, *2 * [16 * (32 * 4 + 8)]]
    assert any("2 gradients are sparse" in note for note in profile.assumptions)


@pytest.mark.usefixtures("with_torchvision")
def test_autocast_is_told_beside_the_type_of_the_parameters(scripts: Scripts) -> None:
    profile, truth = profiled(
        scripts,
        VISION
        + """
def in_half(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(batch[0]), batch[1])

"""
        + images("models.squeezenet1_1(weights=None)", 64, "in_half"),
    )
    assert_true(profile, truth, batch=2)
    assert profile.precision == "float32, autocast bfloat16"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_a_compiled_vision_transformer_tells_compilation_apart(scripts: Scripts) -> None:
    pytest.importorskip("timm")
    model = "timm.create_model('vit_tiny_patch16_224', img_size=32, num_classes=10, depth=1, embed_dim=48, num_heads=3)"
    profile, truth = profiled(
        scripts, TIMM + images(f"torch.compile({model})", 32), batch=4, seconds=3 * LONGEST_RUN_S
    )
    assert_true(profile, truth, batch=4)
    assert profile.compile_s is not None
    assert profile.compile_s > 10 * step_s(profile)


def test_sentences_of_varying_length_tell_time_by_content(scripts: Scripts) -> None:
    pytest.importorskip("transformers")
    profile, truth = profiled(
        scripts,
        """
from transformers import BertForMaskedLM

def padded(samples):
    length = int(torch.randint(8, 33, ()))
    tokens = torch.randint(97, (len(samples), length))
    return {"input_ids": tokens, "labels": tokens}

train(BertForMaskedLM(bert_config()), DataLoader(Tokens(), batch_size=BATCH, collate_fn=padded), of_text)
""",
        batch=8,
    )
    assert_true(profile, truth, batch=8)
    lengths = {timing.element_count / 8 for timing in profile.content_timings}
    assert len(lengths) >= 5
    assert min(lengths) >= 8
    assert max(lengths) <= 32
