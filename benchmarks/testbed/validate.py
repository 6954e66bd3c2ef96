"""make validate: a few real DDP runs on shaped links, predicted beforehand. Needs Linux and root; about 5 minutes."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import mean

from benchmarks.testbed.bed import Point, bed
from benchmarks.testbed.jobs import emulated, profiled
from benchmarks.testbed.links import link_rates
from benchmarks.testbed.predictions import Prediction, learned, measured_exchanges, predicted
from benchmarks.testbed.setups import BedNode, Setup, mixed, uniform
from srifty.clouds.testbed_network import check_able
from srifty.errors import SriftyError

MEAN_LIMIT, WORST_LIMIT, TIMES_BETTER = 0.08, 0.15, 3.0
FOLDER = Path("out/validate")
JOBS = {"resnet50": ("V100", 1 / 8, (20, 40, 81)), "bert-base": ("T4", 1 / 16, (4, 8, 12))}
SLOW = 0.5
UPLINK_GBIT = 0.5


def setups() -> list[Setup]:
    """What is scored; exchanges are measured on 2 and 4 nodes of one kind, so nothing of it was fitted."""
    fast = BedNode(1.0, batch=40)
    bert = BedNode(0.5, batch=8)
    return [
        uniform("resnet50", 2, 1.0, 40),
        uniform("resnet50", 3, 1.0, 60),
        uniform("resnet50", 4, 1.0, 81),
        uniform("resnet50", 3, 0.5, 40),
        uniform("resnet50", 4, 0.5, 30),
        uniform("bert-base", 3, 0.5, 8),
        uniform("bert-base", 4, 1.0, 12),
        uniform("bert-base", 2, 1.0, 6),
        uniform("resnet50", 3, 1.0, 40, accumulation=2),
        mixed("resnet50", [fast, fast, BedNode(0.5, batch=40)], "unlike links"),
        mixed("bert-base", [bert, bert, BedNode(1.0, batch=8)], "unlike links"),
        mixed("resnet50", [fast, fast, BedNode(1.0, speed=SLOW, batch=20)], "unlike shares"),
        mixed("resnet50", [fast, BedNode(1.0, speed=SLOW, batch=20)], "unlike shares"),
        Setup("resnet50", (BedNode(1.0, batch=40, network="uplink"),) * 4, "uplink", UPLINK_GBIT),
        Setup("bert-base", (BedNode(1.0, batch=8, network="uplink"),) * 4, "uplink", UPLINK_GBIT),
    ]


def main() -> int:
    """Measure, predict, measure again, compare; 1 where the predictions are too far off."""
    begin = time.monotonic()
    check_able()
    FOLDER.mkdir(parents=True, exist_ok=True)
    jobs = {name: emulated(name, gpu, scale=scale) for name, (gpu, scale, _) in JOBS.items()}
    profiles = {
        name: [
            profiled(jobs[name], batches, speed=speed, gpu=BedNode(1.0, speed=speed).gpu)
            for speed in ((1.0, SLOW) if name == "resnet50" else (1.0,))
        ]
        for name, (_, _, batches) in JOBS.items()
    }
    print(f"profiled {len(JOBS)} jobs after {time.monotonic() - begin:.0f} s", flush=True)
    with bed("validate", 4, has_racks=True) as the_bed:
        for asked, found in link_rates(the_bed.network):
            print(f"link of {asked / 125e6:g} Gbit/s carries {found / asked:.3f} of it")
        kinds = [BedNode(1.0), BedNode(0.5)]
        samples = measured_exchanges(the_bed, kinds, (2, 4))
        samples += measured_exchanges(
            the_bed, [BedNode(1.0, network="uplink")], (4,), uplink_gbit=UPLINK_GBIT
        )
        samples += measured_exchanges(the_bed, [BedNode(1.0, speed=SLOW)], (2, 4))
        scored = setups()
        model = learned(samples, [*kinds, *(node for setup in scored for node in setup.nodes)])
        told = predicted(scored, profiles, model)
        text = json.dumps({key: asdict(one) for key, one in told.items()}, indent=1)
        (FOLDER / "predictions.json").write_text(text, encoding="utf-8")
        print(f"{len(scored)} predictions written after {time.monotonic() - begin:.0f} s", flush=True)
        measured = {setup.key: the_bed.steps(setup, jobs[setup.job], steps=10) for setup in scored}
    (FOLDER / "measured.json").write_text(
        json.dumps({key: asdict(one) for key, one in measured.items()}, indent=1), encoding="utf-8"
    )
    print(table(scored, told, measured))
    return verdict(scored, told, measured, time.monotonic() - begin)


def table(scored: list[Setup], told: dict[str, Prediction], measured: dict[str, Point]) -> str:
    """A line a setup."""
    lines = ["| setup | measured | predicted | error | in band | no overlap | others' load |"]
    lines.append("| --- | ---: | ---: | ---: | :-: | ---: | ---: |")
    for setup in scored:
        one, point = told[setup.key], measured[setup.key]
        step_s = point.centre_s
        what = f"{setup.job}, {setup.group}: " + " ".join(
            f"{node.rate_gbit:g}G/{node.speed:g}/{node.batch}" for node in setup.nodes
        )
        is_in = "yes" if one.p10_s <= step_s <= one.p90_s else "no"
        lines.append(
            f"| {what} | {1e3 * step_s:.0f} ms | {1e3 * one.p50_s:.0f} ms | {100 * (one.p50_s / step_s - 1):+.1f} % "
            f"| {is_in} | {100 * (one.baselines['no overlap'] / step_s - 1):+.0f} % | {100 * point.others:.0f} % |"
        )
    return "\n".join(lines)


def verdict(
    scored: list[Setup], told: dict[str, Prediction], measured: dict[str, Point], took_s: float
) -> int:
    """Say how far off the predictions are, and whether that is within the limits."""
    errors = [abs(told[one.key].p50_s / measured[one.key].centre_s - 1) for one in scored]
    plain = [abs(told[one.key].baselines["no overlap"] / measured[one.key].centre_s - 1) for one in scored]
    better = mean(plain) / mean(errors)
    print(
        f"{len(scored)} setups: mean error {100 * mean(errors):.1f} % (limit {100 * MEAN_LIMIT:.0f}), worst "
        f"{100 * max(errors):.1f} % (limit {100 * WORST_LIMIT:.0f}), {better:.1f} times better than no overlap "
        f"(limit {TIMES_BETTER:g}); took {took_s:.0f} s"
    )
    is_good = mean(errors) <= MEAN_LIMIT and max(errors) <= WORST_LIMIT and better >= TIMES_BETTER
    return 0 if is_good else 1


def run() -> int:
    """As a command: an error in one line."""
    try:
        return main()
    except SriftyError as error:
        print(f"make validate: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(run())
