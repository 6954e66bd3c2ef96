"""What people type becomes seconds, dollars and samples."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srifty.cli.arguments import count, deadline_s, usd
from srifty.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12h", 43200),
        ("90min", 5400),
        ("90m", 5400),
        ("1d 6h", 108000),
        ("1h30m", 5400),
        ("0.5h", 1800),
        ("45s", 45),
        ("2W", 1209600),
    ],
)
def test_lengths_of_time(text, seconds):
    assert deadline_s(text) == seconds


def test_an_instant_is_the_time_left_until_then():
    now = datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert deadline_s("2026-11-30T12:00Z", now=now) == 86400
    assert deadline_s("2026-11-29T15:00+02:00", now=now) == 3600


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1281167", 1281167),
        ("1_281_167", 1281167),
        ("1,281,167", 1281167),
        ("1.28M", 1280000),
        ("115e6", 115000000),
        ("50k", 50000),
        ("2B", 2 * 10**9),
    ],
)
def test_counts(text, number):
    assert count(text, "--samples") == number


@pytest.mark.parametrize(
    ("text", "amount"), [("200", 200), ("$1,500", 1500), ("49.90USD", 49.9), ("49.90 usd", 49.9)]
)
def test_money(text, amount):
    assert usd(text) == amount


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    for read in (deadline_s, usd, lambda typed: count(typed, "--samples")):
        with contextlib.suppress(InvalidInput):
            assert read(text) > 0
