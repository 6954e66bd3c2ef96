"""People write clusters in a few ways; what is no cluster is refused with an example."""

from __future__ import annotations

import pytest

from srifty.errors import InvalidInput
from srifty.records.cluster_text import parse_cluster_text


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("4xg4dn.12xlarge", ((4, "g4dn.12xlarge"),)),
        ("4 x g4dn.12xlarge", ((4, "g4dn.12xlarge"),)),
        ("p3.2xlarge", ((1, "p3.2xlarge"),)),
        ("4xp3.2xlarge, 2xg4dn.12xlarge", ((4, "p3.2xlarge"), (2, "g4dn.12xlarge"))),
        ("2xStandard_NC24ads_A100_v4", ((2, "Standard_NC24ads_A100_v4"),)),
        ("1xgpu_8x_a100", ((1, "gpu_8x_a100"),)),
        ("x2gd.metal", ((1, "x2gd.metal"),)),
    ],
)
def test_machines_are_read_as_people_write_them(text, groups):
    assert parse_cluster_text(text) == groups


@pytest.mark.parametrize(
    "text", ["", ",", "4x", "0xp3.2xlarge", "-1xp3.2xlarge", "4 4xp3", "4xp3.2xlarge,", "1000000xp3"]
)
def test_what_is_no_cluster_is_refused(text):
    with pytest.raises(InvalidInput, match=r"g4dn\.12xlarge|nodes"):
        parse_cluster_text(text)
