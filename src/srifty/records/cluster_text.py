"""A cluster as people write it: "4xg4dn.12xlarge", or "4xp3.2xlarge,2xg4dn.12xlarge" for two kinds."""

from __future__ import annotations

import re

from srifty.errors import InvalidInput


def parse_cluster_text(text: str) -> tuple[tuple[int, str], ...]:
    """Node count and instance type of each group; a type without a count stands for one node.

    Raises:
        InvalidInput: nothing given, a count of 0, a group that is no count and name
    """
    groups = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(?:(?P<count>-?\d{1,12})\s*[x*]\s*)?(?P<name>[A-Za-z][\w.-]*)\s*", part)
        if found is None:
            raise InvalidInput(f"cannot read {part.strip()!r} in {text!r} as machines; write 4xg4dn.12xlarge")
        count = int(found["count"] or 1)
        if not 1 <= count <= 100_000:
            raise InvalidInput(
                f"{count} nodes of {found['name']} is not a cluster; give from 1 to 100,000 nodes"
            )
        groups.append((count, found["name"]))
    return tuple(groups)
