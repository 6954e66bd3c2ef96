"""srifty fit on the command line, and what predict says with its model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from srifty.records import ExchangeModel
from srifty.records.files import read, write
from tests.predicting.exchange_kit import session

pytest.importorskip("xgboost", reason="fitting needs xgboost-cpu")
LOG = Path(__file__).parent.parent / "records" / "nccl_tests" / "old_two_nodes.txt"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(session("p3.2xlarge", rate=0.05e9, noise=0.03), tmp_path / "net.json")
    write(session("p3.2xlarge", rate=0.05e9, noise=0.03, factor=1.2, seed=1), tmp_path / "later.json")
    return tmp_path


def test_it_learns_from_files_of_every_kind(files, run):
    status, out, err = run(
        "fit", "--network", "net.json", "later.json", str(LOG), "--instance-type", "p3.8xlarge",
        "-o", "model.json",
    )  # fmt: skip
    assert (status, out) == (0, ""), err
    model = read(files / "model.json", ExchangeModel)
    assert {setup.instance_types for setup in model.setups} == {("p3.2xlarge",), ("p3.8xlarge",)}
    assert model.between_session_log_sd is not None
    assert "from session to session" in err
    assert "written to" in err


def test_predict_and_plan_go_by_the_model(files, run):
    assert run("fit", "--network", "net.json", "-o", "model.json")[0] == 0
    asked = ("predict", "--sample", "resnet50", "--batch", "256", "--on", "4xp3.2xlarge", "--json")
    told = [json.loads(run(*asked, *more)[1]) for more in ((), ("--model", "model.json"))]
    without, with_model = (one["iteration"]["exposed_allreduce_s"]["p50"] for one in told)
    assert with_model > without
    assert any("250 measured exchanges" in said for said in told[1]["assumptions"])
    _, out, _ = run(
        "plan", "--sample", "resnet50", "--samples", "1M", "--batch", "256", "--instance-type", "p3.2xlarge",
        "--goal", "fastest", "--model", "model.json", "--json",
    )  # fmt: skip
    # Over links this slow, one machine is the fastest.
    assert json.loads(out)["cluster"]["groups"][0]["node_count"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), r"give measured exchanges \(--network net.json\) or measured steps"),
        (("--network", "absent.json"), "cannot read absent.json"),
        (("--network", str(LOG)), "does not say on which machines"),
        (("--network", "net.json", "-o", "absent/model.json"), "cannot write .*absent"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_a_line(files, run, arguments, said):
    status, _, err = run("fit", *arguments)
    assert status == 2
    assert re.search(said, err)
    assert "Traceback" not in err
    assert not (files / "model.json").exists()


def test_a_file_that_is_no_model_is_refused(files, run):
    status, _, err = run("predict", "--sample", "resnet50", "--on", "4xp3.2xlarge", "--model", "net.json")
    assert status == 2
    assert "expected 'srifty/exchange_model/1'" in err
