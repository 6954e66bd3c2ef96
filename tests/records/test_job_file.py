"""job.toml: what it may hold, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from srifty.errors import InvalidInput
from srifty.records import Job
from srifty.records.job_file import read_job


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_job_file_holds_the_fields_of_a_job_by_name(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        'name = "gpt"\nworkload = "pack.train:make"\ncommand = ["python", "train.py"]\nbatches = [2, 4]\n'
        "global_batch = 256\nsample_count = 1_000_000\n",
    )
    assert read_job(path) == Job(
        name="gpt",
        workload="pack.train:make",
        command=("python", "train.py"),
        batches=(2, 4),
        global_batch=256,
        sample_count=1_000_000,
    )


def test_every_example_has_a_job_file_that_can_be_read() -> None:
    paths = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*/*.toml"))
    assert len(paths) >= 5
    for path in paths:
        assert read_job(path).workload is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = gpt", "is not TOML: invalid value (at line 1, column 8)"),
        ('name = "a"\nbatchs = [1]', "unknown field 'batchs'; did you mean 'batches'?"),
        ('name = "a"\nzzz = 1', "unknown field 'zzz'; allowed are name, workload, command"),
        ("batches = [1]", "field 'name' is missing"),
        ('name = ""', "name is ''"),
        ('name = "a"\nbatches = [2, 0]', "batches.1 is 0: input should be greater than or equal to 1"),
        ('name = "a"\nbatches = 4', "batches is 4"),
        ('name = "a"\nbatches = ["4"]', "batches.0 is '4': input should be a valid integer"),
        ('name = "a"\nglobal_batch = 2.5', "global_batch is 2.5"),
        ('name = "a"\nglobal_batch = true', "global_batch is True"),
        ('name = "a"\nglobal_batch = nan', "global_batch"),
        ('name = "a"\nsample_count = 2026-01-01', "sample_count is '2026-01-01'"),
        ('name = "a"\nworkload = "train.py"', "workload is 'train.py': expected 'module:function'"),
        ('name = "a"\nworkload = "a:b:c"', "workload is 'a:b:c': expected 'module:function'"),
        ('name = "a"\nworkload = 5', "workload is 5"),
        ('name = "a"\nsample_count = 1\nstep_count = 1', "give sample_count or step_count, not both"),
        ("", "field 'name' is missing"),
    ],
)
def test_what_is_wrong_in_a_job_file_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(InvalidInput) as caught:
        read_job(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert said in message
    assert "\n" not in message


def test_a_job_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*nothing\.toml: no such file"):
        read_job(tmp_path / "nothing.toml")


def test_a_job_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not a text file"):
        read_job(path)


def test_nesting_without_end_is_refused_and_does_not_crash(tmp_path: Path) -> None:
    path = _write(tmp_path, "name = " + "[" * 100_000)
    with pytest.raises(InvalidInput):
        read_job(path)
