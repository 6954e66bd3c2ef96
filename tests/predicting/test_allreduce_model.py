"""The ring and the node-by-node formula, and the efficiencies that they take from published measurements."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.accuracy import exchange_efficiency
from benchmarks.accuracy.measured import data_folder
from hypothesis import given
from hypothesis import strategies as st

from srifty.predicting import allreduce_model
from srifty.predicting.allreduce_model import (
    FABRIC,
    GLOO,
    NODE_LATENCY_S,
    NVLINK,
    PCIE,
    TCP,
    ring_allreduce,
)

INF = float("inf")


def allreduce(gpus, network=INF, link=INF, nvlink=False, cpu=False):
    one = ring_allreduce(
        np.array([gpus]), np.array([network]), np.array([link]), np.array([nvlink]), np.array([cpu])
    )
    return float(one.latency_s[0]), float(one.seconds_per_byte[0]), float(one.log_sd[0])


def test_one_gpu_exchanges_nothing():
    assert allreduce(1)[:2] == (0, 0)


def test_two_nodes_exchange_by_the_ring_formula():
    latency, per_byte, log_sd = allreduce(2, network=1.25e9)
    assert per_byte == pytest.approx(2 * (1 / 2) / (1.25e9 * TCP.share))
    assert latency == pytest.approx(2 * TCP.latency_s)
    assert log_sd == TCP.log_sd


def test_the_slowest_link_sets_the_rate():
    slow_network = allreduce(8, network=1.25e9, link=300e9, nvlink=True)[1]
    slow_link = allreduce(8, network=200e9, link=15.75e9)[1]
    assert slow_network == pytest.approx(2 * 7 / 8 / (1.25e9 * TCP.share))
    assert slow_link == pytest.approx(2 * 7 / 8 / (15.75e9 * PCIE.share))


def test_plain_tcp_gains_nothing_from_a_machine_s_rate_beyond_one_flow():
    assert allreduce(4, network=25e9 / 8)[1] == allreduce(4, network=10e9 / 8)[1]
    assert allreduce(4, network=100e9 / 8)[1] < allreduce(4, network=10e9 / 8)[1]


def test_cpus_exchange_through_gloo():
    assert allreduce(4, network=1.25e9, cpu=True)[1] > allreduce(4, network=1.25e9)[1]


@given(st.integers(2, 1000), st.floats(1e8, 1e12), st.floats(1, 10))
def test_more_rate_is_never_slower_and_more_gpus_never_faster(gpus, rate, factor):
    assert allreduce(gpus, network=rate * factor)[1] <= allreduce(gpus, network=rate)[1] * (1 + 1e-12)
    more, fewer = allreduce(gpus + 1, network=rate), allreduce(gpus, network=rate)
    assert more[0] >= fewer[0]
    assert more[1] >= fewer[1]


def on(nodes, gpus_per_node, network=50e9, link=300e9, nvlink=True, cpu=False):
    """The form that the links call for."""
    return allreduce_model.allreduce(
        node_count=np.array([nodes]),
        gpu_count=np.array([nodes * gpus_per_node]),
        most_gpus_per_node=np.array([gpus_per_node]),
        network_bytes_per_s=np.array([network if nodes > 1 else INF]),
        gpu_link_bytes_per_s=np.array([link if gpus_per_node > 1 else INF]),
        link_is_nvlink=np.array([nvlink]),
        on_cpu=np.array([cpu]),
    )


def test_two_nodes_with_nvlink_and_a_fabric_exchange_node_by_node():
    model = on(2, 8)
    assert model.inside.seconds_per_byte[0] == pytest.approx(2 * 7 / 8 / (NVLINK.share * 300e9))
    assert model.across.seconds_per_byte[0] == pytest.approx(1 / (FABRIC.share * 50e9))
    assert model.seconds_per_byte[0] == model.across.seconds_per_byte[0]
    assert model.latency_s[0] == pytest.approx(14 * NVLINK.latency_s + 2 * NODE_LATENCY_S)


@pytest.mark.parametrize(("nodes", "measured_s"), [(2, 35.2e-3), (3, 64.8e-3), (4, 70.2e-3)])
def test_p4d_machines_take_what_users_measured_for_a_gibibyte(nodes, measured_s):
    """8 A100 each, 400 Gbit/s of EFA between them (NVIDIA/nccl#527); nothing here was fitted to it."""
    model = on(nodes, 8)
    told = float(model.latency_s[0] + 2**30 * model.seconds_per_byte[0])
    assert told == pytest.approx(measured_s, rel=0.1)


def test_two_nodes_of_eight_gpus_and_eight_of_two_differ_and_the_parts_say_why():
    """Users ask why, and see one figure (astra-sim#150)."""
    few, many = on(2, 8), on(8, 2)
    # Node by node the network carries the bytes once; round the ring of 16 GPUs 2 x 15 / 16 of them.
    assert many.across.seconds_per_byte[0] / few.across.seconds_per_byte[0] == pytest.approx(1.875)
    # Inside, it is 2 x 7 / 8 of them against the ring's, which are the same on each of its links.
    assert many.inside.seconds_per_byte[0] / few.inside.seconds_per_byte[0] == pytest.approx(1.875 / 1.75)
    assert many.seconds_per_byte[0] / few.seconds_per_byte[0] == pytest.approx(1.875)


def test_over_plain_tcp_both_take_the_same_since_the_ring_passes_every_gpu():
    few, many = (on(n, 16 // n, network=1.25e9, link=15.75e9, nvlink=False) for n in (2, 8))
    assert few.seconds_per_byte[0] == many.seconds_per_byte[0] == few.across.seconds_per_byte[0]
    assert few.inside.seconds_per_byte[0] == many.inside.seconds_per_byte[0]


def test_links_that_no_exchange_passes_are_never_busy():
    alone, one_each, single = on(1, 8), on(8, 1), on(1, 1)
    assert alone.across.busy_s(np.array([1e9]))[0] == 0 < alone.inside.busy_s(np.array([1e9]))[0]
    assert one_each.inside.busy_s(np.array([1e9]))[0] == 0 < one_each.across.busy_s(np.array([1e9]))[0]
    assert single.latency_s[0] == single.seconds_per_byte[0] == 0


def test_the_nominal_rate_is_never_reached():
    """Users get 70 % of InfiniBand's rate on 8 machines and 60 % on 16, and ask why (aws-ofi-nccl#19)."""
    for each in (TCP, FABRIC, NVLINK, PCIE, GLOO):
        assert each.share < 1
    for nodes, measured in ((8, 0.70), (16, 0.60)):  # p3dn.24xlarge: 8 V100, 100 Gbit/s EFA
        model = on(nodes, 8, network=12.5e9, link=150e9)
        got = 2 * (8 * nodes - 1) / (8 * nodes) / float(model.seconds_per_byte[0]) / 12.5e9
        assert got == pytest.approx(measured, abs=0.06)


@given(st.integers(1, 64), st.integers(1, 16), st.floats(1e9, 1e12), st.floats(1e9, 1e12), st.floats(1, 10))
def test_faster_links_are_never_slower_in_either_form(nodes, gpus, network, link, factor):
    for nvlink in (True, False):
        slow = on(nodes, gpus, network, link, nvlink)
        for fast in (
            on(nodes, gpus, network, link * factor, nvlink),
            on(nodes, gpus, network * factor, link, nvlink),
        ):
            assert fast.seconds_per_byte[0] <= slow.seconds_per_byte[0] * (1 + 1e-12)


def test_the_efficiencies_are_those_that_the_published_measurements_give():
    try:
        folder = data_folder()
    except SystemExit as absent:
        pytest.skip(str(absent))
    found = exchange_efficiency.shares(folder)
    tcp = [share for (backend, kind, *_), (share, *_) in found.items() if (backend, kind) == ("nccl", "TCP")]
    gloo = [share for (backend, *_), (share, *_) in found.items() if backend == "gloo"]
    assert np.mean(tcp) == pytest.approx(TCP.share, abs=0.01)
    assert np.median(gloo) == pytest.approx(GLOO.share, abs=0.01)
    nvlink = exchange_efficiency.latency_and_share(folder, "NVLink/NVSwitch", 8, 450e9)
    by_node = exchange_efficiency.by_node(folder)
    assert exchange_efficiency.latency_and_share(folder, "EFA", 16, 3200e9 / 8)[0] == pytest.approx(
        FABRIC.latency_s, rel=0.02
    )
    assert exchange_efficiency.node_latency_s(folder) == pytest.approx(NODE_LATENCY_S, rel=0.02)
    # A ring would need more than the network has; 2 (n - 1) / n of the bytes pass it in 65 % of its rate.
    size, seconds, *_, ring_needs = by_node[-1]
    assert ring_needs > 1.2
    assert size / seconds / (3200e9 / 8) == pytest.approx(FABRIC.share, abs=0.01)
    errors = [(abs(ring / t - 1), abs(tree / t - 1)) for size, t, ring, tree, _ in by_node if size >= 2**30]
    ring_error, tree_error = np.mean(errors, axis=0)
    assert tree_error < 0.12 < 0.2 < ring_error
    assert nvlink == pytest.approx((NVLINK.latency_s, NVLINK.share), rel=0.02)
    pcie = [share for share, _ in exchange_efficiency.pcie_shares(folder).values()]
    assert np.exp(np.mean(np.log(pcie))) == pytest.approx(PCIE.share, rel=0.05)
