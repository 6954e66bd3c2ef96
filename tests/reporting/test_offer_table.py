"""The table of offers that people read."""

from __future__ import annotations

import re
from datetime import date, timedelta

import pytest
from rich.console import Console

from srifty.records import Market, Offer
from srifty.reporting.offer_table import offer_table

TODAY = date(2026, 11, 29)


def offer(**fields) -> Offer:
    usual = {
        "cloud": "aws",
        "region": "us-east-1",
        "instance_type": "g4dn.12xlarge",
        "gpu": "T4",
        "gpu_count": 4,
        "gpu_memory_bytes": 16 * 2**30,
        "vcpu_count": 48,
        "network_bytes_per_s": 6.25e9,
        "market": Market.ON_DEMAND,
        "usd_per_hour": 3.912,
        "price_as_of": date(2026, 7, 1),
        "source": "test",
    }
    return Offer(**(usual | fields))


UNLIKE = offer(
    cloud="azure",
    region="northcentralus",
    instance_type="Standard_ND96isr_MI300X_v5",
    gpu="MI300X",
    gpu_count=8,
    gpu_memory_bytes=192 * 2**30,
    vcpu_count=96,
    network_bytes_per_s=None,
    usd_per_hour=1067.2,
    market=Market.SPOT,
    price_as_of=date(2025, 3, 2),
)


def shown(*offers: Offer, width: int = 160) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(offer_table(offers, today=TODAY))
    return capture.get()


def test_a_row_says_what_where_how_paid_and_as_of_when():
    text = shown(offer(), UNLIKE)
    row = next(line for line in text.splitlines() if "g4dn.12xlarge" in line)
    for part in ("aws", "us-east-1", "4 x T4 16 GiB", "48", "50", "on-demand", "2026-07-01"):
        assert part in row


def test_prices_of_a_machine_and_of_a_gpu_stand_under_their_own_headings():
    lines = shown(offer(), UNLIKE).splitlines()
    assert re.search(r"\$/h per +\$/h per", lines[0])
    assert re.search(r"machine +GPU", lines[1])
    assert re.search(r"3\.912 +0\.978", lines[2])
    assert re.search(r"1,067\.200 +133\.400", lines[3])


def test_an_unknown_network_is_a_question_mark():
    assert re.search(r" \? +spot", shown(offer(), UNLIKE))


def test_a_zone_stands_in_the_place_of_its_region():
    assert "use1-az4" in shown(offer(zone="use1-az4"))


def test_prices_older_than_a_year_are_marked_and_counted():
    text = shown(offer(), UNLIKE)
    assert "2025-03-02!" in text
    assert "2026-07-01!" not in text
    assert "! older than one year: 1 of 2 prices" in text


def test_a_price_is_old_the_day_after_its_first_year():
    assert "!" not in shown(offer(price_as_of=TODAY - timedelta(days=365)))
    assert "!" in shown(offer(price_as_of=TODAY - timedelta(days=366)))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_fits_its_width_and_keeps_prices_dates_and_whole_names(width):
    text = shown(offer(), UNLIKE, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    for part in (
        "3.912",
        "0.978",
        "1,067.200",
        "2026-07-01",
        "2025-03-02!",
        "8 x MI300X 192 GiB",
        "on-demand",
    ):
        assert part in text


def test_the_least_important_columns_leave_first():
    headings = {width: shown(offer(), UNLIKE, width=width).split("on-demand")[0] for width in (80, 122, 160)}
    assert "vCPUs" in headings[160]
    assert "vCPUs" not in headings[122]
    assert "network" in headings[122]
    assert "network" not in headings[80]


def test_what_is_the_same_in_every_row_is_said_once_where_room_is_short():
    text = shown(offer(), offer(instance_type="g4dn.metal", gpu_count=8, zone="use1-az4"), width=80)
    assert text.startswith("every row: cloud aws")
    assert "every row" not in shown(offer(), offer(zone="use1-az4"), width=160)


def test_names_are_shown_as_they_are():
    assert "[red]odd[/]" in shown(offer(instance_type="[red]odd[/]"))


def test_no_offers_make_an_empty_table():
    assert "instance type" in shown()


def test_the_same_offers_look_the_same_twice():
    assert shown(offer(), UNLIKE, width=90) == shown(offer(), UNLIKE, width=90)
