"""The machines of the measuring sessions, as offers: what a catalogue would say of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from srifty.records import GpuLink, Market, Offer

GBIT = 1e9 / 8


@dataclass(frozen=True)
class Machine:
    """A kind of machine; its source says which figures are published and which are assumed."""

    name: str
    gpu: str
    gpu_count: int
    gpu_memory_gib: int
    network_gbit_per_s: float
    gpu_link: GpuLink
    gpu_link_gbyte_per_s: float
    source: str

    def offer(self, gpus_used: int) -> Offer:
        """An offer of which a job uses this many GPUs; its price plays no part here."""
        return Offer(
            cloud="benchmark",
            region="benchmark",
            instance_type=f"{self.name}/{gpus_used}",
            gpu=self.gpu,
            gpu_count=gpus_used,
            gpu_memory_bytes=self.gpu_memory_gib * 2**30,
            vcpu_count=1,
            network_bytes_per_s=self.network_gbit_per_s * GBIT,
            gpu_link=self.gpu_link if gpus_used > 1 else None,
            gpu_link_bytes_per_s=self.gpu_link_gbyte_per_s * 1e9 if gpus_used > 1 else None,
            market=Market.ON_DEMAND,
            usd_per_hour=1.0,
            price_as_of=date(2021, 1, 1),
            source=self.source,
        )


MACHINES = {
    "aws": Machine(
        "g4dn.12xlarge", "T4", 4, 16, 50, GpuLink.PCIE, 15.75, "AWS: 50 Gbit/s; PCIe 3.0 x16 by the chip"
    ),
    "azure": Machine(
        "ND40rs_v2",
        "V100-32GB",
        8,
        32,
        100,
        GpuLink.NVLINK,
        150,
        "Azure: EDR InfiniBand 100 Gbit/s, NVLink 2",
    ),
    "dgx": Machine(
        "DGX-A100", "A100-40GB", 8, 40, 1600, GpuLink.NVLINK, 300, "NVIDIA: 8 x HDR 200 Gbit/s, NVLink 3"
    ),
    "dgx-ext": Machine(
        "DGX-A100", "A100-40GB", 8, 40, 1600, GpuLink.NVLINK, 300, "NVIDIA: 8 x HDR 200 Gbit/s, NVLink 3"
    ),
    "rtx": Machine(
        "8xRTX2080Ti", "RTX2080Ti", 8, 11, 10, GpuLink.PCIE, 15.75, "network not stated: 10 Gbit/s assumed"
    ),
    "quad": Machine(
        "4xQuadroRTX6000", "QuadroRTX6000", 4, 24, 10, GpuLink.PCIE, 15.75, "one machine; PCIe 3.0 x16"
    ),
}
