"""How much of a nominal rate an exchange gets: what the efficiencies in the model follow from.

Two sources: published AllReduce times, and, for PCIe, of which they have none, the published steps of several
GPUs in one machine.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.accuracy.machines import MACHINES
from benchmarks.accuracy.measured import read_csv, step_timings
from benchmarks.accuracy.step_times import profile_of
from srifty.predicting.allreduce_model import NVLINK, TCP_FLOW_BYTES_PER_S, hierarchical_allreduce
from srifty.predicting.compute_model import ComputeModel

NOMINAL_BYTES_PER_S = {
    ("aws:p3.2xlarge", "10Gbps TCP"): ("TCP", 10e9 / 8),
    ("aws:c5.18xlarge", "TCP, cluster placement group"): ("TCP", 25e9 / 8),
    ("aws:p3.16xlarge", "TCP, cluster placement group"): ("TCP", 25e9 / 8),
    ("aws:p5.48xlarge", "EFA"): ("fabric", 3200e9 / 8),
    ("aws:p5.48xlarge", "EFA (EKS, NCCL 2.18.5)"): ("fabric", 3200e9 / 8),
    ("aws:p5.48xlarge", "NVLink/NVSwitch"): ("NVLink", 450e9),
}
"""Rate of a machine's network, or of a GPU's link; links slowed on purpose are left out."""


def shares(folder: Path) -> dict[tuple[str, str, str, int], tuple[float, float, int]]:
    """(backend, kind, machine, ranks) -> median share, its 10-90 % range as a factor, count.

    share = 2 (k - 1) / k x bytes / duration / rate
    """
    found: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    for row in read_csv(folder / "allreduce" / "allreduce.csv"):
        nominal = NOMINAL_BYTES_PER_S.get((row["vm_type"], row["network"]))
        size, ranks = int(row["message_bytes"]), int(row["num_ranks"])
        if nominal is None or size < 2**20:
            continue
        kind, rate = nominal
        rate = min(rate, TCP_FLOW_BYTES_PER_S) if kind == "TCP" else rate
        bus_rate = 2 * (ranks - 1) / ranks * size / (float(row["time_us"]) * 1e-6)
        found[row["backend"], kind, row["vm_type"], ranks].append(bus_rate / rate)
    return {
        key: (
            float(np.median(values)),
            float(np.quantile(values, 0.9) / np.quantile(values, 0.1)),
            len(values),
        )
        for key, values in sorted(found.items())
    }


def latency_and_share(folder: Path, network: str, ranks: int, rate: float) -> tuple[float, float]:
    """Latency of one ring step [s] and share of the rate, by least squares of the relative error.

    duration = 2 (k - 1) latency + 2 (k - 1) / k x bytes / (share x rate), over messages of 1 MiB to 1 GiB.
    """
    size, seconds = [], []
    for row in read_csv(folder / "allreduce" / "allreduce.csv"):
        message = int(row["message_bytes"])
        if row["network"] == network and int(row["num_ranks"]) == ranks and 2**20 <= message <= 2**30:
            size.append(message)
            seconds.append(float(row["time_us"]) * 1e-6)
    bytes_moved = 2 * (ranks - 1) / ranks * np.array(size) / rate
    columns = (
        np.stack([np.full(len(size), 2.0 * (ranks - 1)), bytes_moved], axis=1) / np.array(seconds)[:, None]
    )
    latency, inverse_share = np.linalg.lstsq(columns, np.ones(len(size)), rcond=None)[0]
    return float(latency), float(1 / inverse_share)


def by_node(folder: Path) -> list[tuple[int, float, float, float, float]]:
    """(bytes, measured, ring, node by node [s], share of the network's rate that a ring would need) on 2 p5.48xlarge.

    The ring's figures are its best fit (`latency_and_share`), those of node by node are the model's.
    """
    two, eight, fabric, nvlink = np.array([2]), np.array([8]), np.array([3200e9 / 8]), np.array([450e9])
    model = hierarchical_allreduce(two, eight, fabric, nvlink)
    latency, share = latency_and_share(folder, "EFA", 16, 3200e9 / 8)
    found = []
    for row in read_csv(folder / "allreduce" / "allreduce.csv"):
        size = int(row["message_bytes"])
        if row["network"] == "EFA" and row["num_ranks"] == "16" and row["repeat"] == "0" and size >= 2**20:
            seconds = float(row["time_us"]) * 1e-6
            at_nominal = 2 * 15 / 16 * size / (3200e9 / 8)
            ring = 30 * latency + at_nominal / share
            tree = float(model.latency_s[0] + size * model.seconds_per_byte[0])
            found.append((size, seconds, ring, tree, at_nominal / seconds))
    return found


def node_latency_s(folder: Path) -> float:
    """Latency of one level of a tree of nodes [s], by least squares of the relative error over 1 MiB to 1 GiB."""
    rate = NVLINK.share * 450e9
    measured = [(size, seconds) for size, seconds, *_ in by_node(folder) if size <= 2**30]
    left = [1 - 2 * 7 / 8 * size / rate / seconds for size, seconds in measured]
    inverse = [1 / seconds for _, seconds in measured]
    whole = float(np.dot(inverse, left) / np.dot(inverse, inverse))
    return (whole - 14 * NVLINK.latency_s) / 2


def pcie_shares(folder: Path) -> dict[str, tuple[float, int]]:
    """Machine -> share of PCIe's nominal rate that explains the steps of bert on several GPUs of one machine.

    Only rows whose step is at least 20 % longer than on one GPU, where the exchange shows:

        rate = 2 (k - 1) / k x bytes / (step - compute + the part of the backward pass that hides it)

    with the whole backward pass but its first bucket taken to hide exchange.
    """
    rows = [row for row in step_timings(folder) if row.step.job == "bert" and len(row.step.layout) == 1]
    found = {}
    for session in ("aws", "rtx", "quad"):
        own = [row for row in rows if row.session == session]
        profile = profile_of(session, "bert", (row for row in own if row.step.gpu_count == 1))
        assert profile is not None, session
        model = ComputeModel.fit(profile)
        first_ready = profile.buckets[0].ready_at
        values = []
        for row in own:
            step, k = row.step, row.step.gpu_count
            forward, backward, optimizer, *_ = (
                float(part[0]) for part in model.phases(np.array([float(step.batch_per_gpu)]))
            )
            exposed = step.step_s - forward - backward - optimizer
            if k > 1 and exposed > 0.2 * step.step_s:
                exchange = exposed + (1 - first_ready) * backward
                values.append(2 * (k - 1) / k * profile.trainable_bytes / exchange)
        if values:
            link = MACHINES[session].gpu_link_gbyte_per_s * 1e9
            found[session] = (float(np.median(values) / link), len(values))
    return found


def report(folder: Path) -> str:
    """The tables, as Markdown."""
    lines = [
        "| backend | link | machine | ranks | median share | p90/p10 | messages |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for (backend, kind, machine, ranks), (median, factor, count) in shares(folder).items():
        lines.append(f"| {backend} | {kind} | {machine} | {ranks} | {median:.2f} | {factor:.1f} | {count} |")
    lines += ["", "| link | latency of a ring step | share of the rate |", "| --- | ---: | ---: |"]
    for name, network, ranks, rate in (
        ("fabric, 2 x p5.48xlarge, were it a ring", "EFA", 16, 3200e9 / 8),
        ("NVLink, 1 x p5.48xlarge", "NVLink/NVSwitch", 8, 450e9),
    ):
        latency, share = latency_and_share(folder, network, ranks, rate)
        lines.append(f"| {name} | {latency * 1e6:.1f} us | {share:.2f} |")
    lines += [
        "",
        "| message, 2 x p5.48xlarge | measured | ring, best fit | node by node | rate that a ring needs |",
    ]
    lines.append("| ---: | ---: | ---: | ---: | ---: |")
    for size, seconds, ring, tree, share in by_node(folder)[::2]:
        cells = (
            f"{size / 2**20:.0f} MiB",
            *(f"{1e3 * x:.3g} ms" for x in (seconds, ring, tree)),
            f"{share:.0%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"\nOne level of a tree of nodes takes {node_latency_s(folder) * 1e6:.0f} us.")
    lines += ["", "| PCIe machine | share of PCIe's rate | rows |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {share:.2f} | {count} |" for name, (share, count) in pcie_shares(folder).items()]
    return "\n".join(lines)
