"""Two real ranks that train a model in DDP over loopback, and print the sizes of its buckets.

Run as a program: `python two_ranks.py RANK RENDEZVOUS_FILE`.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Branches(nn.Module):
    """Some 36 MB in layers of unlike sizes, which are not used in the order in which they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(512, 10)
        self.wide = nn.Linear(512, 4096)
        self.narrow = nn.Linear(4096, 512)
        self.middle = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))
        self.first = nn.Linear(8, 512)
        self.exact = nn.Linear(512, 512, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.middle:
            x = x + layer(x).relu()
        x = x + self.exact(x.double()).float()
        return self.last(self.narrow(self.wide(x).relu()))


def make_batch(batch: int) -> torch.Tensor:
    return torch.randn(batch, 8)


def loss(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
    return model(data).square().mean()


def main(rank: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    sizes_bytes: list[int] = []

    def exchange(state, bucket):  # type: ignore[no-untyped-def]
        buffer = bucket.buffer()
        state.append(buffer.numel() * buffer.element_size())
        work = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model = DistributedDataParallel(Branches())
    model.register_comm_hook(sizes_bytes, exchange)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        sizes_bytes.clear()
        loss(model, make_batch(4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(json.dumps(sizes_bytes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
