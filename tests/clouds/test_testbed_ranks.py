"""Ranks on the testbed: real DDP and real exchanges through shaped links."""

from __future__ import annotations

import os
import shutil
import sys
from statistics import median

import pytest

from srifty.clouds import testbed_network as bed
from srifty.clouds.testbed_network import NodeLink, Shape, shaped_network
from srifty.clouds.testbed_ranks import TestbedRanks
from srifty.errors import CloudRefused

pytest.importorskip("torch", reason="ranks train with PyTorch")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("tc") is None,
    reason="network namespaces need Linux, root and iproute2",
)
GBIT = 1e9 / 8
COMMAND = [sys.executable, "-m", "srifty.profiling.rank_server"]
JOB = {
    "name": "small",
    "layers": [{"parameter_bytes": 2_000_000, "forward_share": 0.5, "backward_share": 0.5}] * 2,
    "batch": [8],
    "forward_s": [0.01],
    "backward_s": [0.02],
}


def asked(ranks: int, **more: object) -> dict[str, object]:
    return {
        "do": "steps", "job": JOB, "batch": [8] * ranks, "speed": [1.0] * ranks, "noise": [0.0] * ranks,
        "steps": 5, "cold": 2, **more,
    }  # fmt: skip


def test_exchanges_and_steps_feel_the_links_and_the_slowest_device():
    with (
        shaped_network("ranks1", [NodeLink(Shape(0.2 * GBIT))] * 2) as network,
        TestbedRanks(network, [0, 0, 1], COMMAND) as ranks,
    ):
        both = [0, 2]
        told = ranks.ask(both, {"do": "allreduce", "bytes": 4_000_000, "repeats": 3})
        exchange_s = median(told[0]["duration_s"])
        assert exchange_s == pytest.approx(4e6 / (0.957 * 0.2 * GBIT), rel=0.3)
        network.shape(0, Shape(0.05 * GBIT))
        told = ranks.ask(both, {"do": "allreduce", "bytes": 4_000_000, "repeats": 3})
        assert median(told[0]["duration_s"]) > 2.5 * exchange_s

        alone = median(ranks.ask([0], asked(1))[0]["step_s"])
        assert alone == pytest.approx(0.03, rel=0.4)
        inside = median(ranks.ask([0, 1], asked(2))[0]["step_s"])
        across = median(ranks.ask(both, asked(2))[0]["step_s"])
        assert inside < across
        assert across >= 4e6 / (0.05 * GBIT)
        slow = median(ranks.ask([0, 1], asked(2, speed=[1.0, 0.25]))[0]["step_s"])
        assert slow >= 4 * 0.03


def test_a_rank_that_dies_is_named_and_nothing_is_left():
    with (
        shaped_network("ranks2", [NodeLink(Shape(GBIT))] * 2) as network,
        TestbedRanks(network, [0, 1], COMMAND) as ranks,
    ):
        os.kill(ranks.processes()[1], 9)
        with pytest.raises(CloudRefused, match="rank 1 has died"):
            ranks.ask([0, 1], asked(2), seconds=20)
    assert not [space for space in bed.namespaces() if "ranks2" in space]


def test_what_a_rank_cannot_answer_is_said():
    with (
        shaped_network("ranks3", [NodeLink(Shape(GBIT))]) as network,
        TestbedRanks(network, [0], COMMAND) as ranks,
        pytest.raises(CloudRefused, match="unknown question"),
    ):
        ranks.ask([0], {"do": "sing"})
