"""What nccl-tests prints is read as it is, in every version's columns, with whatever stands in between."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from srifty.errors import InvalidInput
from srifty.records.nccl_tests import is_nccl_tests, read_nccl_tests

SAMPLES = Path(__file__).parent / "nccl_tests"
FILES = sorted(SAMPLES.glob("*.txt"))


def text_of(name):
    return (SAMPLES / f"{name}.txt").read_text()


def read(text):
    return read_nccl_tests(text, name="log.txt", instance_types=("p4d.24xlarge",))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_known_by_sight(path):
    assert is_nccl_tests(path.read_text())


@pytest.mark.parametrize("text", ["instance_types,node_count\n", "{}", "time algbw busbw\n", ""])
def test_other_text_is_not_taken_for_it(text):
    assert not is_nccl_tests(text)


def test_a_run_in_one_machine():
    samples, dropped = read(text_of("new_one_node"))
    assert not dropped
    assert len(samples) == 10
    assert {(s.node_count, s.gpu_count, s.backend, s.backend_version) for s in samples} == {
        (1, 8, "nccl", "2.27.3")
    }
    assert [s.message_bytes for s in samples[::2]] == [8, 1024, 2**20, 2**25, 2**28]
    assert [s.repeat for s in samples[:2]] == [0, 1]
    assert samples[-2].duration_s == pytest.approx(40e-6 + 1.75 * 2**28 / 100e9, rel=1e-3)
    assert samples[-1].duration_s < samples[-2].duration_s  # in place


def test_the_columns_of_old_versions():
    samples, dropped = read(text_of("old_two_nodes"))
    assert not dropped
    assert {(s.node_count, s.gpu_count, s.backend_version) for s in samples} == {(2, 4, None)}
    assert samples[-2].duration_s == pytest.approx(1.5 * 2**28 / 1.1e9, rel=1e-3)


def test_prefixes_log_lines_groups_and_several_runs():
    samples, dropped = read(text_of("tagged_two_runs"))
    assert not dropped
    assert len(samples) == 12
    # Two groups of four ranks, each exchanging by itself over both machines.
    assert {(s.node_count, s.gpu_count, s.backend_version) for s in samples} == {(2, 4, "2.21.5")}
    assert len({s.session for s in samples}) == 2


@pytest.mark.parametrize("prefix", ["0: ", "2026-11-29T10:00:00.123Z ", "gpu-0: ", "    "])
def test_prefixes_of_launchers_and_collectors(prefix):
    lines = text_of("new_one_node").splitlines()
    samples, _ = read("\n".join(prefix + line for line in lines))
    assert len(samples) == 10


def test_a_file_that_was_cut_off_keeps_its_whole_lines():
    samples, dropped = read(text_of("truncated"))
    assert [s.message_bytes for s in samples[::2]] == [8, 1024, 2**20, 2**25]
    (one,) = dropped
    assert one.count == 1
    assert "lines that are not whole (22)" in one.why


def test_two_lines_printed_into_each_other_are_left_out_and_counted():
    whole = text_of("new_one_node")
    samples, dropped = read(
        whole.replace("sum      -1    58.35", "sum gpu-1:9:9 [0] NCCL INFO      -1    58.35")
    )
    assert 2**20 not in {s.message_bytes for s in samples}
    assert dropped[0].count == 1


def test_readings_whose_result_was_wrong_do_not_count():
    samples, dropped = read(text_of("wrong_results"))
    assert len(samples) == 9
    assert dropped[0].count == 1
    assert "wrong" in dropped[0].why


def test_timestamps_behind_the_columns_do_not_matter():
    text = text_of("new_one_node").replace("busbw #wrong       \n", "busbw #wrong\n")
    lines = []
    for line in text.splitlines():
        if line.lstrip("# ").startswith("size"):
            line = line.rstrip() + "  timestamp"
        elif line.strip()[:1].isdigit():
            line += "  2026-11-29 10:00:00"
        lines.append(line)
    assert len(read("\n".join(lines))[0]) == 10


def without(text, start):
    return "\n".join(line for line in text.splitlines() if not line.lstrip("# ").startswith(start))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda t: t.replace("all_reduce_perf", "all_gather_perf"), "this is all_gather_perf.*run all_reduce_perf"),
        (lambda t: without(t, "Rank"), "line 10: no line '# Rank 0"),
        (lambda t: without(t, "size"), "measurements before any heading"),
        (lambda t: without(t, "(B)"), r"unit of the times, such as \(us\)"),
        (lambda t: without(without(t, "Rank  6"), "Rank  7"), r"busbw / algbw is 1\.75, but 1\.67 .* 6 ranks"),
        (lambda t: t.replace("Rank  1 ", "Rank  0 "), "rank 0 stands there twice.*MPI=1"),
        (lambda t: t.split("#       size")[0], "no line of measurements"),
        (lambda t: t.replace("size         count", "bytes N").replace("type   redop", "type op"), "nccl-tests 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_the_line_and_the_remedy(broken, said):
    with pytest.raises(InvalidInput, match=said):
        read(broken(text_of("new_one_node")))


def test_the_first_version_of_nccl_tests_said_no_unit():
    old = "# Using devices\n#   Rank  0 on  host device  0 [0x00] V100\n#   bytes     N    type   op   time\n"
    with pytest.raises(InvalidInput, match="does not say the unit"):
        read(old)


def other(text, old, new):
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda t: other(t, "    sum      -1", "   none      -1"), "line 18: redop is none, so this is no AllReduce"),
        (lambda t: other(t, "    sum      -1", "    sum       0"), "line 18: root is 0, so this is no AllReduce"),
        (lambda t: "# ./build/alltoall_perf -b 8\n" + t, "line 1: this is alltoall_perf"),
        (lambda t: "# Collective: all_gather\n" + t, "line 1: this is all_gather"),
    ],
)  # fmt: skip
def test_another_collective_is_not_learned_as_allreduce(broken, said):
    text = without(text_of("new_one_node"), "Collective")
    line = 1 + next(i for i, row in enumerate(text.splitlines()) if row.strip()[:1].isdigit())
    with pytest.raises(InvalidInput, match=said.replace("18", str(line))):
        read(broken(text))


def test_headers_that_name_allreduce_are_read():
    text = "# ./build/all_reduce_perf -b 8\n# Collective: AllReduce\n" + text_of("new_one_node")
    assert len(read(text)[0]) == 10


def test_where_every_result_is_wrong_that_is_said():
    text = re.sub(
        r" 0(\s{2,}[\d.]+ +[\d.]+ +[\d.]+ +)[07]$", r" 3\g<1>3", text_of("wrong_results"), flags=re.M
    )
    with pytest.raises(InvalidInput, match="left out are 10, readings whose result was wrong"):
        read(text)


@pytest.mark.parametrize("time", ["-58.35", "0.00", "nan", "inf"])
def test_a_time_that_is_none_is_not_called_a_broken_line(time):
    samples, (dropped,) = read(other(text_of("new_one_node"), "58.35", time))
    assert len(samples) == 9
    assert (dropped.count, dropped.why) == (1, "log.txt: readings whose time is not above 0")


def test_colours_of_a_terminal_are_no_part_of_the_text():
    plain = text_of("new_one_node")
    coloured = "\n".join(
        f"\x1b[1;32m{line}\x1b[0m" for line in plain.replace("#  ", "#\x1b[33m  ").splitlines()
    )
    assert is_nccl_tests(coloured)
    assert read(coloured) == read(plain)


def test_a_run_with_unlike_numbers_of_gpus_is_left_out_and_said():
    even, uneven = text_of("old_two_nodes"), text_of("old_two_nodes")
    ranks = [line for line in uneven.splitlines() if "Rank" in line]
    hosts = [line.split(" on ")[1].split()[0] for line in ranks]
    moved = next(line for line, host in zip(ranks, hosts, strict=True) if host != hosts[0])
    uneven = uneven.replace(moved, moved.replace(hosts[-1], hosts[0]))
    with pytest.raises(InvalidInput, match=r"unlike numbers of GPUs \(3 \+ 1\)"):
        read(uneven)
    samples, (dropped,) = read(even + "\n" + uneven)
    assert samples == read(even)[0]
    assert dropped.count == len(samples)


def test_unlike_gpus_are_not_filed_under_one_machine():
    text = text_of("old_two_nodes")
    last = [line for line in text.splitlines() if "Rank" in line][-1]
    mixed = text.replace(last, last.split("]")[0] + "] Tesla K80")
    with pytest.raises(InvalidInput, match="name unlike GPUs.*Tesla K80.*join their names with"):
        read(mixed)
    both = read_nccl_tests(mixed, name="log.txt", instance_types=("p4d.24xlarge", "p2.xlarge"))
    assert both[0]
    with pytest.raises(InvalidInput, match="unlike GPUs"):
        read(text + "\n" + text_of("new_one_node"))
