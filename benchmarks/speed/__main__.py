"""Print speed: `python -m benchmarks.speed`. Times are the median of several runs on one core."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date

import numpy as np

import srifty
from srifty.clouds.catalog import load
from srifty.predicting.iteration_simulator import simulate
from srifty.predicting.predicted_trace import trace_of
from srifty.predicting.predictor import ROWS_AT_ONCE, Predictor
from srifty.predicting.samples import sample_profiles
from srifty.predicting.scenarios import JobOnGpu, MachineColumns, StepColumns, step_columns
from srifty.records import Cluster, Job, NodeGroup
from srifty.records.cluster_table import ClusterTable

ROWS = 100_000


def seconds(act: Callable[[], object], repeats: int = 5) -> float:
    """Median time of an act [s], after one that warms up."""
    act()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def process(*arguments: str) -> Callable[[], object]:
    """An act that runs Python anew."""

    def act() -> None:
        subprocess.run(
            [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    return act


def many_clusters(rows: int) -> tuple[Predictor, ClusterTable, Job]:
    """Uniform clusters of every kind of machine that the samples were measured for, 1 to 64 nodes, all batches."""
    predictor = Predictor(sample_profiles("bert-base"))
    offers = tuple(o for o in load().offers if predictor.batch_range(o) and o.network_bytes_per_s)
    rng = np.random.default_rng(0)
    most = np.array([(predictor.batch_range(offer) or (1, 1))[1] for offer in offers])
    index = rng.integers(0, len(offers), rows)
    table = ClusterTable(
        offers=offers,
        offer_index=index[:, None],
        node_count=rng.integers(1, 65, rows)[:, None],
        batch_per_gpu=np.minimum(rng.integers(1, 49, rows), most[index])[:, None],
        accumulation_count=rng.integers(1, 5, rows),
    )
    return predictor, table, Job(name="bert-base", sample_count=10**6)


def resnet50_columns(rows: int) -> StepColumns:
    """What happens in a step of ResNet-50 with the 5 buckets of its profile, on as many clusters of T4 machines."""
    predictor = Predictor(tuple(p for p in sample_profiles("resnet50") if p.gpu == "T4"))
    offer = next(o for o in load().offers if o.instance_type == "g4dn.xlarge")
    rng = np.random.default_rng(0)
    table = ClusterTable(
        offers=(offer,),
        offer_index=np.zeros((rows, 1), np.int64),
        node_count=rng.integers(2, 65, rows)[:, None],
        batch_per_gpu=rng.integers(8, 65, rows)[:, None],
        accumulation_count=rng.integers(1, 5, rows),
    )
    machines = MachineColumns.of((offer,), predictor.profiles)
    mix = [JobOnGpu(predictor.profiles[0], predictor.compute[0])]
    return step_columns(table, np.arange(rows), machines, mix)


def iterations_a_second() -> list[tuple[str, float, float | None]]:
    """(what, iteration estimates a second on one core, how many are asked)."""
    step = resnet50_columns(ROWS_AT_ONCE)
    cut = np.repeat(step.cost.bucket_bytes / 2, 2)  # 10 buckets in place of 5
    at = np.repeat(step.groups[0].ready_at, 2)
    forms = {
        "5 buckets": (step.groups, step.cost),
        "10 buckets": ([replace(step.groups[0], ready_at=at)], replace(step.cost, bucket_bytes=cut)),
        "10 buckets, 2 slots, slow-down": (
            [replace(step.groups[0], ready_at=at)],
            replace(step.cost, bucket_bytes=cut, slot_count=2, slow_down=1.4),
        ),
    }
    found: list[tuple[str, float, float | None]] = []
    for name, (groups, cost) in forms.items():
        took = seconds(lambda g=groups, c=cost: [simulate(g, c, step.micro_steps) for _ in range(50)])  # type: ignore[misc]
        found.append((f"ResNet-50, {name}", 50 * ROWS_AT_ONCE / took, 1e6))
    one = resnet50_columns(1)
    offer = next(o for o in load().offers if o.instance_type == "g4dn.xlarge")
    cluster = Cluster(groups=(NodeGroup(offer=offer, node_count=4, batch_per_gpu=32),))
    took = seconds(lambda: [trace_of(one, cluster) for _ in range(200)])
    found.append(("the same event by event, 5 buckets", 200 / took, None))
    return found


def main() -> None:
    """Measure and print the table, as Markdown."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    predictor, table, job = many_clusters(ROWS)
    one_by_one = ClusterTable.of([table.cluster(row) for row in range(200)])
    bare = seconds(process("-c", "pass"))
    plan = (
        "plan",
        "--sample",
        "resnet50",
        "--samples",
        "1281167",
        "--epochs",
        "90",
        "--batch",
        "256",
        "--within",
        "24h",
    )
    in_one_call = seconds(lambda: predictor.estimate(table, job), 3)
    singly = seconds(
        lambda: [predictor.estimate(ClusterTable.of([one_by_one.cluster(r)]), job) for r in range(200)], 3
    )
    rows = [
        ("start Python and do nothing (baseline of the next four)", bare, None),
        ("import srifty", seconds(process("-c", "import srifty")), 0.2),
        ("srifty --help", seconds(process("-m", "srifty", "--help")), 0.4),
        ("srifty plan, cold, whole process", seconds(process("-m", "srifty", *plan)), 1.5),
        ("srifty offers, whole process", seconds(process("-m", "srifty", "offers")), None),
        ("load and check the shipped catalogue", seconds(load), 0.3),
        (f"predict {ROWS:,} uniform clusters in one call", in_one_call, 2.0),
        (f"the same one by one (200 timed, times {ROWS // 200})", singly * ROWS / 200, None),
    ]
    print(
        f"Srifty {srifty.__version__}, {date.today()}, Python {platform.python_version()}, numpy {np.__version__},"
    )
    print(f"{platform.machine()}, one core, median of 3 to 5 runs\n")
    print("| what | seconds | asked |")
    print("| --- | ---: | ---: |")
    for what, took, asked in rows:
        print(f"| {what} | {took:.3f} | {'' if asked is None else f'< {asked}'} |")
    print(f"\nOne call is {singly * ROWS / 200 / in_one_call:,.0f} times faster than one by one.\n")
    print("| iteration estimates a second, one core, batch form | a second | asked |")
    print("| --- | ---: | ---: |")
    estimates = iterations_a_second()
    whole = ("whole prediction of BERT-base: curves, exchange and five scenarios", ROWS / in_one_call, None)
    for what, count, least in [*estimates, whole]:
        print(f"| {what} | {count:,.0f} | {'' if least is None else f'> {least:,.0f}'} |")
    print(f"\nThe batch form is {estimates[0][1] / estimates[-1][1]:,.0f} times faster than event by event.")


if __name__ == "__main__":
    main()
