"""A learned ExchangeModel for people: what each setup gets of its link, and how far to trust it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from srifty.records.exchange_model import ExchangeModel, ExchangeSetup
from srifty.records.text import counted, duration_text, figures, percent_text, size_text


def exchange_table(model: ExchangeModel, *, width: int = 80) -> RenderableType:
    """One row a setup, the variations, and what is taken for granted.

    Args:
        model: what was learned
        width: columns of the terminal; a narrow one is not told the range of messages
    """
    headings = ["machines", "nodes", "GPUs a node", "rate, Gbit/s", "a hop", "readings"]
    headings += ["messages"] if width >= 76 else []
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "machines" else "right")
    for setup in model.setups:
        cells = [
            f"{' + '.join(setup.instance_types)}\n{setup.backend} {setup.backend_version or ''}".rstrip(),
            _range(*setup.node_range),
            _range(*setup.gpus_per_node_range),
            _rate(setup),
            duration_text(setup.latency_s),
            str(setup.sample_count),
        ]
        sizes = f"{size_text(setup.message_range_bytes[0])} to {size_text(setup.message_range_bytes[1])}"
        table.add_row(*cells, *([sizes] if width >= 76 else []))
    tree_count = max(len(quantile.trees) for quantile in model.residuals)
    between = model.between_session_log_sd
    said = [
        f"variation within a session {percent_text(round(model.within_session_log_sd, 3))}, from session to session "
        + ("not measured (one session)" if between is None else percent_text(round(between, 3))),
        f"formula and {counted(tree_count, 'boosted tree')}"
        if tree_count
        else "the formula says it all: boosted trees told readings left out no better",
        *(f"- {assumption}" for assumption in model.assumptions),
    ]
    return Group(Text("Exchanges learned", style="bold"), table, Text("\n".join(said)))


def _range(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g}-{most:g}"


def _rate(setup: ExchangeSetup) -> str:
    """What two peers get of the link's rate."""
    share = f" of {figures(setup.link_bytes_per_s * 8e-9)}"
    return figures(setup.share * setup.link_bytes_per_s * 8e-9) + share
