"""Makes `import torchvision` work beside the CPU build of torch that the tests pin.

torchvision's own operators are built for another torch there and do not load, and its import then stops with
"operator torchvision::nms does not exist". The four models need none of them, so it is enough that the names
are there. Users have a matching pair and need none of this.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_kept_alive: list[torch.library.Library] = []


def make_importable() -> None:
    """Define the operators' names, unless the real ones load; call it before torchvision is imported."""
    if _kept_alive or _real_ones_load():
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept_alive.append(library)


def _real_ones_load() -> bool:
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    try:
        torch.ops.load_library(str(Path(found.origin).parent / "_C.so"))
    except OSError:
        return False
    return True
