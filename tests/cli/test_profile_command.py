"""srifty profile with a training command behind --, or in a job.toml."""

from __future__ import annotations

import json
import sys

import pytest

SCRIPT = """
import sys
import torch

model = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
assert sys.argv[1] == "--debug"  # the script's, and not ours
while True:
    model(torch.ones(int(sys.argv[2]), 512)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from srifty.profiling import attached_run

    monkeypatch.setattr(attached_run, "STEADY_S", 0.1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_command_behind_dashes_is_profiled(run, folder):
    status, out, err = run(
        "profile", "--batch", "4,2", "-o", "p.json", "--", sys.executable, "train.py", "--debug", "{batch}"
    )
    assert (status, out) == (0, "")
    assert "train on cpu" in err
    profile = json.loads((folder / "p.json").read_text())
    assert [timing["batch"] for timing in profile["timings"]] == [2, 4]
    assert profile["job"]["name"] == "train"
    assert profile["job"]["command"] == [sys.executable, "train.py", "--debug", "{batch}"]
    assert profile["trainable_bytes"] == 512 * 512 * 4 + 512 * 4


def test_a_job_file_may_name_a_command(run, folder):
    command = json.dumps([sys.executable, "train.py", "--debug", "{batch}"])
    (folder / "job.toml").write_text(f'name = "mine"\ncommand = {command}\nbatches = [3]\n')
    status, out, _ = run("profile", "job.toml", "--json")
    assert status == 0
    profile = json.loads(out)
    assert profile["job"]["name"] == "mine"
    assert [timing["batch"] for timing in profile["timings"]] == [3]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--batch", "2,4", "--", "true", "x"], 2, "no argument of the command holds {batch}"),
        (["--batch", "two", "--", "true", "{batch}"], 2, "--batch 'two' is not a whole number"),
        (["--", "no-such-program", "x"], 2, "command not found: 'no-such-program'"),
        (["--", "true"], 2, "no Python process of true could be watched"),
        (["--", "sh", "-c", "exit 7"], 5, "failed with exit status 7"),
        (["--device", "cpu", "--", "true", "x"], 2, "a command chooses its device by itself"),
        (["job.toml", "extra"], 2, "give one job.toml, or one command behind --"),
        (["--batch", "2", "job.toml"], 2, "in a job.toml write batches"),
        (["none.toml"], 2, "none.toml"),
    ],
)
def test_what_is_wrong_is_said_in_a_plain_line(run, folder, arguments, status, said):
    found, out, err = run("profile", *arguments)
    assert (found, out) == (status, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_a_failing_script_s_own_traceback_is_shown(run, folder):
    (folder / "train.py").write_text("raise ValueError('no data here')\n")
    status, _, err = run("profile", "--", sys.executable, "train.py")
    assert status == 5
    assert 'train.py", line 1, in <module>' in err
    assert "it fails without Srifty too" in " ".join(err.split())
