"""Write the tables of docs/accuracy.md from what `python -m benchmarks.accuracy` prints.

    python -m benchmarks.accuracy > benchmarks/results/DATE-accuracy.md
    python tools/write_accuracy.py benchmarks/results/DATE-accuracy.md

Each table stands between `<!-- table: HEADING -->` and `<!-- end -->`; the words around it are written by people.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"


def tables(results: str) -> dict[str, str]:
    """Heading -> what stands under it."""
    parts = re.split(r"^## (.+)$", results, flags=re.MULTILINE)
    return {heading: body.strip() for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


def filled(page: str, results: str) -> str:
    """The page with its tables replaced by those of the results."""
    found = tables(results)

    def table(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n\n{found[match[1]]}\n\n<!-- end -->"

    return re.sub(r"<!-- table: (.+?) -->.*?<!-- end -->", table, page, flags=re.DOTALL)


def main() -> None:
    """Read the results, rewrite the page."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/accuracy.md.")
    parser.add_argument("results", type=Path)
    arguments = parser.parse_args()
    PAGE.write_text(filled(PAGE.read_text(), arguments.results.read_text()))


if __name__ == "__main__":
    main()
