"""srifty offers: the table is the product, unless the record is asked for."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

import srifty
from srifty.cli.offers import offers
from srifty.clouds.catalog import load
from srifty.records import Catalog
from srifty.records.files import from_json, read


@pytest.fixture
def command(monkeypatch):
    verbs = ModuleType("srifty.verbs")
    verbs.offers = lambda catalog=None, **filters: load(catalog).only(**filters)
    monkeypatch.setitem(sys.modules, "srifty.verbs", verbs)
    monkeypatch.setattr(srifty, "verbs", verbs, raising=False)
    app = typer.Typer()
    app.command()(offers)

    def run(*words: str):
        return CliRunner().invoke(app, list(words), env={"COLUMNS": "140"}, catch_exceptions=False)

    return run


def test_the_table_goes_to_standard_output(command):
    result = command("--gpu", "V100", "--cloud", "aws", "--market", "on-demand", "--region", "us-east-1")
    assert result.exit_code == 0
    assert "p3.2xlarge" in result.stdout
    assert "3.060" in result.stdout
    assert "left out of the table, since they are no offers: " in result.stdout


def test_the_record_goes_to_standard_output_and_the_table_to_standard_error(command):
    result = command("--instance-type", "p3.2xlarge", "--json", "--limit", "2")
    catalog = from_json(result.stdout, Catalog)
    assert {offer.instance_type for offer in catalog.offers} == {"p3.2xlarge"}
    assert len(catalog.offers) > 2
    assert "$/h per" in result.stderr


def test_the_record_goes_to_a_file(command, tmp_path):
    result = command("--instance-type", "p3.2xlarge", "-o", str(tmp_path / "found.json"))
    assert result.stdout == ""
    assert {offer.gpu for offer in read(tmp_path / "found.json", Catalog).offers} == {"V100"}


def test_offers_are_ordered_by_price_and_then_by_name(command):
    catalog = from_json(command("--market", "on-demand", "--json").stdout, Catalog)
    keys = [(o.usd_per_hour, o.cloud, o.instance_type, o.region) for o in catalog.offers]
    assert keys == sorted(keys)


def test_offers_can_be_ordered_by_the_price_of_a_gpu(command):
    catalog = from_json(command("--sort", "gpu-price", "--json").stdout, Catalog)
    prices = [offer.usd_per_gpu_hour for offer in catalog.offers]
    assert prices == sorted(prices)


def test_twenty_are_shown_and_the_rest_is_counted(command):
    lines = command("--cloud", "aws", "--gpu", "T4", "--market", "spot").stdout.splitlines()
    assert sum("g4dn" in line for line in lines) == 20
    assert any(" more: --limit " in line for line in lines)


def test_the_same_question_gives_the_same_answer(command):
    assert command("--max-price", "2").stdout == command("--max-price", "2").stdout


def test_a_table_of_ones_own_takes_the_place_of_the_snapshot(command, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "cloud,region,instance_type,gpu,gpu_count,gpu_memory_gib,vcpu_count,usd_per_hour\n"
        "mine,cellar,box,RTX 3090,2,24,16,0.4\nmine,cellar,free,RTX 3090,1,24,16,0\n"
    )
    result = command("--catalog", str(path))
    assert "2 x RTX 3090 24 GiB" in result.stdout
    assert "1 x a price that is not above 0 (first in line 3)" in result.stdout
