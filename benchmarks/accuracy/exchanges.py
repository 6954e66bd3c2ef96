"""How well a learned ExchangeModel tells exchanges of a cluster size that it has not seen, and what else would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.accuracy.measured import read_csv
from srifty.predicting.boosted_trees import xgboost_module
from srifty.predicting.exchange_fit import fit_exchange
from srifty.predicting.exchange_formula import Exchanges
from srifty.predicting.exchange_model import LearnedExchange
from srifty.records import AllReduceSample, NetworkProfile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

GBIT = 1e9 / 8
LEAST_BYTES = 2**20
AT = datetime(2000, 1, 1, tzinfo=UTC)
NOMINAL_BYTES_PER_S = {
    ("aws:p3.2xlarge", "10Gbps TCP"): 10 * GBIT,
    ("aws:c5.18xlarge", "TCP, cluster placement group"): 25 * GBIT,
    ("aws:p3.16xlarge", "TCP, cluster placement group"): 25 * GBIT,
    ("aws:c5n.18xlarge", "EFA"): 100 * GBIT,
    ("aws:p5.48xlarge", "EFA"): 3200 * GBIT,
    ("aws:p5.48xlarge", "EFA (EKS, NCCL 2.18.5)"): 3200 * GBIT,
    ("aws:p5.48xlarge", "NVLink/NVSwitch"): 450e9,
}


@dataclass(frozen=True)
class Reading:
    """One measured exchange, and what it is to be grouped by."""

    sample: AllReduceSample
    mean_link_bytes_per_s: float
    """Over all nodes; the sample has the slowest."""
    group: str
    """Row of the table."""


def published(folder: Path) -> list[Reading]:
    """The published exchanges; each network of a machine is a setup of its own, each source a session."""
    found = []
    for row in read_csv(folder / "allreduce" / "allreduce.csv"):
        rate = NOMINAL_BYTES_PER_S.get((row["vm_type"], row["network"]))
        if rate is None:
            rate = float(row["network"].partition("bandwidth ")[2].removesuffix("Gbps")) * GBIT
        sample = AllReduceSample(
            instance_types=(f"{row['vm_type'].removeprefix('aws:')}, {' '.join(row['network'].split())}",),
            node_count=int(row["num_nodes"]),
            gpu_count=int(row["num_ranks"]),
            backend=row["backend"],
            link_bytes_per_s=rate,
            message_bytes=int(row["message_bytes"]),
            duration_s=float(row["time_us"]) * 1e-6,
            repeat=int(row["repeat"]),
            session=row["source"],
        )
        found.append(Reading(sample, rate, f"{sample.instance_types[0]}, {sample.backend}"))
    return found


def shaped(folder: Path) -> list[Reading]:
    """Exchanges of gloo between shaped network namespaces; the last node's link may be slower."""
    found = []
    for row in read_csv(folder / "testbed" / "allreduce_rt.csv"):
        nodes, base, slow = int(row["n"]), _rate(row["base"]), _rate(row["slow"])
        group = "shaped links, one slower, gloo" if slow < base else "shaped links, all equal, gloo"
        sample = AllReduceSample(
            instance_types=("shaped",),
            node_count=nodes,
            gpu_count=nodes,
            backend="gloo",
            link_bytes_per_s=slow,
            message_bytes=int(row["bytes"]),
            duration_s=float(row["sec"]),
            repeat=int(row["rep"]),
        )
        found.append(Reading(sample, (base * (nodes - 1) + slow) / nodes, group))
    return found


def _rate(text: str) -> float:
    return float(text[:-4]) * {"g": 1e9, "m": 1e6}[text[-4]] / 8


@dataclass(frozen=True)
class Left:
    """A measured point that was left out, and what each way of telling it says [s]."""

    group: str
    measured_s: float
    told_s: dict[str, float]
    share_in_band: float


def left_out(readings: Sequence[Reading], size_of: Callable[[AllReduceSample], int]) -> list[Left]:
    """Each size of cluster told from the others of its setup, messages of 1 MiB and more."""
    found = []
    for size in sorted({size_of(one.sample) for one in readings}):
        known = [one for one in readings if size_of(one.sample) != size]
        asked = [
            one
            for one in readings
            if size_of(one.sample) == size
            and one.sample.message_bytes >= LEAST_BYTES
            and _is_told(one, known)
        ]
        if asked:
            found += _told(known, asked)
    return found


def _is_told(one: Reading, known: Sequence[Reading]) -> bool:
    return any(_setup(one) == _setup(other) for other in known)


def _setup(one: Reading) -> tuple[object, ...]:
    return one.sample.instance_types, one.sample.backend, one.sample.node_count > 1


def _told(known: Sequence[Reading], asked: Sequence[Reading]) -> list[Left]:
    samples = tuple(one.sample for one in known)
    model = fit_exchange([NetworkProfile(samples=samples, taken_at=AT)], (), AT)
    if model.between_session_log_sd is None:
        # What was left out is of the same session as what was not.
        model = model.model_copy(update={"between_session_log_sd": 0.0})
    learned = LearnedExchange.of(model)
    plain = LearnedExchange.of(
        model.model_copy(
            update={
                "residuals": tuple(r.model_copy(update={"base": 0.0, "trees": ()}) for r in model.residuals)
            }
        )
    )
    bare_trees = _raw_trees(known, asked)
    points: dict[tuple[object, ...], list[int]] = {}
    for i, one in enumerate(asked):
        s = one.sample
        key = (
            *_setup(one),
            s.gpu_count,
            s.message_bytes,
            s.session,
            one.mean_link_bytes_per_s,
            s.link_bytes_per_s,
        )
        points.setdefault(key, []).append(i)
    found = []
    for rows in points.values():
        one = asked[rows[0]]
        s = one.sample
        setup = learned.setup_of(frozenset(s.instance_types), s.backend, s.node_count > 1)
        assert setup is not None
        assert s.link_bytes_per_s is not None

        def exchange(rate: float, s: AllReduceSample = s) -> Exchanges:
            columns = (s.node_count, s.gpus_per_node, s.message_bytes, rate, s.concurrency)
            return Exchanges(*(np.array([float(value)]) for value in columns))

        told = learned.tell(setup, exchange(s.link_bytes_per_s))
        low, high = float(np.exp(told.p10[0])), float(np.exp(told.p90[0]))
        measured = np.array([asked[i].sample.duration_s for i in rows])
        moved = 2 * (s.gpu_count - 1) / s.gpu_count * s.message_bytes
        found.append(
            Left(
                group=one.group,
                measured_s=float(np.median(measured)),
                told_s={
                    "nominal rate": moved / s.link_bytes_per_s,
                    "mean link": float(np.exp(plain.tell(setup, exchange(one.mean_link_bytes_per_s)).p50[0])),
                    "trees on raw features": float(bare_trees[rows[0]]),
                    "formula": float(np.exp(plain.tell(setup, exchange(s.link_bytes_per_s)).p50[0])),
                    "learned": float(np.exp(told.p50[0])),
                },
                share_in_band=float(np.mean((measured >= low) & (measured <= high))),
            )
        )
    return found


def _raw_trees(known: Sequence[Reading], asked: Sequence[Reading]) -> Floats:
    """Trees on sizes and rates as they are, without a formula."""
    xgboost = xgboost_module()
    names = sorted({(one.sample.instance_types, one.sample.backend) for one in known})

    def columns(readings: Sequence[Reading]) -> Floats:
        return np.array(
            [
                [
                    s.node_count,
                    s.gpus_per_node,
                    s.message_bytes,
                    s.link_bytes_per_s or 0,
                    names.index((s.instance_types, s.backend)),
                ]
                for s in (one.sample for one in readings)
            ],
            float,
        )

    data = xgboost.DMatrix(columns(known), label=np.log([one.sample.duration_s for one in known]))
    booster = xgboost.train({"max_depth": 4, "eta": 0.1, "nthread": 1}, data, num_boost_round=200)
    return np.asarray(np.exp(booster.predict(xgboost.DMatrix(columns(asked)))))


def table(left: Sequence[Left]) -> list[str]:
    """Median and worst error of each way, a row a group, and the share of readings inside the band."""
    ways = [
        way
        for way in left[0].told_s
        if way != "mean link" or any(one.told_s[way] != one.told_s["formula"] for one in left)
    ]
    lines = [
        "| machines and network | points | " + " | ".join(ways) + " | p90 | worst | in 80 % band |",
        "| --- | ---: |" + " ---: |" * (len(ways) + 3),
    ]
    for group in [*sorted({one.group for one in left}), "all"]:
        own = [one for one in left if group in (one.group, "all")]
        error = {way: np.array([abs(o.told_s[way] / o.measured_s - 1) for o in own]) for way in ways}
        ours = error["learned"]
        inside = np.mean([one.share_in_band for one in own])
        lines.append(
            f"| {group} | {len(own)} | "
            + " | ".join(f"{100 * np.median(error[way]):.1f} %" for way in ways)
            + f" | {100 * np.quantile(ours, 0.9):.0f} % | {100 * ours.max():.0f} % | {100 * inside:.0f} % |"
        )
    return lines


def report(folder: Path) -> str:
    """The tables, as Markdown: medians of the relative error, and of what was learned its tail and its band."""
    lines = table(left_out(published(folder), lambda sample: sample.gpu_count))
    lines += ["", *table(left_out(shaped(folder), lambda sample: sample.node_count))]
    return "\n".join(lines)
