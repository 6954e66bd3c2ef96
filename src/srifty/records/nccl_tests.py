"""What nccl-tests' `all_reduce_perf` prints, read as it is: logs of real runs hold much else besides.

The columns are found by the heading that each run prints, since they differ from version to version (`root` came
with 2.13, `error` became `#wrong`, and validation that is off prints N/A).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

from srifty.errors import InvalidInput
from srifty.records.network_profile import AllReduceSample
from srifty.records.offer import Dropped

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_PREFIX = re.compile(
    r"^(?:\[\d+,\d+\]<std(?:out|err)>:|\d+:(?=\s)|[\w.-]+: (?=\s*(?:#|\d+\s+\d+\s+\w))|\d{4}-\d\d-\d\dT\S+ )\s*"
)
"""mpirun --tag-output, srun --label, pdsh and log collectors with a time put these in front of each line."""
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)(?:\s+Group\s+(\d+))?(?:\s+Pid\s+\d+)?\s+on\s+(\S+)\s+device\s+\d+"
    r"(?:\s+\[[^\]]*\])?\s*(.*)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_HEADING = re.compile(r"#\s*size\s+count(?:\s|$)")
_OLD_HEADING = re.compile(r"#\s*bytes\s+N\s+type\s+op")
_DATA = re.compile(r"^\s*\d+\s+\d+\s+(?:u?int\d+|half|float|double|bfloat16|f8e4m3|f8e5m2|fp8\w*)\s")
_VERSION = re.compile(r"[NR]CCL version (\d+\.\d+(?:\.\d+)?)")
_LIBRARY = re.compile(r"nccl-library=(\d+)")
_TEST = re.compile(
    r"Collective test starting:\s*(?P<started>\w+)|^\s*#.*?\bCollective:\s*(?P<named>\w+)"
    r"|^\s*#.*?\b(?P<program>\w+_perf)\b"
)


def is_nccl_tests(text: str) -> bool:
    """Whether text looks like the output of nccl-tests, of any version and test."""
    return bool(
        re.search(
            r"#\s*(?:size\s+count|bytes\s+N\s+type)|#\s*nThread \d+ nGpus|#\s*Rank\s+\d+ .*device",
            _COLOUR.sub("", text),
        )
    )


@dataclass
class _Run:
    """What one run has printed so far."""

    first_line: int
    hosts: dict[int, str] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    gpus: dict[int, str] = field(default_factory=dict)
    version: str | None = None
    columns: list[str] = field(default_factory=list)
    has_timestamps: bool = False
    """Behind the columns stand a day and an hour."""
    unit_s: float | None = None
    samples: list[AllReduceSample] = field(default_factory=list)

    @property
    def ranks(self) -> list[int]:
        """Those of the first group: groups exchange each by itself."""
        return [rank for rank, group in self.groups.items() if group == min(self.groups.values())]

    @property
    def ranks_per_node(self) -> list[int]:
        """How many of them are on each node."""
        return sorted(Counter(self.hosts[rank] for rank in self.ranks).values(), reverse=True)


@dataclass
class _Row:
    """What a line of measurements holds."""

    samples: list[AllReduceSample] = field(default_factory=list)
    wrong: int = 0
    untimed: int = 0
    """Readings whose time is no time."""
    ratios: list[tuple[AllReduceSample, float]] = field(default_factory=list)
    """Of bus to algorithm bandwidth."""


def read_nccl_tests(
    text: str, *, name: str, instance_types: tuple[str, ...]
) -> tuple[tuple[AllReduceSample, ...], tuple[Dropped, ...]]:
    """Samples of every run that the text holds, and what was left out.

    A message has up to two readings: out of place (repeat 0) and in place (1). Each run is a session of its own.

    Args:
        text: what the program printed, with other lines in between or without
        name: what to call the text in messages
        instance_types: of the machines, which the program does not know

    Raises:
        InvalidInput: another test than all_reduce_perf, no ranks or no unit of time known, unlike GPUs under the
            name of one machine, nothing measured
    """
    runs: list[_Run] = []
    broken: list[int] = []
    wrong = untimed = 0
    run = _Run(1)
    version = None
    lines = _COLOUR.sub("", text).splitlines()
    for number, raw in enumerate(lines, start=1):
        line = _PREFIX.sub("", raw)
        if found := _TEST.search(line):
            _check_test(found[found.lastgroup or 0], name, number)
        if found := _VERSION.search(line):
            version = run.version = found[1]
        elif found := _LIBRARY.search(line):
            version = _packed_version(found[1])
        if found := _RANK.search(line):
            if run.columns:  # ranks after a heading: the next run has begun
                run = _Run(number)
            if int(found[1]) in run.hosts:
                raise InvalidInput(
                    f"{name} line {number}: rank {found[1]} stands there twice: several programs ran, each by "
                    f"itself; build nccl-tests with MPI=1, so that they exchange with each other"
                )
            run.hosts[int(found[1])] = found[3]
            run.groups[int(found[1])] = int(found[2] or 0)
            run.gpus[int(found[1])] = " ".join(found[4].split())
        elif "Using devices" in line and run.hosts and not run.columns:
            run = _Run(number)  # the run before ended before it measured anything
        elif _OLD_HEADING.search(line):
            raise InvalidInput(
                f"{name} line {number}: this heading is of nccl-tests 1, which does not say the unit of its times; "
                f"run nccl-tests 2, or write the readings as a table (CSV)"
            )
        elif heading := _HEADING.search(line):
            # A second heading without ranks: the same machines again.
            if run.columns:
                run = _Run(number, dict(run.hosts), dict(run.groups), dict(run.gpus))
            run.columns = line[heading.start() + 1 :].split()
            run.has_timestamps = run.columns[-1] == "timestamp"
            if run.has_timestamps:
                run.columns.pop()
        elif run.columns and run.unit_s is None and re.search(r"#\s*\(B\)", line):
            run.unit_s = _unit(line)
        elif _DATA.match(line):
            run.version = run.version or version
            if run not in runs:
                _check(run, name, number)
                if len(instance_types) == 1:
                    _check_alike([*runs, run], name, number)
                runs.append(run)
            row = _row(
                line.split(), run, instance_types, f"{name}, line {run.first_line}", f"{name} line {number}"
            )
            if row is None:
                broken.append(number)
            else:
                wrong += row.wrong
                untimed += row.untimed
                run.samples += row.samples
                for sample, bus_share in row.ratios:
                    _check_ratio(sample, bus_share, name, number)
    uneven = [one for one in runs if len(set(one.ranks_per_node)) > 1]
    dropped = [
        Dropped(
            why=f"{name} line {one.first_line}: the nodes have unlike numbers of GPUs "
            f"({' + '.join(map(str, one.ranks_per_node))}); run it with as many on each",
            count=len(one.samples),
        )
        for one in uneven
        if one.samples
    ]
    if broken:
        where = ", ".join(map(str, broken[:5])) + (", ..." if len(broken) > 5 else "")
        dropped.append(Dropped(why=f"{name}: lines that are not whole ({where})", count=len(broken)))
    if wrong:
        dropped.append(Dropped(why=f"{name}: readings whose result was wrong (#wrong)", count=wrong))
    if untimed:
        dropped.append(Dropped(why=f"{name}: readings whose time is not above 0", count=untimed))
    samples = tuple(sample for one in runs if one not in uneven for sample in one.samples)
    if not samples:
        left_out = "; ".join(f"{one.count}, {one.why.removeprefix(name).lstrip(': ')}" for one in dropped)
        raise InvalidInput(
            f"{name} holds no line of measurements that can be used: left out are {left_out}"
            if dropped
            else f"{name} holds no line of measurements; give what all_reduce_perf printed, from its first line on"
        )
    return samples, tuple(dropped)


def _row(
    words: list[str], run: _Run, instance_types: tuple[str, ...], session: str, where: str
) -> _Row | None:
    """What a line holds; None: it is not whole."""
    if len(words) != len(run.columns) and not (run.has_timestamps and len(words) > len(run.columns)):
        return None
    words = words[: len(run.columns)]
    _check_kind(dict(zip(run.columns, words, strict=True)), where)
    found = _Row()
    try:
        size = int(words[0])
        starts = [i for i, column in enumerate(run.columns) if column == "time"]
        for repeat, start in enumerate(starts):
            end = starts[repeat + 1] if repeat + 1 < len(starts) else len(words)
            value = dict(zip(run.columns[start:end], words[start:end], strict=True))
            if value["time"] == "N/A" or size == 0:
                continue
            seconds = float(value["time"]) * (run.unit_s or 1.0)
            if value.get("#wrong", "N/A") not in ("N/A", "0"):
                found.wrong += 1
                continue
            if not 0 < seconds < math.inf:
                found.untimed += 1
                continue
            sample = AllReduceSample(
                instance_types=instance_types,
                node_count=len(run.ranks_per_node),
                gpu_count=len(run.ranks),
                backend="nccl",
                backend_version=run.version,
                message_bytes=size,
                duration_s=seconds,
                repeat=repeat,
                session=session,
            )
            found.samples.append(sample)
            if float(value.get("algbw", 0)) >= 1:
                found.ratios.append((sample, float(value["busbw"]) / float(value["algbw"])))
    except (ValueError, KeyError):  # a word that is no number
        return None
    return found


def _check(run: _Run, name: str, number: int) -> None:
    """That a run says what its readings need, before the first of them."""
    if not run.columns:
        raise InvalidInput(
            f"{name} line {number}: measurements before any heading; give the output from its first line on"
        )
    if not run.hosts:
        raise InvalidInput(
            f"{name} line {number}: no line '# Rank 0 ... on HOST device 0' says how many ranks took part; give the "
            f"output from its first line on, or write the readings as a table (CSV)"
        )
    if run.unit_s is None:
        raise InvalidInput(
            f"{name} line {number}: no line below the heading says the unit of the times, such as (us); give the "
            f"output as it was printed"
        )


def _check_test(test: str, name: str, number: int) -> None:
    if not test.casefold().replace("_", "").startswith("allreduce"):
        raise InvalidInput(
            f"{name} line {number}: this is {test}; gradients are exchanged by AllReduce: run all_reduce_perf"
        )


def _check_kind(columns: dict[str, str], where: str) -> None:
    """An AllReduce reduces, and has no root."""
    for column in ("redop", "root"):
        value = columns.get(column, "")
        if value == "none" if column == "redop" else value.isdecimal():
            raise InvalidInput(
                f"{where}: {column} is {value}, so this is no AllReduce, by which gradients are exchanged: "
                f"run all_reduce_perf"
            )


def _check_alike(runs: list[_Run], name: str, number: int) -> None:
    """That machines which one name stands for have the same GPUs, in this run and those before."""
    first: set[str] | None = None
    for run in runs:
        by_host: dict[str, set[str]] = {}
        for rank in run.ranks:
            if run.gpus[rank]:
                by_host.setdefault(run.hosts[rank], set()).add(run.gpus[rank])
        for gpus in by_host.values():
            first = first or gpus
            # Log lines may be printed into the end of a name.
            if not all(any(a.startswith(b) or b.startswith(a) for b in first) for a in gpus):
                raise InvalidInput(
                    f"{name} line {number}: the rank lines name unlike GPUs ({', '.join(sorted(first))} and "
                    f"{', '.join(sorted(gpus))}), and --instance-type one kind of machine; where both took part in "
                    f"one run, join their names with +, else give each kind a file of its own"
                )


def _check_ratio(sample: AllReduceSample, ratio: float, name: str, number: int) -> None:
    """The bandwidth on the bus is 2 (k - 1) / k times that of the algorithm in AllReduce, and in no other test."""
    expected = 2 * (sample.gpu_count - 1) / sample.gpu_count
    if sample.gpu_count > 1 and abs(ratio / expected - 1) > 0.05:
        raise InvalidInput(
            f"{name} line {number}: busbw / algbw is {ratio:.2f}, but {expected:.2f} for an AllReduce of "
            f"{sample.gpu_count} ranks; is it the output of all_reduce_perf, with all its rank lines?"
        )


def _unit(line: str) -> float | None:
    found = re.search(r"\((us|ms|s)\)", line)
    return SECONDS[found[1]] if found else None


def _packed_version(code: str) -> str:
    """22703 -> 2.27.3; before 2.9 codes had four digits: 2804 -> 2.8.4."""
    number = int(code)
    if number < 10000:
        return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
