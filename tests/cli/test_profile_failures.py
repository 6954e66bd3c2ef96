"""srifty profile of a script that fails after good steps: what was measured is kept, and the status is 5."""

from __future__ import annotations

import json
import sys

import pytest

SCRIPT = """
import sys
import torch

model = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(9):
    model(torch.ones(int(sys.argv[1]), 512)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
raise ValueError("after nine")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def test_it_is_written_where_it_was_asked_for(run, script):
    status, out, err = run("profile", "-o", "p.json", "--", sys.executable, "train.py", "4")
    said = " ".join(err.split())
    assert (status, out) == (5, "")
    assert 'train.py", line 11, in <module>' in said
    assert "it fails without Srifty too; a profile of what was measured before, batch 4, is in" in said
    profile = json.loads((script.parent / "p.json").read_text())
    assert [timing["batch"] for timing in profile["timings"]] == [4]
    assert any(
        "which are kept, the script failed with exit status 1 (ValueError: after nine)" in note
        for note in profile["assumptions"]
    )


def test_it_is_on_standard_output_with_json_and_nowhere_without(run, script):
    status, out, _ = run("profile", "--json", "--", sys.executable, "train.py", "4")
    assert status == 5
    assert json.loads(out)["max_batch"] == 4
    status, out, err = run("profile", "--", sys.executable, "train.py", "4")
    assert (status, out) == (5, "")
    assert "batch 4, can be had with -o FILE" in " ".join(err.split())


def test_a_file_that_is_no_record_is_not_overwritten(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('mine')\n")
    status, _, err = run("profile", "-o", "train.py", "--", "python", "train.py")
    assert status == 2
    assert "no file of Srifty's" in err
    assert (tmp_path / "train.py").read_text() == "print('mine')\n"
