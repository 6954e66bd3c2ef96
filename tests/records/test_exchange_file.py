"""Files of exchanges, whoever measured them: what they say, and what is said of those that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from srifty.errors import InvalidInput
from srifty.records import AllReduceSample, NetworkProfile
from srifty.records.exchange_file import read_exchanges
from srifty.records.files import to_json, write

HEADING = "instance_types,node_count,gpus_per_node,backend,link_bytes_per_s,message_bytes,duration_s,repeat"
ROW = "p3.2xlarge,4,1,NCCL,1.25e9,1048576,0.0021,0"


@pytest.fixture
def table(tmp_path):
    def written(*rows, heading=HEADING):
        path = tmp_path / "exchanges.csv"
        path.write_text("\n".join((heading, *rows)) + "\n")
        return path

    return written


def test_a_table_is_read(table):
    profile = read_exchanges(table(ROW, "a+b,2,8,gloo,,1024,1e-4,3", ""))
    one, two = profile.samples
    assert (one.instance_types, one.gpu_count, one.backend) == (("p3.2xlarge",), 4, "nccl")
    assert one.link_bytes_per_s == 1.25e9
    assert (two.instance_types, two.gpu_count, two.link_bytes_per_s, two.repeat) == (("a", "b"), 16, None, 3)


def test_more_columns_may_say_version_session_and_how_many_at_once(table):
    path = table(f"{ROW},2.21.5,monday,2", heading=f"{HEADING},backend_version,session,concurrency")
    (one,) = read_exchanges(path).samples
    assert (one.backend_version, one.session, one.concurrency) == ("2.21.5", "monday", 2)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ROW.replace(",4,", ",four,"), r"line 3: node_count is 'four'; it must be a number \[nodes\]"),
        (
            ROW.replace(",4,", ",2.5,"),
            r"line 3: node_count is 2.5 \[nodes\]; it must be a whole number from 1",
        ),
        (ROW.replace(",1,", ",0,"), r"gpus_per_node is 0 \[GPUs\]"),
        (ROW.replace("0.0021", "-1"), r"line 3: duration_s is -1 \[s\]; it must be above 0"),
        (ROW.replace("0.0021", "2.1ms"), r"duration_s is '2.1ms'; it must be a number \[s\]"),
        (ROW.replace("0.0021", ""), r"duration_s is ''"),
        (ROW.replace("0.0021", "nan"), r"duration_s is 'nan'"),
        (ROW.replace("1048576", "0"), r"message_bytes is 0 \[bytes\]"),
        (ROW.replace("1.25e9", "10Gbit"), r"link_bytes_per_s is '10Gbit'; it must be a number \[bytes/s\]"),
        (ROW.replace("NCCL", ""), "line 3: backend is ''; it must hold a name"),
        (ROW.replace("p3.2xlarge", " + "), "line 3: instance_types is .* must hold a name"),
        (ROW[:-2], "line 3 has 7 cells, the heading 8"),
        (ROW.replace("0.0021", "0,0021"), "line 3 has 9 cells.*does a cell hold a comma"),
        (ROW[:-1] + "-1", r"repeat is -1 .* whole number from 0"),
        (ROW.replace("NCCL", '"NCCL'), "is not CSV"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_line_column_and_unit(table, row, said):
    with pytest.raises(InvalidInput, match=said):
        read_exchanges(table(ROW, row))


@pytest.mark.parametrize(
    ("heading", "said"),
    [
        (HEADING.replace(",duration_s", ""), "lacks the column duration_s"),
        (HEADING + ",colour", "unknown column 'colour'"),
        (HEADING + ",repeat", "the column 'repeat' twice"),
        ("hello", "neither JSON nor the output of nccl-tests"),
    ],
)
def test_a_heading_that_is_none_is_refused(table, heading, said):
    with pytest.raises(InvalidInput, match=said):
        read_exchanges(table(ROW, heading=heading))


def test_a_table_without_rows_and_an_empty_file_are_refused(table, tmp_path):
    with pytest.raises(InvalidInput, match="no rows"):
        read_exchanges(table())
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidInput, match="is empty"):
        read_exchanges(tmp_path / "empty")
    with pytest.raises(InvalidInput, match="cannot read"):
        read_exchanges(tmp_path / "absent")


def test_our_own_file_is_read_and_an_old_one_too(tmp_path):
    sample = AllReduceSample(
        instance_types=("x",), node_count=2, gpu_count=4, backend="gloo", message_bytes=8, duration_s=1.0
    )
    profile = NetworkProfile(samples=(sample,), taken_at=datetime(2026, 1, 1, tzinfo=UTC))
    write(profile, tmp_path / "net.json")
    assert read_exchanges(tmp_path / "net.json") == profile
    old = to_json(profile)
    for line in ('      "concurrency": 1,\n', ',\n      "session": null', '  "dropped": [],\n'):
        assert line in old
        old = old.replace(line, "")
    (tmp_path / "old.json").write_text(old.replace(",\n    }", "\n    }"))
    assert read_exchanges(tmp_path / "old.json") == profile


def test_nccl_tests_does_not_know_its_machines_so_they_are_asked_for():
    path = Path(__file__).parent / "nccl_tests" / "new_one_node.txt"
    with pytest.raises(InvalidInput, match="give --instance-type"):
        read_exchanges(path)
    profile = read_exchanges(path, instance_type="p4de.24xlarge")
    assert profile.samples[0].instance_types == ("p4de.24xlarge",)
