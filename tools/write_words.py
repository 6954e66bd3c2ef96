"""Write docs/words.md: every word that records and commands use, with its unit.

    python tools/write_words.py [-o FILE]

The words of the trade stand here; fields and their meaning are read from the records, so that the page cannot drift.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import textwrap
from enum import Enum
from pathlib import Path

import srifty.records as nouns
from srifty.records import Record

PAGE = Path(__file__).resolve().parent.parent / "docs" / "words.md"

WORDS = {
    "accumulation": "Several micro-steps to one step of the optimizer; gradients are exchanged in the last.",
    "batch": "Samples that one GPU takes in one micro-step; global batch: samples of one step over all GPUs.",
    "bucket": "Gradients that DDP exchanges in one AllReduce.",
    "catalog": "A table of offers as of one day.",
    "cluster": "What is rented: groups of nodes that train one job together.",
    "confidence": "The chance with which a limit is kept.",
    "exchange": "The AllReduce of gradients; exposed: the part that outlasts the backward pass.",
    "GPU": "A device of a node; on a node without one, its CPU.",
    "job": "What is to be trained: model, batch, samples.",
    "market": "How a machine is paid for: on-demand, or spot, which may be taken away.",
    "node": "A machine.",
    "offer": "What can be rented: one kind of machine, in one place and market, at one price.",
    "plan": "The chosen cluster, why, how sure, and what stood beside it.",
    "profile": "A job measured on one kind of GPU.",
    "sample": "One item of the training data.",
    "spread": "10th, 50th and 90th percentile and mean of a quantity that varies.",
    "step": "One iteration of the optimizer; micro-step: one forward and backward pass.",
    "straggler": "The slowest of the ranks, for whom all others wait.",
}

UNITS = (
    ("usd_per_hour", "US dollars an hour"),
    ("_usd", "US dollars"),
    ("budget_usd", "US dollars"),
    ("bytes_per_s", "bytes a second"),
    ("samples_per_s", "samples a second"),
    ("_bytes", "bytes"),
    ("_per_hour", "per hour"),
    ("_s", "seconds"),
    ("_at", "instant (UTC) or day"),
    ("_as_of", "day"),
    ("_batch", "samples"),
    ("batch_per_gpu", "samples"),
    ("sample_count", "samples"),
    ("samples_done", "samples"),
    ("count", "number"),
    ("_nodes", "number"),
    ("_gpus", "number"),
    ("_limit", "number"),
    ("confidence", "share"),
    ("chance_in_time", "share"),
    ("chance_in_budget", "share"),
    ("gap", "share"),
)
OWN_UNITS = {
    ("BatchTiming", "batch"): "samples",
    ("Job", "batches"): "samples",
    ("GradientBucket", "ready_at"): "share",
    ("Spread", "sample_count"): "number",
    ("StepTiming", "layout"): "GPUs on each node",
}


def unit(record: str, field: str) -> str:
    """Unit of a field, from its name."""
    if (record, field) in OWN_UNITS:
        return OWN_UNITS[record, field]
    return next((text for ending, text in UNITS if field.endswith(ending)), "")


def meanings(record: type[Record]) -> dict[str, str]:
    """Field -> first line of the docstring below it, where there is one."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    field = None
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and field is not None:
            found[field] = " ".join(str(node.value.value).split())
            field = None
        else:
            field = None
    return found


def page() -> str:
    """The whole page, as Markdown."""
    lines = [
        "# Words",
        "",
        "A thing has one name, in the folder, the type, the field, the table and the documents. Inside there is one "
        "unit for each kind: seconds (`_s`), bytes (`_bytes`), US dollars (`_usd`), samples; counts end in `_count`, "
        "instants in `_at` (UTC).",
        "",
        "| word | what it means |",
        "| --- | --- |",
        *(
            f"| {word} | {meaning} |"
            for word, meaning in sorted(WORDS.items(), key=lambda item: item[0].lower())
        ),
        "",
        "## Records",
        "",
        "Each is a file of JSON whose first field, `format`, names the record and its version, as in "
        "`srifty/plan/1`. `srifty schema plan` prints its JSON schema.",
    ]
    for name in sorted(nouns.__all__):
        record = getattr(nouns, name)
        if not (isinstance(record, type) and issubclass(record, Record)) or record is Record:
            continue
        lines += [
            "",
            f"### {name}",
            "",
            (inspect.getdoc(record) or "").split("\n\n")[0].replace("\n", " "),
            "",
        ]
        lines += ["| field | unit | what it means |", "| --- | --- | --- |"]
        told = meanings(record)
        lines += [
            f"| {field} | {unit(name, field)} | {told.get(field, '')} |" for field in record.model_fields
        ]
    lines += ["", "## Choices", "", "| word | one of |", "| --- | --- |"]
    for name in sorted(nouns.__all__):
        choice = getattr(nouns, name)
        if isinstance(choice, type) and issubclass(choice, Enum):
            lines.append(f"| {name} | {', '.join(member.value for member in choice)} |")
    return "\n".join(line.replace("| |", "|  |").rstrip() for line in lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write docs/words.md.")
    parser.add_argument("-o", "--output", type=Path, default=PAGE, help="file to write to")
    parser.parse_args().output.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
