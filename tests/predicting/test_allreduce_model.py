"""The ring formula, and the efficiencies that it takes from published measurements."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.accuracy import exchange_efficiency
from benchmarks.accuracy.measured import data_folder
from hypothesis import given
from hypothesis import strategies as st

from srifty.predicting.allreduce_model import FABRIC, GLOO, NVLINK, PCIE, TCP, ring_allreduce

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
    fabric = exchange_efficiency.latency_and_share(folder, "EFA", 16, 3200e9 / 8)
    nvlink = exchange_efficiency.latency_and_share(folder, "NVLink/NVSwitch", 8, 450e9)
    assert fabric == pytest.approx((FABRIC.latency_s, FABRIC.share), rel=0.02)
    assert nvlink == pytest.approx((NVLINK.latency_s, NVLINK.share), rel=0.02)
    pcie = [share for share, _ in exchange_efficiency.pcie_shares(folder).values()]
    assert np.exp(np.mean(np.log(pcie))) == pytest.approx(PCIE.share, rel=0.05)
