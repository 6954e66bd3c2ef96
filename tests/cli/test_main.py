"""The command line as people meet it: what goes where, and how it ends when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

import srifty
from srifty.cli.main import main
from srifty.records import Job, JobEstimate, Plan
from srifty.records.files import from_json, write
from tests.conftest import make_profile

PLAN = ("plan", "--sample", "resnet50", "--samples", "1.28M", "--batch", "256")
PREDICT = ("predict", "--sample", "resnet50", "--batch", "256")


def test_a_plan_goes_to_standard_output_and_its_table_to_standard_error(run):
    status, out, err = run(*PLAN, "--within", "12h")
    found = from_json(out, Plan)
    assert status == 0
    assert found.constraints.deadline_s == 12 * 3600
    assert found.job.sample_count == 1_280_000
    assert found.reason.split()[2] in " ".join(err.split())
    assert "Assumed, not measured" in err


def test_a_plan_can_be_picked_apart_by_the_names_that_scripts_rely_on(run):
    fields = json.loads(run(*PLAN)[1])
    group = fields["cluster"]["groups"][0]
    assert group["offer"]["instance_type"]
    assert group["node_count"] >= 1
    assert group["batch_per_gpu"] >= 1
    assert fields["estimate"]["duration_s"]["p50"] > 0
    assert fields["estimate"]["cost_usd"]["p50"] > 0
    assert fields["runners_up"]


def test_with_o_the_plan_is_in_the_file_and_standard_output_is_empty(run, tmp_path):
    status, out, _ = run(*PLAN, "-o", tmp_path / "plan.json")
    assert (status, out) == (0, "")
    assert srifty.read(tmp_path / "plan.json", Plan).cluster.global_batch == 256


def test_epochs_multiply_the_samples(run):
    assert from_json(run(*PLAN, "--epochs", "90")[1], Plan).job.sample_count == 90 * 1_280_000


def test_a_table_fits_eighty_columns(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, _, err = run(*PLAN, "--within", "12h")
    assert max(map(len, err.splitlines())) <= 80


def test_predict_prints_where_the_step_s_time_goes_and_how_sure_it_is(run):
    status, out, err = run(*PREDICT, "--on", "4xg4dn.12xlarge")
    assert status == 0
    assert from_json(out, JobEstimate).iteration.cluster.gpu_count == 16
    for words in ("compute", "exposed exchange", "waiting", "80 % band", "USD an hour", "The job"):
        assert words in " ".join(err.split())


def test_predict_takes_profiles_and_a_mixed_cluster(run, tmp_path):
    for gpu, pace in (("T4", 0.02), ("V100", 0.005)):
        write(make_profile(gpu, pace, job=Job(name="mine", global_batch=64)), tmp_path / f"{gpu}.json")
    status, out, _ = run(
        "predict", tmp_path / "T4.json", tmp_path / "V100.json", "--on", "4xp3.2xlarge,1xg4dn.12xlarge"
    )
    assert status == 0
    assert len(from_json(out, JobEstimate).iteration.cluster.groups) == 2


def test_predict_says_how_long_the_links_inside_and_between_nodes_are_busy(run):
    _, out, err = run(*PREDICT, "--on", "4xg4dn.12xlarge")
    found = from_json(out, JobEstimate).iteration
    assert found.inside_exchange_s.p50 > 0 < found.across_exchange_s.p50
    assert "links inside the nodes, busy" in err
    assert "network between them, busy" in err
    assert "busy" not in run(*PREDICT, "--on", "1xg4dn.xlarge")[2]


def test_an_estimate_written_before_it_named_the_links_can_be_read(run):
    fields = json.loads(run(*PREDICT, "--on", "4xg4dn.12xlarge")[1])
    for part in ("inside_exchange_s", "across_exchange_s"):
        del fields["iteration"][part]
    assert from_json(json.dumps(fields), JobEstimate).iteration.inside_exchange_s is None


@pytest.mark.parametrize(
    "on", ["4xg4dn.12xlarge", "1xg4dn.xlarge", "2xp4d.24xlarge", "4xg4dn.xlarge,1xp3.8xlarge"]
)
def test_a_trace_shows_the_predicted_iteration(run, tmp_path, on):
    status, out, _ = run(*PREDICT, "--on", on, "--trace", tmp_path / "trace.json")
    assert status == 0
    step = from_json(out, JobEstimate).iteration
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in complete) == pytest.approx(1e6 * step.duration_s.p50, rel=0.01)
    for lane in {(e["pid"], e["tid"]) for e in complete}:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in complete if (e["pid"], e["tid"]) == lane)
        assert all(later[0] >= earlier[1] - 1e-3 for earlier, later in pairwise(own))
    assert {e["pid"] for e in complete} == set(range(len(step.cluster.groups)))
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"compute", "exchange"}


def test_a_trace_that_cannot_be_written_is_refused_before_the_work(run, tmp_path):
    status, out, err = run(*PREDICT, "--on", "1xg4dn.xlarge", "--trace", tmp_path / "nowhere" / "trace.json")
    assert (status, out) == (2, "")
    assert "cannot write" in err


def test_a_batch_too_large_for_the_memory_is_accumulated(run):
    found = from_json(run(*PREDICT, "--on", "1xg4dn.xlarge")[1], JobEstimate)
    (group,) = found.iteration.cluster.groups
    assert (group.batch_per_gpu, group.accumulation_count) == (128, 2)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("plan", "none.json", "--samples", "1", "--batch", "1"), 2, "cannot read none.json: no such file"),
        (("plan", ".", "--samples", "1", "--batch", "1"), 2, "is a directory"),
        (("plan",), 2, "give the job's profiles"),
        (("plan", "a.json", "--sample", "resnet50"), 2, "not both"),
        (
            ("plan", "--sample", "resnet51", "--samples", "1", "--batch", "1"),
            2,
            "known are bert-base, resnet18",
        ),
        (("plan", "--sample", "resnet50", "--batch", "256"), 2, "give --samples"),
        (("plan", "--sample", "resnet50", "--samples", "1M"), 2, "give --batch"),
        ((*PLAN[:-1], "0"), 2, "--batch is 0 [samples]; it must be from 1"),
        ((*PLAN[:-1], "-8"), 2, "--batch is -8"),
        ((*PLAN[:-1], "3.5"), 2, "not a whole number"),
        ((*PLAN[:-1], "nan"), 2, "not a whole number"),
        ((*PLAN[:-1], "1e13"), 2, "a whole number of samples from 1 to"),
        ((*PLAN[:4], "0", "--batch", "256"), 2, "--samples is 0"),
        ((*PLAN[:4], "1e300", "--batch", "256"), 2, "--samples"),
        ((*PLAN, "--within", "12"), 2, "with its unit"),
        ((*PLAN, "--within", "soon"), 2, "cannot read --within"),
        ((*PLAN, "--within", "0h"), 2, "leaves no time"),
        ((*PLAN, "--within", "-3h"), 2, "in the past"),
        ((*PLAN, "--within", "2020-01-01T00:00Z"), 2, "in the past"),
        ((*PLAN, "--budget", "0"), 2, "--budget is 0 USD; it must be above 0"),
        ((*PLAN, "--budget", "-5"), 2, "it must be above 0"),
        ((*PLAN, "--budget", "nan"), 2, "as US dollars"),
        ((*PLAN, "--budget", "lots"), 2, "as US dollars"),
        ((*PLAN, "--confidence", "1.0"), 2, "confidence is 1.0"),
        ((*PLAN, "--confidence", "nan"), 2, "confidence is nan"),
        ((*PLAN, "--max-nodes", "0"), 2, "max_nodes is 0"),
        ((*PLAN, "--cloud", "awz"), 2, "did you mean aws"),
        ((*PLAN, "--region", "us-east-11"), 2, "did you mean us-east"),
        ((*PLAN, "--gpu", "V1000"), 2, "did you mean V100"),
        ((*PLAN, "--instance-type", "p3.2xlage"), 2, "did you mean p3.2xlarge"),
        (
            (*PLAN, "--gpu", "H100"),
            3,
            "no offer has a GPU that was measured (measured: A100, T4, V100; offered: H100)",
        ),
        ((*PLAN, "--market", "spot"), 2, "spot machines cannot be planned yet"),
        ((*PLAN, "--catalog", "none.csv"), 2, "none.csv"),
        ((*PLAN, "--within", "1s"), 3, "no cluster keeps to --within 1 s"),
        ((*PLAN, "--budget", "0.01"), 3, "no cluster keeps to --budget 0.01 USD"),
        ((*PLAN[:-1], "2147483647"), 2, "larger than the 1280000 samples"),
        ((*PLAN[:-1], "1000003"), 3, "cannot share 1000003 samples evenly"),
        ((*PLAN[:-1], "1,5M"), 2, "not a whole number"),
        ((*PLAN, "--budget", "1.500,00"), 2, "as US dollars"),
        ((*PLAN[:-1], "9" * 400 + "k"), 2, "not a whole number"),
        ((*PLAN, "--within", "0001-01-01"), 2, "0001-01-01"),
        ((*PLAN, "--within", "12h-6h"), 2, "cannot read --within"),
        ((*PLAN, "--max-gpus", "1", "--instance-type", "p4d.24xlarge"), 3, "more GPUs a machine than 1"),
        (("plan", "--sample", "resnet50", "--batch", "256", "--epochs", "3"), 2, "needs --samples"),
        ((*PREDICT, "--on", "2xp3.2xlarge,2xa2-highgpu-1g"), 2, "no region offers all of"),
        ((*PREDICT, "--on", "16xg4dn.12xlarge,16xg4dn.12xlarge", "--batch", "128"), 2, "batch normalisation"),
        ((*PLAN, "-o", "no/such/folder/plan.json"), 2, "no/such/folder/plan.json: no such file"),
        (PREDICT, 2, "give the machines"),
        ((*PREDICT, "--on", "4xg4dn.12xlage"), 2, "did you mean g4dn.12xlarge"),
        ((*PREDICT, "--on", "0xg4dn.xlarge"), 2, "0 nodes"),
        ((*PREDICT, "--on", "3xg4dn.xlarge"), 2, "cannot be shared evenly by the 3 GPUs"),
        ((*PREDICT, "--on", "1xg5.xlarge"), 3, "GPU A10G was not measured"),
        (("profile", "none.toml"), 2, "none.toml"),
        (("profile", "train.py"), 2, "srifty profile -- python train.py"),
        (("profile", "job.toml", "-o", "no/such/folder/p.json"), 2, "no/such/folder/p.json"),
        (("schema", "plam"), 2, "there is no record 'plam'"),
        (("offers", "--max-price", "0"), 2, "must be above 0"),
        (("nonsense",), 2, "No such command"),
        (("plan", "--nonsense"), 2, "No such option"),
    ],
)
def test_bad_input_gets_a_plain_line_and_its_status(run, monkeypatch, tmp_path, arguments, status, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    found, out, err = run(*arguments)
    assert found == status, err
    assert said in err
    assert "Traceback" not in err
    assert out == ""
    plain = [line for line in err.splitlines() if line.startswith("srifty: ")]
    assert len(plain) <= 2
    assert list(tmp_path.iterdir()) == []


def test_an_infeasible_question_shows_the_nearest_plan(run):
    status, _, err = run(*PLAN, "--within", "1min", "--max-nodes", "2")
    assert status == 3
    assert "Nearest plan, which is NOT feasible" in err
    assert "relax it" in err


def test_debug_shows_the_traceback_wherever_it_stands(capsys, monkeypatch):
    for arguments in (["--debug", "plan"], ["plan", "--debug"]):
        monkeypatch.setattr(sys, "argv", ["srifty", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "Traceback" in capsys.readouterr().err


def test_a_fault_of_our_own_is_one_line_and_says_what_to_do(run, monkeypatch):
    monkeypatch.setattr("srifty.verbs.sample_profiles", lambda job: 1 / 0)
    status, _, err = run(*PLAN)
    assert status == 1
    assert "this is a fault in Srifty: ZeroDivisionError" in err
    assert "--debug" in err


def test_an_edited_profile_is_refused_by_field(run, tmp_path):
    path = tmp_path / "p.json"
    write(make_profile(), path)
    fields = json.loads(path.read_text())
    fields["timings"][0]["batch"] = 0
    path.write_text(json.dumps(fields))
    status, _, err = run("plan", path, "--samples", "1k", "--batch", "8")
    assert status == 2
    assert "timings.0.batch is 0" in err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ("plan --sample resnet50 --samples 1M --batch 256 >/dev/full", 1, "standard output"),
        ("offers >/dev/full", 1, "standard output"),
        ("plan --sample resnet50 --samples 1M --batch 256 -o plan.json >&- 2>&-", 0, ""),
        ("plan --sample resnet50 --samples 1M --batch 256 -o plan.json 2>/dev/full", 0, ""),
        ("plan --sample resnet50 --samples 1M --batch 256 -o plan.json 2>&1 | true", 0, ""),
    ],
)
def test_a_stream_that_takes_nothing_loses_no_record(tmp_path, arguments, status, said):
    command = f"set -o pipefail; {sys.executable} -m srifty {arguments}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if "plan.json" in arguments:
        assert srifty.read(tmp_path / "plan.json", Plan).cluster.global_batch == 256
    else:
        assert done.returncode == status


def test_o_and_a_dash_is_standard_output(run):
    assert from_json(run(*PLAN, "-o", "-")[1], Plan).cluster.global_batch == 256


def test_spot_prices_come_with_a_warning(run):
    _, _, err = run(*PREDICT, "--on", "1xg4dn.xlarge", "--market", "spot")
    assert "may be taken away" in " ".join(err.split())


def test_a_narrow_terminal_still_shows_whole_numbers(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _, _, err = run(*PLAN, "--within", "12h")
    assert "…" not in err
    monkeypatch.setenv("COLUMNS", "0")
    assert "cheapest of" in run(*PLAN)[2]


def test_version_and_help(run):
    assert run("--version")[1].strip() == f"srifty {srifty.__version__}"
    status, out, _ = run("--help")
    assert status == 0
    for verb in ("offers", "profile", "predict", "plan", "schema"):
        assert verb in out


def test_the_module_runs_as_the_program_does():
    done = subprocess.run(
        [sys.executable, "-m", "srifty", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"srifty {srifty.__version__}"


def test_a_reader_that_goes_away_is_no_fault():
    command = f"{sys.executable} -m srifty offers --json | head -c 100"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert len(done.stdout) == 100
    assert done.stderr == "" or "Traceback" not in done.stderr
    assert "fault" not in done.stderr


def test_ctrl_c_ends_a_profile_without_a_half_file(tmp_path):
    pytest.importorskip("torch", reason="a profile needs PyTorch")
    (tmp_path / "work.py").write_text(
        "import os, pathlib, time, torch\n"
        "def make():\n"
        "    model = torch.nn.Linear(8, 1)\n"
        "    def loss(model, data):\n"
        "        pathlib.Path(os.environ['STARTED']).touch()\n"
        "        time.sleep(0.2)\n"
        "        return model(data).sum()\n"
        "    return model, torch.optim.SGD(model.parameters(), 0.1), lambda batch: torch.zeros(batch, 8), loss\n"
    )
    (tmp_path / "job.toml").write_text('name = "slow"\nworkload = "work:make"\nbatches = [2, 4]\n')
    command = [sys.executable, "-m", "srifty", "profile", "job.toml", "-o", "p.json"]
    started = tmp_path.with_name(tmp_path.name + ".started")
    environment = os.environ | {"STARTED": str(started)}
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in err
    assert "Traceback" not in err
    assert sorted(p for p in os.listdir(tmp_path) if p != "__pycache__") == ["job.toml", "work.py"]
