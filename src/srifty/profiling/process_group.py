"""A process group of one process, so that DDP can be watched without a second machine, a port or a launcher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def process_group_of_one() -> Iterator[dist.ProcessGroup]:
    """A gloo group of this process alone, gone afterwards; a group that is there already is left as it is."""
    if dist.is_initialized():
        group = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, but torch lacks the export
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        group = dist.group.WORLD
    try:
        yield group
    finally:
        dist.destroy_process_group(group)
