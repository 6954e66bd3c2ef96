"""The testbed's network: links keep their rate, and everything that was made goes, whatever happens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest

from srifty.clouds import testbed_network as bed
from srifty.clouds.testbed_flow import flow_bytes_per_s
from srifty.clouds.testbed_network import NodeLink, Shape, TestbedNetwork, shaped_network
from srifty.errors import CloudRefused, InvalidInput

GBIT = 1e9 / 8
needs_root = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("tc") is None,
    reason="network namespaces need Linux, root and iproute2",
)


def flow(network: TestbedNetwork, source: int, sink: int) -> float:
    return flow_bytes_per_s(network, source, sink, seconds=0.7)


@needs_root
def test_a_flow_gets_the_rate_of_the_slowest_link_on_its_way():
    links = [NodeLink(Shape(0.5 * GBIT)), NodeLink(Shape(0.5 * GBIT)), NodeLink(Shape(0.5 * GBIT), rack=1)]
    with shaped_network("tests1", links, uplink=Shape(0.1 * GBIT)) as network:
        assert flow(network, 0, 1) == pytest.approx(0.957 * 0.5 * GBIT, rel=0.1)
        assert flow(network, 0, 2) == pytest.approx(0.957 * 0.1 * GBIT, rel=0.15)
        network.shape(1, Shape(0.2 * GBIT))
        assert flow(network, 0, 1) == pytest.approx(0.957 * 0.2 * GBIT, rel=0.1)
        assert flow(network, 1, 0) == pytest.approx(0.957 * 0.2 * GBIT, rel=0.1)


@needs_root
def test_credits_are_spent_at_the_peak_rate_and_then_the_sustained_one_holds():
    links = [NodeLink(Shape(0.05 * GBIT, 0.5 * GBIT, credit_bytes=20_000_000)), NodeLink(Shape(GBIT))]
    with shaped_network("tests2", links) as network:
        first, second = flow(network, 0, 1), flow(network, 0, 1)
        assert first > 2 * second
        assert second == pytest.approx(0.05 * GBIT, rel=0.3)


@needs_root
def test_nothing_is_left_of_a_network_not_even_its_processes():
    with TestbedNetwork("tests3", [NodeLink(Shape(GBIT))] * 2) as network:
        left = subprocess.Popen(network.inside(0, ["sleep", "600"]))
        until = time.monotonic() + 5
        while not bed.processes("tests3") and time.monotonic() < until:
            time.sleep(0.02)
        assert bed.processes("tests3") == [left.pid]
    assert left.wait(5) == -9
    assert not [space for space in bed.namespaces() if "tests3" in space]


@needs_root
def test_what_a_killed_maker_leaves_is_swept_by_the_next_and_nothing_else_is():
    subprocess.run(["ip", "netns", "add", "another-s"], check=True)
    try:
        code = (
            "import os\n"
            "from srifty.clouds.testbed_network import *\n"
            "network = TestbedNetwork('tests4', [NodeLink(Shape(1e8))] * 2)\n"
            "os.kill(os.getpid(), 9)\n"
        )
        subprocess.run([sys.executable, "-c", code], check=False)
        assert bed.stale() == ["tests4"]
        with shaped_network("tests5", [NodeLink(Shape(GBIT))]):
            spaces = bed.namespaces()
            assert not [space for space in spaces if "tests4" in space]
            assert "another-s" in spaces
    finally:
        subprocess.run(["ip", "netns", "delete", "another-s"], check=True)


@needs_root
def test_a_cut_cable_lets_nothing_through():
    with shaped_network("tests10", [NodeLink(Shape(GBIT))] * 2) as network:
        network.cut(1)
        ping = f"import socket; socket.create_connection(({network.address(1)!r}, 5001), timeout=0.5)"
        done = subprocess.run(
            network.inside(0, [sys.executable, "-c", ping]), capture_output=True, check=False
        )
        assert done.returncode != 0


@needs_root
def test_a_name_that_is_taken_is_refused_and_the_first_network_stays():
    with TestbedNetwork("tests6", [NodeLink(Shape(GBIT))] * 2) as first:
        with pytest.raises(CloudRefused, match="there already"):
            TestbedNetwork("tests6", [NodeLink(Shape(GBIT))])
        assert first.namespace(1) in bed.namespaces()


def test_without_root_that_is_said(monkeypatch):
    monkeypatch.setattr(bed.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(bed.sys, "platform", "linux")
    with pytest.raises(CloudRefused, match="takes root"):
        TestbedNetwork("tests7", [NodeLink(Shape(GBIT))])


def test_a_missing_program_is_named(monkeypatch):
    monkeypatch.setattr(bed.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bed.sys, "platform", "linux")
    monkeypatch.setattr(bed.shutil, "which", lambda program: None if program == "tc" else "/bin/ip")
    with pytest.raises(CloudRefused, match=r"needs tc: install iproute2"):
        TestbedNetwork("tests8", [NodeLink(Shape(GBIT))])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TestbedNetwork("not a name", [NodeLink(Shape(GBIT))]), "lower-case letters"),
        (lambda: TestbedNetwork("tests9", []), "0 nodes"),
        (lambda: TestbedNetwork("tests9", [NodeLink(Shape(GBIT), rack=2)]), "racks 0 and 1"),
        (lambda: Shape(1.0), "cannot be shaped"),
        (lambda: Shape(1e8, 1e7), "below the sustained"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_made(make, said):
    with pytest.raises(InvalidInput, match=said):
        make()
