"""Every way in which a training script is started: the probe gets in, finds the trainer and ends all of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from srifty.errors import InvalidInput
from tests.profiling.attach_kit import (
    LAYER_BYTES,
    Scripts,
    assert_agrees_with_own_clock,
    assert_holds_together,
    processes_of,
    scripts,
)

__all__ = ["scripts"]

LOOP = """
def main():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        for x in loader():
            tick()
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
"""
MAIN = LOOP + "\n\nif __name__ == '__main__':\n    main()\n"
RANKS = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    for x in loader():
        tick()
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()
"""


def test_a_module_behind_m(scripts: Scripts) -> None:
    package = scripts.folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    scripts.write(MAIN, "package/train.py")
    profile = scripts.profile(command=[sys.executable, "-m", "package.train", "{batch}"])
    assert_holds_together(profile)


def test_a_shell_script(scripts: Scripts) -> None:
    scripts.write(MAIN)
    (scripts.folder / "run.sh").write_text(f"echo starting\n{sys.executable} train.py $1\necho ended\n")
    profile = scripts.profile(command=["bash", "run.sh", "{batch}"])
    assert_holds_together(profile)


def test_a_console_entry_point(scripts: Scripts) -> None:
    scripts.write(LOOP, "trainer.py")
    program = scripts.folder / "start-training"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, '')\nfrom trainer import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    profile = scripts.profile(command=["./start-training", "{batch}"])
    assert_holds_together(profile)


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ([str(Path(sys.executable).with_name("torchrun"))], 2),
        ([sys.executable, "-m", "torch.distributed.run"], 1),
    ],
    ids=["torchrun", "module"],
)
def test_ranks_under_a_launcher(scripts: Scripts, launcher: list[str], ranks: int) -> None:
    scripts.write(RANKS)
    profile = scripts.profile(
        command=[*launcher, "--standalone", f"--nproc-per-node={ranks}", "train.py", "{batch}"]
    )
    assert_holds_together(profile)
    assert [bucket.gradient_bytes for bucket in profile.buckets] == [LAYER_BYTES, 3 * LAYER_BYTES]
    if ranks == 1:
        assert_agrees_with_own_clock(scripts, profile)
    else:
        assert any("2 ranks trained at once" in note for note in profile.assumptions)
    assert processes_of(scripts.folder) == []


def test_processes_that_the_script_spawns_itself(scripts: Scripts) -> None:
    profile = scripts.profile(
        LOOP
        + """
def work(rank):
    main()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=1)
"""
    )
    assert_holds_together(profile)
    assert processes_of(scripts.folder) == []


def test_a_trainer_that_was_forked(scripts: Scripts) -> None:
    profile = scripts.profile(
        LOOP
        + """
import multiprocessing

if __name__ == "__main__":
    loss_of(make_model(1), torch.ones(1, 512)).backward()  # the parent has stepped too, in a way
    trainer = multiprocessing.get_context("fork").Process(target=main)
    trainer.start()
    trainer.join()
"""
    )
    assert_holds_together(profile)


def test_the_user_s_own_sitecustomize_runs_too(scripts: Scripts, monkeypatch: pytest.MonkeyPatch) -> None:
    site = scripts.folder.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = __file__\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    profile = scripts.profile(
        "import sitecustomize\nassert customized == sitecustomize.__file__\n"
        "assert not any('srifty' in path for path in sys.path[:2])\n" + MAIN
    )
    assert_holds_together(profile)


def test_accelerate(scripts: Scripts) -> None:
    pytest.importorskip("accelerate")
    scripts.write(
        """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
while True:
    for x in batches:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, x))
            optimizer.step()
            optimizer.zero_grad()
"""
    )
    profile = scripts.profile(
        command=[sys.executable, "-m", "accelerate.commands.launch", "--cpu", "train.py", "{batch}"]
    )
    assert_holds_together(profile)
    assert profile.accumulation_count == 2


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-I"],
        [sys.executable, "-E"],
        ["env", "-i", f"PATH={os.environ['PATH']}", sys.executable],
    ],
)
def test_where_the_environment_does_not_arrive_that_is_said(scripts: Scripts, command: list[str]) -> None:
    (scripts.folder / "train.py").write_text("import sys\nprint('nothing')\n")
    with pytest.raises(InvalidInput, match="no Python process .* could be watched .* env -i"):
        scripts.profile(command=[*command, "train.py"], batches=())
