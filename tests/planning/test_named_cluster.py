"""A named cluster is one that can be rented: in one region, with an even share for each GPU."""

from __future__ import annotations

from datetime import date

import pytest
from tests.conftest import make_offer

from srifty.errors import InvalidInput
from srifty.planning.named_cluster import Where, named_cluster
from srifty.records import Catalog

OFFERS = (
    make_offer(region="r1", instance_type="small", usd_per_hour=1.0),
    make_offer(region="r2", instance_type="small", usd_per_hour=1.2),
    make_offer(region="r2", instance_type="large", gpu_count=4, usd_per_hour=4.0),
    make_offer(region="r3", instance_type="lonely", usd_per_hour=4.0, node_limit=2),
)


def named(text, batch=64, accumulation=None, batch_range=(1, 16), **where):
    catalog = Catalog(offers=OFFERS, taken_at=date(2026, 11, 29))
    return named_cluster(text, catalog, lambda offer: batch_range, batch, accumulation, Where(**where))


def test_a_type_is_rented_where_it_is_cheapest():
    assert named("2xsmall").groups[0].offer.region == "r1"
    assert named("2xsmall", regions=("r2",)).groups[0].offer.region == "r2"


def test_all_machines_of_a_cluster_are_in_one_region():
    assert {group.offer.region for group in named("4xsmall,1xlarge").groups} == {"r2"}
    with pytest.raises(InvalidInput, match="no region offers all"):
        named("1xsmall,1xlonely")


def test_the_batch_is_shared_in_as_few_micro_steps_as_memory_allows():
    (group,) = named("2xsmall").groups
    assert (group.batch_per_gpu, group.accumulation_count) == (16, 2)
    (group,) = named("2xsmall", accumulation=8).groups
    assert (group.batch_per_gpu, group.accumulation_count) == (4, 8)
    (group,) = named("1xsmall", batch=2**31).groups
    assert group.batch_per_gpu == 16


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidInput, match="near it is 63 or 66"):
        named("3xsmall")
    with pytest.raises(InvalidInput, match="near it is 4$"):
        named("1xlarge", batch=3)
    with pytest.raises(InvalidInput, match="more than the 2 that can be rented"):
        named("3xlonely", batch=63)
    with pytest.raises(InvalidInput, match="leaves 1 a GPU"):
        named("1xlarge", batch=4, batch_range=(2, 16))
    with pytest.raises(InvalidInput, match="in 3 micro-steps"):
        named("2xsmall", accumulation=3)
    with pytest.raises(InvalidInput, match="global batch is not known"):
        named("2xsmall", batch=None)
