"""The chip that a vendor's name means, by the name that offers use, so that profiles and offers meet.

Apart from the device, since the name of a GPU that another process used is told without torch.
"""

from __future__ import annotations

import re


def chip(printed: str) -> str:
    """The chip that a vendor's name means, as offers name it; unknown names stay as they are.

    Memory size, socket and brand are no part of the chip. A slice of a GPU ("... MIG 1g.5gb") is none of
    those that offers name, and stays as it is.
    """
    for chip_name, pattern in _CHIPS:
        if re.fullmatch(rf"(?:{_BRAND})?{pattern}(?:{_VARIANT})*", printed.strip()):
            return chip_name
    return printed.strip()


_BRAND = r"(?:NVIDIA |Tesla |Quadro |AMD |Instinct )+"
_VARIANT = r"[ -](?:SXM\d?|PCI[Ee]|FHHL|DGXS|OAM|\d+GB?|HBM\d?e?)"
_PRINTED_AS_OFFERED = [
    *["K80", "M60", "P4", "P40", "P100", "V100", "T4", "A2", "A10", "A10G", "A16", "A30", "A40", "A100"],
    *["L4", "L40", "L40S", "H100", "H200", "B200", "B300", "GB200", "GH200"],
    *["MI100", "MI210", "MI250", "MI250X", "MI300X", "MI325X", "MI355X"],
]
_CHIPS = [
    *((name, re.escape(name)) for name in _PRINTED_AS_OFFERED),
    ("T4g", "T4G"),
    ("H100-NVL", "H100 NVL"),
    ("H200-NVL", "H200 NVL"),
    ("A4000", "RTX A4000"),
    ("A5000", "RTX A5000"),
    ("A6000", "RTX A6000"),
    ("RTX6000", "RTX 6000"),
    ("RTX8000", "RTX 8000"),
]
