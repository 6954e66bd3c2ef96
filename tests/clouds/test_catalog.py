"""The table of offers: what becomes an offer, what is left out, and what is no table at all."""

from __future__ import annotations

import csv
import os
import runpy
import time
from datetime import date
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from srifty.clouds.catalog import load
from srifty.errors import InvalidInput
from srifty.records import Catalog, Market
from srifty.records.files import from_json, to_json
from srifty.records.offer import GpuLink

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SRIFTY_DATA") or REPOSITORY.parent / "shared" / "data")

HEADING = "cloud,region,instance_type,gpu,gpu_count,gpu_memory_gib,vcpu_count,usd_per_hour"
GOOD_ROW = "mine,here,big,T4,4,16,48,3.5"


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return load()


def table(folder: Path, *rows: str, heading: str = HEADING) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join([heading, *rows]) + "\n", encoding="utf-8")
    return path


def one(catalog: Catalog, instance_type: str, place: str, market: Market = Market.ON_DEMAND):
    (offer,) = (
        each
        for each in catalog.offers
        if (each.instance_type, each.place, each.market) == (instance_type, place, market)
    )
    return offer


def refused(path: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The shipped table


@pytest.mark.parametrize(
    ("instance_type", "region", "usd_per_hour"),
    [
        ("p3.2xlarge", "us-east-1", 3.06),
        ("p3.8xlarge", "us-east-1", 12.24),
        ("p3.16xlarge", "us-east-1", 24.48),
        ("g4dn.xlarge", "us-east-1", 0.526),
        ("g4dn.12xlarge", "us-east-1", 3.912),
        ("g5.12xlarge", "us-east-1", 5.672),
        ("g4dn.12xlarge", "eu-west-1", 4.362),
        ("Standard_ND40rs_v2", "eastus", 22.032),
    ],
)
def test_well_known_on_demand_prices_are_in_the_shipped_table(shipped, instance_type, region, usd_per_hour):
    assert one(shipped, instance_type, region).usd_per_hour == usd_per_hour


def test_units_of_the_shipped_table_become_bytes_and_bytes_per_second(shipped):
    offer = one(shipped, "p3dn.24xlarge", "us-east-1")
    assert (offer.gpu, offer.gpu_count, offer.vcpu_count) == ("V100", 8, 96)
    assert offer.gpu_memory_bytes == 32 * 2**30
    assert offer.network_bytes_per_s == pytest.approx(12.5e9)  # 100 Gbit/s
    assert (offer.gpu_link, offer.gpu_link_bytes_per_s) == (GpuLink.NVLINK, 150e9)


def test_a_burst_is_told_from_what_a_network_sustains(shipped):
    offer = one(shipped, "p3.2xlarge", "us-east-1")
    assert offer.network_bytes_per_s == pytest.approx(2.5e9 / 8)
    assert offer.network_burst_bytes_per_s == pytest.approx(10e9 / 8)
    assert offer.gpu_link is None  # one GPU has no other to be linked to


def test_no_burst_is_below_what_the_network_sustains(shipped):
    for offer in shipped.offers:
        if offer.network_bytes_per_s and offer.network_burst_bytes_per_s:
            assert offer.network_burst_bytes_per_s >= offer.network_bytes_per_s, offer


@pytest.mark.parametrize(
    ("instance_type", "gbit_per_s"),
    [
        ("Standard_ND96amsr_A100_v4", 8 * 200),
        ("Standard_ND96isr_H100_v5", 8 * 400),
        ("Standard_ND40rs_v2", 100),
    ],
)
def test_where_there_is_infiniband_it_is_the_network(shipped, instance_type, gbit_per_s):
    offers = [offer for offer in shipped.offers if offer.instance_type == instance_type]
    assert offers
    for offer in offers:
        assert offer.network_bytes_per_s == pytest.approx(gbit_per_s * 1e9 / 8)
        assert "InfiniBand" in offer.source


def test_gpus_bridged_in_pairs_are_as_slow_as_the_way_between_pairs(shipped):
    offer = one(shipped, "Standard_NC96ads_A100_v4", "eastus")
    assert (offer.gpu_link, offer.gpu_link_bytes_per_s) == (GpuLink.PCIE, 31.5e9)


def test_chips_go_by_one_name_without_their_memory(shipped):
    chips = {offer.gpu for offer in shipped.offers}
    assert {"A100", "V100", "H100", "H100-NVL", "RTX PRO 6000"} <= chips
    assert not any(chip.endswith("GB") for chip in chips)
    assert one(shipped, "Standard_ND40rs_v2", "eastus").gpu == "V100"


def test_every_offer_has_a_date_and_a_source_and_is_unique(shipped):
    assert shipped.taken_at == date(2026, 11, 29)
    for offer in shipped.offers:
        assert date(2025, 1, 1) <= offer.price_as_of <= shipped.taken_at
        assert offer.source in shipped.sources
    keys = [(o.cloud, o.region, o.zone, o.instance_type, o.market) for o in shipped.offers]
    assert len(set(keys)) == len(keys)


def test_a_price_whose_day_is_unknown_says_so(shipped):
    spot = [offer for offer in shipped.offers if offer.cloud == "aws" and offer.market is Market.SPOT]
    assert spot
    assert all("day unknown" in offer.source for offer in spot)


def test_spot_prices_differ_by_zone_and_on_demand_prices_hold_in_the_region(shipped):
    spot = [
        o for o in shipped.offers if (o.instance_type, o.region) == ("p3.2xlarge", "us-east-1") and o.zone
    ]
    assert len({offer.usd_per_hour for offer in spot}) > 1
    assert all(offer.market is Market.SPOT for offer in spot)


def test_spot_that_costs_no_less_than_on_demand_is_kept(shipped):
    spot = one(shipped, "p5.48xlarge", "use1-az1", Market.SPOT)
    assert spot.usd_per_hour == one(shipped, "p5.48xlarge", "us-east-1").usd_per_hour


def test_a_type_that_one_region_lacks_is_there_in_the_others(shipped):
    regions = {offer.region for offer in shipped.offers if offer.instance_type == "p3dn.24xlarge"}
    assert "us-east-1" in regions
    assert "us-east-2" not in regions


def test_a_price_added_up_from_parts_says_that_the_machine_is_unverified_there(shipped):
    offers = [o for o in shipped.offers if (o.instance_type, o.region) == ("a2-highgpu-1g", "africa-south1")]
    assert [offer.market for offer in offers] == [Market.ON_DEMAND]  # its spot price is a tenth, so left out
    assert "unverified in this region" in offers[0].source


def test_rows_of_the_shipped_table_that_are_no_offers_are_counted(shipped):
    path = REPOSITORY / "src/srifty/clouds/data/offers.csv"
    with path.open(encoding="utf-8", newline="") as file:
        file.readline()  # the date
        row_count = sum(1 for _ in csv.DictReader(file))
    assert len(shipped.offers) + sum(each.count for each in shipped.dropped) == row_count
    assert {each.why for each in shipped.dropped} == {"no price", "no whole number of GPUs"}


def test_the_shipped_table_loads_within_300_ms():
    tries = []
    for _ in range(5):
        start = time.process_time()
        load()
        tries.append(time.process_time() - start)
    assert min(tries) < 0.3


def test_the_shipped_catalog_survives_its_own_file(shipped):
    assert from_json(to_json(shipped), Catalog) == shipped


def test_the_shipped_table_is_what_the_build_script_makes():
    if not (DATA / "catalog").is_dir():
        pytest.skip("the folder of facts that the table is built from is not here")
    build = runpy.run_path(str(REPOSITORY / "tools/build_catalog.py"))["build"]
    assert build(DATA / "catalog") == (REPOSITORY / "src/srifty/clouds/data/offers.csv").read_text("utf-8")


# A user's own table


def test_a_table_of_the_required_columns_is_enough(tmp_path):
    path = table(tmp_path, GOOD_ROW)
    os.utime(path, (0, date(2026, 5, 4).toordinal() * 86400 - date(1970, 1, 1).toordinal() * 86400))
    catalog = load(path)
    (offer,) = catalog.offers
    assert catalog.taken_at == offer.price_as_of == date(2026, 5, 4)
    assert offer.source == "mine.csv; price dated by the file's last change"
    assert offer.market is Market.ON_DEMAND
    assert (offer.zone, offer.network_bytes_per_s, offer.node_limit) == (None, None, None)


def test_optional_columns_are_read_with_their_units(tmp_path):
    heading = HEADING + (
        ",zone,memory_gib,network_gbit_per_s,network_burst_gbit_per_s,gpu_link,gpu_link_gbyte_per_s"
        ",market,price_as_of,source,interruptions_per_hour,node_limit"
    )
    row = GOOD_ROW + ",here-a,192,50,100,nvlink,150,spot,2026-10-01,my bill,0.05,8"
    (offer,) = load(table(tmp_path, row, heading=heading)).offers
    assert (offer.zone, offer.memory_bytes, offer.network_bytes_per_s) == ("here-a", 192 * 2**30, 6.25e9)
    assert (offer.network_burst_bytes_per_s, offer.gpu_link, offer.gpu_link_bytes_per_s) == (
        12.5e9,
        GpuLink.NVLINK,
        150e9,
    )
    assert (offer.market, offer.price_as_of, offer.source) == (Market.SPOT, date(2026, 10, 1), "my bill")
    assert (offer.interruptions_per_hour, offer.node_limit) == (0.05, 8)


@pytest.mark.parametrize("price", ["0", "0.00", "-1", "nan", "inf", "-inf", "1e999", "", " ", "free", "$3"])
def test_a_price_that_is_none_never_becomes_an_offer(tmp_path, price):
    catalog = load(table(tmp_path, GOOD_ROW, f"mine,here,bad,T4,1,16,4,{price}"))
    assert [offer.instance_type for offer in catalog.offers] == ["big"]
    assert [(each.count, "line 3" in each.why) for each in catalog.dropped] == [(1, True)]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("mine,here,bad,T4,0.5,16,4,1", "no whole number of GPUs"),
        ("mine,here,bad,T4,0,16,4,1", "no whole number of GPUs"),
        ("mine,here,bad,T4,many,16,4,1", "gpu_count is not a number"),
        ("mine,here,bad,T4,1,-16,4,1", "gpu_memory_gib is not a size"),
        ("mine,here,bad,T4,1,1e308,4,1", "gpu_memory_gib is not a size"),
        ("mine,here,bad,T4,1,16,2.5,1", "vcpu_count is not a whole number"),
        ("mine,here,,T4,1,16,4,1", "no instance_type"),
        ("mine,here,bad,T4,1,16", "fields"),
        ("mine,here,bad,T4,1,16,4,1,", "fields"),
    ],
)
def test_one_bad_row_does_not_kill_the_table(tmp_path, row, why):
    catalog = load(table(tmp_path, row, GOOD_ROW))
    assert [offer.instance_type for offer in catalog.offers] == ["big"]
    (dropped,) = catalog.dropped
    assert why in dropped.why
    assert "first in line 2" in dropped.why


def test_an_unknown_market_is_left_out_and_named(tmp_path):
    path = table(tmp_path, GOOD_ROW + ",auction", GOOD_ROW + ",Spot", heading=HEADING + ",market")
    catalog = load(path)
    assert [offer.market for offer in catalog.offers] == [Market.SPOT]
    assert "market is none of on-demand, spot" in catalog.dropped[0].why


def test_spot_above_on_demand_is_kept(tmp_path):
    path = table(
        tmp_path, GOOD_ROW + ",on-demand", GOOD_ROW.replace("3.5", "9") + ",spot", heading=HEADING + ",market"
    )
    assert {offer.market: offer.usd_per_hour for offer in load(path).offers} == {
        Market.ON_DEMAND: 3.5,
        Market.SPOT: 9.0,
    }


def test_of_an_offer_listed_twice_the_newest_price_is_kept(tmp_path):
    rows = [GOOD_ROW.replace("3.5", price) for price in ("1,2026-01-01", "2,2026-03-01", "3,2026-03-01")]
    catalog = load(table(tmp_path, *rows, heading=HEADING + ",price_as_of"))
    assert [offer.usd_per_hour for offer in catalog.offers] == [2.0]
    assert [(each.why.split(":")[0], each.count) for each in catalog.dropped] == [("listed twice", 2)]


def test_a_spreadsheets_habits_are_forgiven(tmp_path):
    path = tmp_path / "sheet.csv"
    path.write_bytes(
        b"\xef\xbb\xbf" + HEADING.title().encode() + b"\r\n\r\n " + GOOD_ROW.encode() + b" \r\n,,\r\n"
    )
    assert [offer.cloud for offer in load(path).offers] == ["mine"]


# What is no table


def test_a_missing_column_is_named_with_the_nearest_that_is_there(tmp_path):
    heading = HEADING.replace("usd_per_hour", "price_usd_per_hour").replace("gpu_memory_gib", "x")
    said = refused(table(tmp_path, GOOD_ROW, heading=heading))
    assert "columns 'gpu_memory_gib', 'usd_per_hour' (nearest given: 'price_usd_per_hour')" in said


def test_a_misspelt_optional_column_is_not_passed_over(tmp_path):
    said = refused(table(tmp_path, GOOD_ROW + ",25", heading=HEADING + ",network_gbit"))
    assert "did you mean 'network_gbit_per_s'" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"\xff\xfe\x00\x01", "not a text file"),
        (HEADING.replace(",", ";").encode(), "has semicolons between its columns; expected commas"),
        (HEADING.replace(",", "\t").encode(), "has tabs between its columns"),
        (GOOD_ROW.encode(), "the first line must name the columns"),
        (f"{HEADING},gpu\n".encode(), "has the column 'gpu' more than once"),
        (HEADING.encode(), "holds no offer: it has no row"),
        (
            f"{HEADING}\nmine,here,big,T4,4,16,48,0\n".encode(),
            "holds no offer: 1 x a price that is not above 0",
        ),
        (f'{HEADING}\n"{"x" * 200_000}"'.encode(), "is not a CSV table: line 2"),
    ],
)
def test_a_file_that_is_no_table_of_offers_is_refused_in_one_line(tmp_path, content, said):
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    assert said in refused(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "nowhere.csv")
    assert "is a directory" in refused(tmp_path)


CELLS = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "1", "4", "2.5", "nan", "1e999", "1e300", "spot", "nvlink", "2026-01-01", '"']
    ),
    st.text(max_size=8),
)
ALL_COLUMNS = f"{HEADING},zone,network_gbit_per_s,gpu_link,market,price_as_of,source,node_limit"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(st.lists(CELLS, min_size=15, max_size=15), max_size=5).map(
            lambda rows: "\n".join([ALL_COLUMNS, *(",".join(row) for row in rows)])
        ),
        st.lists(CELLS, max_size=12).map(lambda cells: f"{HEADING}\n{','.join(cells)}\n{GOOD_ROW}"),
    )
)
@example("\x00")
@example('"')
@example("\r")
@example(f"{HEADING}\x00\n{GOOD_ROW}")
def test_any_text_is_a_catalog_or_is_refused(tmp_path, text):
    path = tmp_path / "any.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        catalog = load(path)
    except InvalidInput:
        return
    assert catalog.offers
    assert all(0 < offer.usd_per_hour < float("inf") for offer in catalog.offers)
    assert from_json(to_json(catalog), Catalog) == catalog
