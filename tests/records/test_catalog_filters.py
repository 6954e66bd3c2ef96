"""Choosing offers from a catalog by name and by limit."""

from __future__ import annotations

from datetime import date

import pytest

from srifty.errors import InvalidInput
from srifty.records import Catalog, Dropped, Market, Offer


def offer(instance_type: str, gpu: str, gpu_memory_gib: float, usd_per_hour: float, **other) -> Offer:
    fields = {
        "cloud": "aws",
        "region": "us-east-1",
        "gpu_count": 1,
        "vcpu_count": 8,
        "market": Market.ON_DEMAND,
        "price_as_of": date(2026, 7, 1),
        "source": "test",
    }
    return Offer(
        instance_type=instance_type,
        gpu=gpu,
        gpu_memory_bytes=round(gpu_memory_gib * 2**30),
        usd_per_hour=usd_per_hour,
        **(fields | other),
    )


CATALOG = Catalog(
    offers=(
        offer("p3.2xlarge", "V100", 16, 3.06),
        offer("p3.2xlarge", "V100", 16, 0.9, market=Market.SPOT, zone="use1-az1"),
        offer("p3.2xlarge", "V100", 16, 1.1, market=Market.SPOT, zone="use1-az4"),
        offer("p3.8xlarge", "V100", 16, 12.24, gpu_count=4),
        offer("g5.xlarge", "A10G", 22.4, 1.006, region="us-west-2"),
        offer("g7e.2xlarge", "RTX PRO 6000", 96, 1.2, market=Market.SPOT),
        offer("a2-highgpu-1g", "A100", 40, 3.67, cloud="gcp", region="us-central1"),
        offer("Standard_NC24ads_A100_v4", "A100", 80, 3.673, cloud="azure", region="eastus"),
    ),
    taken_at=date(2026, 7, 2),
    dropped=(Dropped(why="no price", count=3),),
)


def names(catalog: Catalog) -> list[str]:
    return [each.instance_type for each in catalog.offers]


def refused(**filters) -> str:
    with pytest.raises(InvalidInput) as caught:
        CATALOG.only(**filters)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_filter_keeps_everything():
    assert CATALOG.only() == CATALOG


def test_filters_keep_order_date_and_what_was_dropped():
    found = CATALOG.only(clouds=("aws",), markets=("spot",))
    assert [each.usd_per_hour for each in found.offers] == [0.9, 1.1, 1.2]
    assert (found.taken_at, found.dropped) == (CATALOG.taken_at, CATALOG.dropped)


def test_names_match_whatever_their_case():
    assert names(CATALOG.only(clouds=("AWS",), regions=("US-West-2",))) == ["g5.xlarge"]
    assert names(CATALOG.only(instance_types=("standard_nc24ads_a100_V4",))) == ["Standard_NC24ads_A100_v4"]
    assert len(CATALOG.only(markets=("SPOT",)).offers) == 3


def test_several_names_of_one_filter_are_alternatives():
    assert names(CATALOG.only(instance_types=("p3.8xlarge", "g5.xlarge"))) == ["p3.8xlarge", "g5.xlarge"]


def test_a_lone_name_is_a_name_and_not_its_letters():
    assert names(CATALOG.only(clouds="gcp")) == ["a2-highgpu-1g"]


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ("A100", ["a2-highgpu-1g", "Standard_NC24ads_A100_v4"]),
        ("a100-80GB", ["Standard_NC24ads_A100_v4"]),
        ("A100 40 GiB", ["a2-highgpu-1g"]),
        ("A10G-24GB", ["g5.xlarge"]),  # sold as 24 GB, which is 22.4 GiB
        ("rtx-pro-6000", ["g7e.2xlarge"]),
    ],
)
def test_a_gpu_goes_by_its_chip_with_or_without_memory(gpu, found):
    assert names(CATALOG.only(gpus=(gpu,))) == found


def test_a_memory_that_a_chip_does_not_come_with_is_refused_with_those_it_does():
    assert "no V100 with 32 GB of memory is offered; there is 16 GiB" in refused(gpus=("V100-32GB",))


def test_a_zone_has_its_own_spot_price_and_its_regions_on_demand_price():
    found = CATALOG.only(zones=("use1-az4",))
    assert [(each.instance_type, each.usd_per_hour) for each in found.offers] == [
        ("p3.2xlarge", 3.06),
        ("p3.2xlarge", 1.1),
        ("p3.8xlarge", 12.24),
    ]


def test_limits_include_their_own_value():
    assert len(CATALOG.only(max_usd_per_hour=1.1).offers) == 3
    assert names(CATALOG.only(min_gpu_memory_bytes=80 * 2**30)) == ["g7e.2xlarge", "Standard_NC24ads_A100_v4"]


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (
            {"instance_types": ("p3.2xlage",)},
            "instance type 'p3.2xlage': did you mean p3.2xlarge, p3.8xlarge",
        ),
        ({"instance_types": ("STANDARD_NC24AD_A100",)}, "did you mean Standard_NC24ads_A100_v4"),
        ({"clouds": ("awz",)}, "unknown cloud 'awz': did you mean aws"),
        ({"clouds": ("lambda",)}, "unknown cloud 'lambda': known are aws, azure, gcp"),
        ({"regions": ("us-east1",)}, "unknown region 'us-east1': did you mean us-east-1"),
        ({"zones": ("use1-az9",)}, "did you mean use1-az4, use1-az1"),
        ({"gpus": ("V10",)}, "unknown GPU 'V10': did you mean V100"),
        ({"markets": ("spott",)}, "unknown market 'spott': did you mean spot"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known(filters, said):
    assert said in refused(**filters)


def test_a_filter_that_leaves_nothing_is_named():
    said = refused(clouds=("gcp",), markets=("spot",))
    assert "market spot leaves none of 1 offers with cloud gcp" in said


def test_a_limit_that_leaves_nothing_says_what_there_is():
    assert "start at 0.9 USD/h a machine" in refused(max_usd_per_hour=0.5)
    assert "have up to 96 GiB a GPU" in refused(min_gpu_memory_bytes=2**40)


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan")])
def test_a_highest_price_that_is_none_is_refused(price):
    assert "must be above 0" in refused(max_usd_per_hour=price)
