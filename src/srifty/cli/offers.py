"""srifty offers: what can be rented, and for how much."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from srifty.cli.arguments import MarketChoice
from srifty.records.offer import Catalog, Offer


class SortBy(StrEnum):
    """Which price comes first."""

    PRICE = "price"
    GPU_PRICE = "gpu-price"


def offers(
    cloud: Annotated[list[str] | None, typer.Option(help="Only this cloud; may be given again.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only this region; may be given again.")] = None,
    instance_type: Annotated[list[str] | None, typer.Option(help="Only this type of machine.")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Only this GPU: A100, or A100-80GB.")] = None,
    market: Annotated[MarketChoice, typer.Option(help="How the machine is paid for.")] = MarketChoice.ANY,
    max_price: Annotated[float | None, typer.Option(help="At most this price of a machine [USD/h].")] = None,
    catalog: Annotated[Path | None, typer.Option(help="Your own table of offers (CSV).")] = None,
    sort: Annotated[SortBy, typer.Option(help="Price of a machine, or of one GPU.")] = SortBy.PRICE,
    limit: Annotated[int, typer.Option(min=1, help="How many to show; the record holds all.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="The record, as JSON, to standard output.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the record here.")] = None,
) -> None:
    """What can be rented, where, for how much, as of when."""
    from rich.console import Console

    from srifty import verbs
    from srifty.records.files import to_json, write
    from srifty.reporting.offer_table import offer_table

    found = verbs.offers(
        catalog,
        clouds=tuple(cloud or ()),
        regions=tuple(region or ()),
        instance_types=tuple(instance_type or ()),
        gpus=tuple(gpu or ()),
        markets=market.markets,
        max_usd_per_hour=max_price,
    )
    ordered = sorted(found.offers, key=_price_then_name if sort is SortBy.PRICE else _gpu_price_then_name)
    found = found.model_copy(update={"offers": tuple(ordered)})
    if output is not None:
        write(found, output)
    if json:
        typer.echo(to_json(found), nl=False)

    # Where the record was asked for, it is the product, and the table only tells a person what is in it.
    console = Console(stderr=json or output is not None, highlight=False)
    console.print(offer_table(ordered[:limit], today=date.today()))
    for note in _notes(found, limit):
        console.print(note, style="dim", markup=False)


def _price_then_name(offer: Offer) -> tuple[float | str, ...]:
    return (offer.usd_per_hour, *_name(offer))


def _gpu_price_then_name(offer: Offer) -> tuple[float | str, ...]:
    return (offer.usd_per_gpu_hour, *_name(offer))


def _name(offer: Offer) -> tuple[str, ...]:
    return (offer.cloud, offer.instance_type, offer.region, offer.zone or "", offer.market)


def _notes(catalog: Catalog, limit: int) -> list[str]:
    count = len(catalog.offers)
    shown = f"{count - limit} more: --limit {count} shows all" if count > limit else f"{count} offers"
    notes = [f"{shown}; table of {catalog.taken_at}"]
    if catalog.dropped:
        reasons = ", ".join(f"{each.count} x {each.why}" for each in catalog.dropped)
        notes.append(f"left out of the table, since they are no offers: {reasons}")
    return notes
