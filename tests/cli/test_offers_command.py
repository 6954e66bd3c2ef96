"""srifty offers: the table is the product, unless the record is asked for."""

from __future__ import annotations

import pytest

from srifty.records import Catalog
from srifty.records.files import from_json, read


@pytest.fixture(name="command")
def _command(run, monkeypatch):
    """Run `srifty offers`: (standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "140")

    def command(*words):
        status, out, err = run("offers", *words)
        assert status == 0, err
        return out, err

    return command


def test_the_table_goes_to_standard_output(command):
    out, err = command("--gpu", "V100", "--cloud", "aws", "--market", "on-demand", "--region", "us-east-1")
    assert "p3.2xlarge" in out
    assert "3.060" in out
    assert "left out of the table, since they are no offers: " in out
    assert err == ""


def test_the_record_goes_to_standard_output_and_the_table_to_standard_error(command):
    out, err = command("--instance-type", "p3.2xlarge", "--json", "--limit", "2")
    catalog = from_json(out, Catalog)
    assert {offer.instance_type for offer in catalog.offers} == {"p3.2xlarge"}
    assert len(catalog.offers) > 2
    assert "$/h per" in err


def test_the_record_goes_to_a_file(command, tmp_path):
    out, _ = command("--instance-type", "p3.2xlarge", "-o", str(tmp_path / "found.json"))
    assert out == ""
    assert {offer.gpu for offer in read(tmp_path / "found.json", Catalog).offers} == {"V100"}


def test_offers_are_ordered_by_price_and_then_by_name(command):
    catalog = from_json(command("--market", "on-demand", "--json")[0], Catalog)
    keys = [(o.usd_per_hour, o.cloud, o.instance_type, o.region) for o in catalog.offers]
    assert keys == sorted(keys)


def test_offers_can_be_ordered_by_the_price_of_a_gpu(command):
    catalog = from_json(command("--sort", "gpu-price", "--json")[0], Catalog)
    prices = [offer.usd_per_gpu_hour for offer in catalog.offers]
    assert prices == sorted(prices)


def test_twenty_are_shown_and_the_rest_is_counted(command):
    lines = command("--cloud", "aws", "--gpu", "T4", "--market", "spot")[0].splitlines()
    assert sum("g4dn" in line for line in lines) == 20
    assert any(" more: --limit " in line for line in lines)


def test_the_same_question_gives_the_same_answer(command):
    assert command("--max-price", "2") == command("--max-price", "2")


def test_a_table_of_ones_own_takes_the_place_of_the_snapshot(command, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "cloud,region,instance_type,gpu,gpu_count,gpu_memory_gib,vcpu_count,usd_per_hour\n"
        "mine,cellar,box,RTX 3090,2,24,16,0.4\nmine,cellar,free,RTX 3090,1,24,16,0\n"
    )
    out, _ = command("--catalog", str(path))
    assert "2 x RTX 3090 24 GiB" in out
    assert "1 x a price that is not above 0 (first in line 3)" in out
