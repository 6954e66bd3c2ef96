"""Measured and learned exchanges, as people read them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.predicting.exchange_kit import AT, session

from srifty.records import ExchangeModel, ExchangeSetup
from srifty.records.exchange_model import TreeQuantile
from srifty.reporting.exchange_table import exchange_table
from srifty.reporting.network_table import network_table


def text_of(table, width=100):
    screen = Console(file=io.StringIO(), width=width, highlight=False)
    screen.print(table)
    return screen.file.getvalue()


def model(**fields):
    setup = ExchangeSetup(
        instance_types=("p3.2xlarge",),
        backend="nccl",
        backend_version="2.27.3",
        has_many_nodes=True,
        link_bytes_per_s=1.25e9,
        latency_s=28e-6,
        latency_growth=1.0,
        share=0.8,
        peer_growth=0.1,
        sharpness=1.0,
        log_covariance=((0.0,) * 5,) * 5,
        node_range=(2, 8),
        gpus_per_node_range=(1.0, 1.0),
        message_range_bytes=(1024, 2**28),
        concurrency_range=(1, 1),
        sample_count=240,
        session_count=1,
    )
    given = {
        "setups": (setup,),
        "features": ("node_count",),
        "backends": ("nccl 2.27.3",),
        "residuals": tuple(TreeQuantile(quantile=share, base=0.0) for share in (0.1, 0.5, 0.9)),
        "within_session_log_sd": 0.031,
        "between_session_log_sd": None,
        "small_band": (1.0, 1.0),
        "large_band": (1.0, 1.0),
        "assumptions": ("of the test",),
        "fitted_at": AT,
    }
    return ExchangeModel.model_validate(given | fields)


def test_a_model_says_what_each_setup_gets_of_its_link_and_how_sessions_differ():
    said = text_of(exchange_table(model(), width=100))
    for part in ("p3.2xlarge", "nccl 2.27.3", "2-8", "8 of 10", "28 us", "240", "1 KiB to 256 MiB", "3.1 %"):
        assert part in said
    assert "from session to session not measured (one session)" in said
    assert "- of the test" in said
    assert "7.2 %" in text_of(exchange_table(model(between_session_log_sd=0.072)))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_tables_fit_a_terminal_of_any_width(width):
    for table in (exchange_table(model(), width=width), network_table(session(), width=width)):
        assert all(len(line) <= width for line in text_of(table, width).splitlines())


def test_what_was_measured_is_shown_by_group_and_size():
    said = text_of(network_table(session(nodes=(2, 8), rate=1e9), width=100))
    assert "AllReduce on small, nccl 2.21.5" in said
    assert "256 MiB" in said
    assert "100 readings of 20 exchanges" in said
