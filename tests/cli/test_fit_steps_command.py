"""srifty fit and srifty predict --model --grid, from file to file."""

from __future__ import annotations

import csv
import json

import pytest

from tests.predicting.step_kit import grid, table


def write_steps(path, known):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["job", "gpu", "instance_type", "layout", "batch_per_gpu", "step_s", "gradient_bytes"]
        )
        for i, (machine, gpu) in enumerate(known.grid.machine):
            layout = "+".join(map(str, known.grid.layout[i]))
            batch, size = known.grid.batch_per_gpu[i], known.grid.gradient_bytes[i]
            writer.writerow([known.grid.job[i], gpu, machine, layout, batch, known.step_s[i], size])


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_steps(tmp_path / "known.csv", table(grid(layouts=((1,), (4,), (1, 1), (4, 4)))))
    (tmp_path / "grid.csv").write_text(
        "job,gpu,instance_type,layout,batch_per_gpu\nsmall,T4,box,2+2,16\nlarge,T4,box,4+4+4+4+4,16\n"
    )
    return tmp_path


def test_steps_become_a_model_and_a_grid_is_told_from_it(files, run):
    status, _, err = run("fit", "--steps", "known.csv", "-o", "model.json")
    assert status == 0
    assert "measure next" in err
    assert "no cluster of three machines was measured" in " ".join(err.split())
    assert json.loads((files / "model.json").read_text())["format"] == "srifty/step_model/1"
    assert run("predict", "--model", "model.json", "--grid", "grid.csv", "-o", "out.csv")[0] == 0
    rows = list(csv.DictReader((files / "out.csv").open()))
    assert [row["layout"] for row in rows] == ["2+2", "4+4+4+4+4"]
    assert float(rows[0]["p10_s"]) < float(rows[0]["p50_s"]) < float(rows[0]["p90_s"])
    assert rows[0]["extrapolated"] == ""
    assert rows[1]["extrapolated"] == "5 nodes, measured up to 2"


def test_without_a_file_the_table_goes_to_standard_output(files, run):
    run("fit", "--steps", "known.csv", "-o", "model.json")
    _, out, _ = run("predict", "--model", "model.json", "--grid", "grid.csv")
    assert out.startswith("job,gpu,instance_type,layout,batch_per_gpu,mean_s,")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("fit",), 2, "or measured steps (--steps known.csv)"),
        (("fit", "--steps", "missing.csv"), 2, "cannot read missing.csv"),
        (("fit", "--steps", "grid.csv"), 2, "has no column 'step_s'"),
        (("predict", "--grid", "grid.csv"), 2, "--grid needs --model"),
        (("predict", "--model", "model.json"), 2, "give the machines"),
        (("predict", "--model", "known.csv", "--grid", "grid.csv"), 2, "known.csv is not JSON"),
        (("predict", "--model", "model.json", "--grid", "grid.csv", "--on", "4xbox"), 2, "leave --on out"),
        (
            ("predict", "--model", "model.json", "--grid", "stranger.csv"),
            3,
            "no step of job 'nobody' was measured",
        ),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(files, run, arguments, status, said):
    run("fit", "--steps", "known.csv", "-o", "model.json")
    (files / "stranger.csv").write_text("job,gpu,instance_type,layout,batch_per_gpu\nnobody,T4,box,2+2,16\n")
    before = sorted(path.name for path in files.iterdir())
    ended, _, err = run(*arguments, "-o", "out.file")
    assert ended == status
    assert said in err
    assert sorted(path.name for path in files.iterdir()) == before
