"""Real exchanges of gloo between ranks that torchrun starts; nobody waits for ever, nothing half-written stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import srifty
from srifty.errors import InvalidInput
from srifty.records import NetworkProfile

pytest.importorskip("torch", reason="exchanges are measured with PyTorch")
ENDLESS = str(Path(__file__).parent / "endless_probe.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


@pytest.fixture
def environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    return os.environ | {"OMP_NUM_THREADS": "1"}


def start(ranks, folder, environment, *options, program=("-m", "srifty")):
    return subprocess.Popen(
        [*TORCHRUN, f"--nproc-per-node={ranks}", *program, "probe", "-o", "net.json", *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process, seconds=60):
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def when_ranks_measure(process, folder):
    """Process ids of the ranks, once they exchange."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        if (folder / "measuring").exists():
            (folder / "measuring").unlink()
            return children(process.pid)
        time.sleep(0.1)
    raise AssertionError("the ranks did not meet")


def test_three_ranks_measure_each_other(tmp_path, environment):
    options = ("--max-seconds", "4", "--max-mib", "4", "--instance-type", "mini")
    process = start(3, tmp_path, environment, *options)
    output = ended(process)
    assert process.returncode == 0, output
    profile = srifty.read(tmp_path / "net.json", NetworkProfile)
    assert {sample.gpu_count for sample in profile.samples} == {2, 3}
    assert {sample.node_count for sample in profile.samples} == {1}
    assert {sample.backend for sample in profile.samples} == {"gloo"}
    assert {sample.instance_types for sample in profile.samples} == {("mini",)}
    assert all(sample.backend_version.startswith("torch 2.") for sample in profile.samples)
    assert set(profile.versions) == {"torch", "gloo"}
    sizes = {sample.message_bytes for sample in profile.samples}
    assert min(sizes) == 2**10
    assert max(sizes) <= 4 * 2**20
    assert max(sample.repeat for sample in profile.samples) >= 2
    assert os.listdir(tmp_path) == ["net.json"]
    assert output.count("AllReduce on mini") == 1  # one rank speaks


def test_it_starts_its_own_ranks_where_nobody_did(tmp_path, environment):
    command = [
        sys.executable,
        "-m",
        "srifty",
        "probe",
        "--ranks",
        "2",
        "--max-seconds",
        "2",
        "--max-mib",
        "1",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"format": "srifty/network_profile/1"' in done.stdout


def test_a_rank_that_is_killed_ends_all_and_leaves_nothing(tmp_path, environment):
    process = start(3, tmp_path, environment, program=(ENDLESS,))
    os.kill(when_ranks_measure(process, tmp_path)[-1], signal.SIGKILL)
    since = time.monotonic()
    output = ended(process)
    assert process.returncode != 0
    assert time.monotonic() - since < 45
    assert "nothing was written" in output
    assert os.listdir(tmp_path) == []


def test_ctrl_c_ends_all_and_leaves_nothing(tmp_path, environment):
    process = start(2, tmp_path, environment, program=(ENDLESS,))
    when_ranks_measure(process, tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process
    output = ended(process)
    assert process.returncode != 0
    assert "nothing was written" in output
    assert os.listdir(tmp_path) == []


def test_it_stops_in_time_whatever_is_left_to_measure(tmp_path, environment):
    """A benchmark that ran on and on while the bill grew (skypilot issue 2557)."""
    process = start(2, tmp_path, environment, "--max-seconds", "2")
    began = time.monotonic()
    output = ended(process)
    assert process.returncode == 0, output
    assert time.monotonic() - began < 40  # starting Python and torch on a busy machine included
    assert srifty.read(tmp_path / "net.json", NetworkProfile).samples


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path, environment):
    command = [*TORCHRUN, "--nproc-per-node=2", "-m", "srifty", "probe", "-o", "absent/net.json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "cannot write" in done.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "one rank has no one to exchange with.*torchrun --nproc-per-node 4"),
        ({"max_seconds": 0.0}, r"--max-seconds is 0 \[s\]; it must lie between 1 and"),
        ({"max_seconds": float("nan")}, "--max-seconds is nan"),
        ({"backend": "mpi"}, "backend 'mpi' is not measured; there are nccl and gloo"),
    ],
)
@pytest.mark.usefixtures("environment")
def test_what_cannot_be_measured_is_said_before_it_starts(asked, said):
    with pytest.raises(InvalidInput, match=said):
        srifty.probe(**asked)


def test_nccl_without_a_gpu_is_said(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(InvalidInput, match="nccl needs a GPU for each rank: this is rank 1"):
        srifty.probe(backend="nccl")


def own_ranks(folder, environment, *options):
    """`srifty probe --ranks 2`, with a folder for temporary files of its own."""
    (folder / "tmp").mkdir(exist_ok=True)
    without = {name: value for name, value in environment.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [sys.executable, "-m", "srifty", "probe", "--ranks", "2", *options],
        cwd=folder,
        env=without | {"TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-seconds", "0"), "--max-seconds is 0"),
        (("--max-seconds", "nan"), "--max-seconds is nan"),
        (("--max-seconds", "inf"), "--max-seconds is inf"),
        (("--backend", "mpi"), "backend 'mpi' is not measured"),
        (("-o", "absent/net.json"), "cannot write"),
        (("-o", "tmp"), "is a directory"),
    ],
)
def test_a_mistake_ends_before_own_ranks_start_in_a_line_with_status_2(tmp_path, environment, options, said):
    process = own_ranks(tmp_path, environment, *options)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert os.listdir(tmp_path) == ["tmp"]
    assert os.listdir(tmp_path / "tmp") == []


def test_own_ranks_leave_no_folder_and_no_banner(tmp_path, environment):
    process = own_ranks(tmp_path, environment, "--max-seconds", "1", "--max-mib", "1", "-o", "net.json")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, ""), err
    assert "OMP_NUM_THREADS" not in err
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")],
)
def test_own_ranks_end_with_the_program_in_a_line(tmp_path, environment, number, status, said):
    process = own_ranks(tmp_path, environment, "--max-seconds", "60", "-o", "net.json")
    deadline = time.monotonic() + 40
    while len(ranks := children(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert [line for line in err.splitlines() if line] == [f"srifty: {said}; nothing was written"]
    assert os.listdir(tmp_path) == ["tmp"]
    assert os.listdir(tmp_path / "tmp") == []
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


def test_another_rank_that_is_killed_is_named(tmp_path, environment):
    process = own_ranks(tmp_path, environment, "--max-seconds", "60", "-o", "net.json")
    deadline = time.monotonic() + 40
    while len(ranks := children(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(max(ranks), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "nothing was written" in err
    assert "Traceback" not in err


def test_ranks_are_not_started_by_two_launchers(tmp_path, environment):
    process = own_ranks(tmp_path, environment | {"WORLD_SIZE": "2"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "WORLD_SIZE=2 says that another launcher has" in err


def test_nccl_for_more_ranks_than_gpus_is_said_before_they_start(monkeypatch):
    from srifty.verbs import start_ranks

    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(InvalidInput, match="2 ranks were asked for, and this machine has 1"):
        start_ranks(2, ["probe"], backend="nccl", max_seconds=10)
