"""A table of offers for people: every price says for what, and how old it is.

Prices of a machine and of one GPU stand in columns of their own: the two are easily taken for one another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from srifty.records.offer import Offer

OLD_AFTER = timedelta(days=365)
OLD_MARK = "!"

GIB = 2**30
BYTES_PER_GBIT = 1e9 / 8


def offer_table(offers: Sequence[Offer], *, today: date) -> RenderableType:
    """Offers in the order given, and footnotes; as wide as the place where it is shown allows.

    Args:
        offers: a row each
        today: prices more than a year older are marked
    """
    return _OfferTable(tuple(offers), today)


def is_old(offer: Offer, today: date) -> bool:
    """Whether a price is older than one year."""
    return today - offer.price_as_of > OLD_AFTER


@dataclass(frozen=True)
class _Column:
    heading: str
    cell: Callable[[Offer, date], str]
    is_number: bool = False
    may_fold: bool = False
    may_be_said_once: bool = True
    may_go: int | None = None
    """Order in which columns leave a narrow table; None: stays always."""


def _gpus(offer: Offer, today: date) -> str:
    return f"{offer.gpu_count} x {offer.gpu} {offer.gpu_memory_bytes / GIB:.4g} GiB"


def _network(offer: Offer, today: date) -> str:
    if offer.network_bytes_per_s is None:
        return "?"
    return f"{offer.network_bytes_per_s / BYTES_PER_GBIT:.4g}"


def _price_date(offer: Offer, today: date) -> str:
    return f"{offer.price_as_of}{OLD_MARK if is_old(offer, today) else ''}"


# First to go is what matters least to the choice or can be told from the rest: vCPUs hardly bound training,
# a region's name tells its cloud, and the network counts once there are several machines.
_COLUMNS = (
    _Column("instance type", lambda offer, today: offer.instance_type, may_fold=True, may_be_said_once=False),
    _Column("cloud", lambda offer, today: offer.cloud, may_go=2),
    _Column("place", lambda offer, today: offer.place, may_fold=True),
    _Column("GPUs", _gpus),
    _Column("vCPUs", lambda offer, today: str(offer.vcpu_count), is_number=True, may_go=1),
    _Column("network\nGbit/s", _network, is_number=True, may_go=3),
    _Column("market", lambda offer, today: offer.market.value),
    _Column("$/h per\nmachine", lambda o, _: _usd(o.usd_per_hour), is_number=True, may_be_said_once=False),
    _Column("$/h per\nGPU", lambda o, _: _usd(o.usd_per_gpu_hour), is_number=True, may_be_said_once=False),
    _Column("price as of", _price_date),
)
_GAP = 2


def _usd(amount: float) -> str:
    return f"{amount:,.3f}"


class _OfferTable:
    """Chooses its columns when it is shown, since only then its width is known."""

    def __init__(self, offers: tuple[Offer, ...], today: date) -> None:
        self._offers = offers
        self._today = today
        self._cells = {c.heading: [c.cell(offer, today) for offer in offers] for c in _COLUMNS}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, said_once = self._fit(options.max_width)
        if said_once:
            values = (f"{c.heading} {self._cells[c.heading][0]}".replace("\n", " ") for c in said_once)
            yield Text(f"every row: {'; '.join(values)}")
        yield self._table(columns, _GAP if self._width(columns) <= options.max_width else 1)
        for note in self._footnotes():
            yield Text(note, style="dim")

    def _fit(self, width: int) -> tuple[list[_Column], list[_Column]]:
        """Columns that fit, and columns that say the same in every row and are better said once."""
        columns, said_once = list(_COLUMNS), []
        for column in _COLUMNS:
            same = len(self._offers) > 1 and len(set(self._cells[column.heading])) == 1
            if same and column.may_be_said_once and self._width(columns) > width:
                columns.remove(column)
                said_once.append(column)
        leaving = sorted((c for c in columns if c.may_go), key=lambda c: c.may_go or 0)
        for column in leaving:
            if self._width(columns) > width:
                columns.remove(column)
        return columns, said_once

    def _width(self, columns: list[_Column]) -> int:
        texts = ([*column.heading.split("\n"), *self._cells[column.heading]] for column in columns)
        return sum(max(map(cell_len, text)) for text in texts) + _GAP * (len(columns) - 1)

    def _table(self, columns: list[_Column], gap: int) -> Table:
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(
                Text(column.heading),
                justify="right" if column.is_number else "left",
                no_wrap=not column.may_fold,
                overflow="fold",  # a name cut short could not be copied
            )
        for row in zip(*(self._cells[column.heading] for column in columns), strict=True):
            table.add_row(*map(Text, row))
        return table

    def _footnotes(self) -> list[str]:
        notes = []
        old = sum(is_old(offer, self._today) for offer in self._offers)
        if old:
            notes.append(f"{OLD_MARK} older than one year: {old} of {len(self._offers)} prices")
        return notes
