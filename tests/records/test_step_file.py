"""Tables of steps as people write them: read exactly, or refused with the line and what to do."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from srifty.errors import InvalidInput
from srifty.records.step_file import read_grid, read_steps
from srifty.records.step_table import StepEstimates

HEADING = "job,gpu,instance_type,layout,batch_per_gpu,step_s,exposed_allreduce_s,gradient_bytes"
GOOD = ("bert,T4,g4dn.12xlarge,1,8,0.70,,438000000", "bert,T4,g4dn.12xlarge,4+4+2,8,1.9,0.9,438000000")


@pytest.fixture
def read(tmp_path):
    def read(*lines, heading=HEADING, reader=read_steps, end="\n"):
        path = tmp_path / "steps.csv"
        path.write_bytes((end.join([heading, *lines]) + end).encode())
        return reader(path)

    return read


def test_rows_are_read_as_they_stand(read):
    table = read(*GOOD)
    assert table.grid.job == ("bert", "bert")
    assert table.grid.machine == (("g4dn.12xlarge", "T4"),) * 2
    assert table.grid.layout == ((1,), (4, 4, 2))
    assert table.grid.batch_per_gpu.tolist() == [8, 8]
    assert table.step_s.tolist() == [0.7, 1.9]
    assert np.isnan(table.exposed_allreduce_s[0])
    assert table.exposed_allreduce_s[1] == 0.9
    assert table.grid.gradient_bytes.tolist() == [438e6, 438e6]


def test_optional_columns_may_be_absent(read):
    heading = HEADING.rsplit(",", 2)[0]
    table = read("a,T4,box,1,8,0.7", "a,T4,box,1+1,8.0,7e-1", heading=heading)
    assert np.isnan(table.exposed_allreduce_s).all()
    assert np.isnan(table.grid.gradient_bytes).all()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_spreadsheets_marks_line_ends_quotes_and_empty_lines_are_read(read, end, mark):
    table = read('"a, the job",T4,"box",1+1,8,0.7,,', "", ",,,,,,,", GOOD[1], heading=mark + HEADING, end=end)
    assert table.grid.job == ("a, the job", "bert")


def test_columns_may_stand_in_any_order(read):
    heading = "step_s,job,layout,gpu,instance_type,batch_per_gpu"
    assert read("0.5,a,1,T4,box,4", "0.6,a,1+1,T4,box,4", heading=heading).step_s.tolist() == [0.5, 0.6]


def test_a_row_that_stands_there_twice_counts_once_and_a_repeated_reading_twice(read):
    assert len(read(*GOOD, GOOD[0])) == 2
    assert len(read(*GOOD, GOOD[0].replace("0.70", "0.71"))) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "bert,T4,box,4+x,8,0.7,,",
            "line 4: layout is '4.x'; it must be the GPUs used on each node, such as 4.4.2",
        ),
        ("bert,T4,box,4+0,8,0.7,,", "layout is '4.0'"),
        ("bert,T4,box,4+,8,0.7,,", "layout is '4[+]'"),
        ("bert,T4,box,,8,0.7,,", "layout is ''"),
        ("bert,T4,box,4,8,0,,", "step_s is 0; it must be above 0"),
        ("bert,T4,box,4,8,-0.7,,", "step_s is -0.7; it must be above 0"),
        ("bert,T4,box,4,8,nan,,", "step_s is 'nan'; it must be a number"),
        ("bert,T4,box,4,8,inf,,", "step_s is 'inf'"),
        ("bert,T4,box,4,8,,,", "step_s is empty"),
        ("bert,T4,box,4,8,0.7s,,", "step_s is '0.7s'"),
        ('bert,T4,box,4,8,"0,7",,', "step_s is '0,7'; it must be a number"),
        ("bert,T4,box,4,8.5,0.7,,", "batch_per_gpu is 8.5; it must be a whole number"),
        ("bert,T4,box,4,0,0.7,,", "batch_per_gpu is 0"),
        ("bert,T4,box,4,8,0.7,-1,", "exposed_allreduce_s is -1; it must not be below 0"),
        ("bert,T4,box,4,8,0.7,70,", "exposed_allreduce_s is 70, longer than the whole step, 0.7"),
        ("bert,T4,box,4,8,0.7,,438", "gradient_bytes of job 'bert' is 438000000 in line 2 and 438 in line 4"),
        ("bert,T4,box,4,8,0.7,,0", "gradient_bytes is 0; leave it empty if unknown"),
        (",T4,box,4,8,0.7,,", "job is empty"),
        ("bert,T4,box,4,8,0.7,", "line 4 has 7 values, but the heading names 8 columns"),
        (
            "bert,T4,box,4+4,8,700,,",
            "take 1.9 s in line 3 and 700 s in line 4, .* is one of them in milliseconds",
        ),
    ],
)
def test_a_bad_value_is_refused_with_its_line(read, line, said):
    with pytest.raises(InvalidInput, match=said):
        read(*GOOD, line)


@pytest.mark.parametrize(
    ("heading", "said"),
    [
        (HEADING.replace("step_s", "step_ms"), "has no column 'step_s' .is 'step_ms' meant"),
        (HEADING.replace("layout,", ""), "has no column 'layout'; needed are job,gpu"),
        (
            HEADING.replace("gradient_bytes", "gradient_byte"),
            "unknown column 'gradient_byte'; is 'gradient_bytes'",
        ),
        (HEADING.replace("gpu,", "job,", 1), "names column 'job' twice"),
        (HEADING.replace(",", ";"), "is not separated by commas"),
    ],
)
def test_a_heading_that_is_not_understood_is_refused(read, heading, said):
    with pytest.raises(InvalidInput, match=said):
        read(*GOOD, heading=heading)


def test_neither_a_large_batch_nor_a_slow_network_is_taken_for_milliseconds(read):
    assert len(read("a,T4,box,1,1,0.01,,", "a,T4,box,1,4096,12,,")) == 2
    assert len(read("a,T4,box,1,8,0.02,,", "a,T4,box,1+1,8,7,,")) == 2


def test_one_gpu_in_milliseconds_and_several_in_seconds_are_refused(read):
    with pytest.raises(InvalidInput, match="take 800 s on one GPU in line 2 and 0.9 s on several in line 3"):
        read("a,T4,box,1,8,800,,", "a,T4,box,1+1,8,0.9,,")


def test_an_empty_file_a_heading_alone_and_a_single_row_are_refused(read, tmp_path):
    with pytest.raises(InvalidInput, match="is empty; its first line names the columns"):
        read(heading="")
    with pytest.raises(InvalidInput, match="has a heading and no row"):
        read()
    with pytest.raises(InvalidInput, match="holds one measured step; at least two"):
        read(GOOD[0])
    with pytest.raises(InvalidInput, match="cannot read"):
        read_steps(tmp_path / "missing.csv")


def test_an_open_quote_is_refused(read):
    with pytest.raises(InvalidInput, match="is not CSV"):
        read(GOOD[0], '"bert,T4')


def test_a_grid_s_rows_come_back_whole_with_their_estimates(read):
    grid = read(
        '"a, b",T4,box,2+2,8,mine,0.5',
        "c,T4,box,1,4,,0.7",
        heading="job,gpu,instance_type,layout,batch_per_gpu,note,mean_s",
        reader=read_grid,
    )
    columns = [np.array([0.123456789, 2.0])] * 4
    text = grid.with_estimates(StepEstimates(*columns, extrapolated=("5 nodes, measured up to 4", "")))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0])[-5:] == ["mean_s", "p10_s", "p50_s", "p90_s", "extrapolated"]
    assert rows[0]["job"] == "a, b"
    assert rows[0]["note"] == "mine"
    assert rows[0]["mean_s"] == "0.123457"
    assert rows[0]["extrapolated"] == "5 nodes, measured up to 4"
    assert len(rows) == 2


def test_a_grid_of_one_row_is_read(read):
    grid = read("a,T4,box,1,8", heading="job,gpu,instance_type,layout,batch_per_gpu", reader=read_grid)
    assert len(grid.grid) == 1
