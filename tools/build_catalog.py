"""Build the shipped table of offers from the folder of facts, so that every figure can be traced.

    python tools/build_catalog.py [DATA_FOLDER]      default: $SRIFTY_DATA, else ../shared/data

The facts name one machine a row and mix units; the table has one offer a row and says its units.
What the facts get wrong or leave open is mended here, each time with the reason beside it.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TABLE = REPOSITORY / "src" / "srifty" / "clouds" / "data" / "offers.csv"

COLUMNS = (
    "cloud",
    "region",
    "zone",
    "instance_type",
    "gpu",
    "gpu_count",
    "gpu_memory_gib",
    "vcpu_count",
    "memory_gib",
    "network_gbit_per_s",
    "network_burst_gbit_per_s",
    "gpu_link",
    "gpu_link_gbyte_per_s",
    "market",
    "usd_per_hour",
    "price_as_of",
    "source",
)

Row = dict[str, str]

# "2026" in the facts: mid to late 2026. A date is needed to tell old prices from new ones.
DAY_UNKNOWN = "2026-07-01"
SKYPILOT = "skypilot-catalog v9 (day unknown)"

# gcosts adds a machine's price up from parts, for every region that sells the parts. Google's own list of GPUs by
# region lacks most of these, so the on-demand rows say that they are unverified. Its spot prices there are a
# tenth of on-demand where the half is usual: they would win every comparison with machines that nobody can
# rent, so they are left out.
GCOSTS = "gcosts pricing.yml+gcosts machinetyperegion.csv; GPU & egress cap: vendor-doc recall (verify)"

SHORT_SOURCES = {
    "karpenter-provider-azure; specs & NIC cap: vendor-doc recall (verify)": (
        "karpenter-azure; specs unverified"
    ),
    "karpenter-provider-gcp+gcosts machinetyperegion.csv; GPU & egress cap: vendor-doc recall (verify)": (
        "karpenter-gcp; specs unverified"
    ),
    "skypilot-catalog v9/lambda (no spot market; NVLink col: recall)": SKYPILOT + "; stock unknown",
    "libcloud (legacy type: not in moto-5.2.5)": "libcloud 3.9.1",
    "moto-5.2.5": "moto 5.2.5",
    "moto-5.2.5+libcloud": "libcloud 3.9.1",
    "moto-5.2.5+karpenter-provider-aws": "karpenter-aws",
    "moto-5.2.5+karpenter-provider-aws; spot skypilot-catalog v9": "karpenter-aws",
    "moto-5.2.5; spot skypilot-catalog v9": "moto 5.2.5",
    "moto-5.2.5+skypilot-catalog": SKYPILOT,
    "moto-5.2.5+skypilot-catalog v9": SKYPILOT,
    "moto-5.2.5+skypilot-catalog v9; spot skypilot-catalog v9": SKYPILOT,
    "moto-5.2.5+libcloud+skypilot-catalog(price)": SKYPILOT,
    "skypilot-catalog; specification from general knowledge (verify)": SKYPILOT + "; specs unverified",
    GCOSTS: "gcosts; unverified in this region",
}
"""Where the price comes from, and what is unverified. AWS hardware is moto 5.2.5's throughout."""

CHIP_NAMES = {"RTX PRO Server 6000": "RTX PRO 6000", "RTX-PRO-6000": "RTX PRO 6000"}

# Machine-wide figures where the facts add up cards that each already state the whole machine's rate
# (g6e) or half of their own (p6-b200). AWS names 200, 400 and 3200 Gbit/s for the whole machines;
# of p6-b300's 6750 the first card's 350 carry no EFA, which leaves 16 x 400 for an exchange.
WHOLE_MACHINE_GBIT_PER_S = {
    "g6e.24xlarge": "200",
    "g6e.48xlarge": "400",
    "p6-b200.48xlarge": "3200",
    "p6-b300.48xlarge": "6400",
}

# trn2.48xlarge has 1.5 TiB over 16 chips; the 512 GiB of the facts count each of 8 cores' share anew.
CHIP_MEMORY_GIB = {"Trainium2": "96"}

# One GPU's NVLink, one way [GB/s]: links x rate of a link, from NVIDIA's architecture papers.
NVLINK_GBYTE_PER_S = {
    "2": 150.0,  # V100: 6 x 25
    "3": 300.0,  # A100: 12 x 25
    "4": 450.0,  # H100, H200: 18 x 25
    "5": 900.0,  # B200, B300, GB200: 18 x 50
}
NVLINK_BRIDGE_GBYTE_PER_S = 300.0  # A100 PCIe and H100 NVL: 600 both ways over three bridges

# MI300X: 7 Infinity Fabric links x 64 to its seven neighbours, one way [GB/s].
INFINITY_FABRIC_GBYTE_PER_S = 448.0

# PCIe x16, one way after line coding [GB/s]: 3.0 15.75, 4.0 31.5, 5.0 63. From each chip's data sheet.
PCIE_3, PCIE_4, PCIE_5 = 15.75, 31.5, 63.0
PCIE_GBYTE_PER_S = {
    "K80": PCIE_3,
    "M60": PCIE_3,
    "V100": PCIE_3,
    "T4": PCIE_3,
    "T4g": PCIE_3,
    "RTX6000": PCIE_3,
    "A10": PCIE_4,
    "A10G": PCIE_4,
    "A100": PCIE_4,
    "A6000": PCIE_4,
    "L4": PCIE_4,
    "L40S": PCIE_4,
    "RTX PRO 4500": PCIE_5,
    "RTX PRO 6000": PCIE_5,
    "H100": PCIE_5,
    "H100-NVL": PCIE_5,
}


def build(folder: Path) -> str:
    """Text of the table made from `folder`/gpu_instances.csv and `folder`/aws_spot.csv."""
    zones = defaultdict(list)
    for row in _read(folder / "aws_spot.csv"):
        zones[row["instance_type"], row["region"]].append(row)
    machines = defaultdict(list)
    for row in _read(folder / "gpu_instances.csv"):
        machines[row["cloud"], row["instance_type"], row["region"]].append(row)

    rows: list[Row] = []
    for (cloud, instance_type, region), given in machines.items():
        machine = max(given, key=lambda row: _date(row["price_as_of"]))  # some are listed twice
        by_zone = zones.get((instance_type, region), []) if cloud == "aws" else []
        hardware = _hardware(machine)
        rows += [hardware | price for price in (_on_demand(machine, by_zone), *_spot(machine, by_zone))]
    rows.sort(key=lambda row: [row[column] for column in COLUMNS[:4]] + [row["market"]])

    out = io.StringIO()
    out.write(f"# taken_at={_taken_at(folder)}; made by tools/build_catalog.py\n")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _on_demand(machine: Row, by_zone: list[Row]) -> Row:
    """The region's on-demand price; where both files know it, the newer."""
    price, as_of = machine["price_usd_per_hour"], _date(machine["price_as_of"])
    source = SHORT_SOURCES[machine["source"]]
    also = {row["price_usd_per_hour"] for row in by_zone} - {""}
    if len(also) == 1 and as_of < DAY_UNKNOWN:
        price, as_of, source = also.pop(), DAY_UNKNOWN, SKYPILOT
    return _price("", "on-demand", price, as_of, source + _notes(machine))


def _spot(machine: Row, by_zone: list[Row]) -> Iterator[Row]:
    """Spot prices zone by zone where they are known so, else the region's; none where no file has any."""
    notes = _notes(machine)
    for row in by_zone:
        yield _price(row["zone"], "spot", row["spot_usd_per_hour"], DAY_UNKNOWN, SKYPILOT + notes)
    if by_zone or not machine["spot_usd_per_hour"] or machine["source"] == GCOSTS:
        return
    # AWS spot prices have another source than the row's on-demand price: the row's date is not theirs.
    if machine["cloud"] == "aws":
        as_of, source = DAY_UNKNOWN, SKYPILOT + "; cheapest zone of the region"
    else:
        as_of, source = _date(machine["price_as_of"]), SHORT_SOURCES[machine["source"]]
    yield _price("", "spot", machine["spot_usd_per_hour"], as_of, source + notes)


def _price(zone: str, market: str, usd_per_hour: str, as_of: str, source: str) -> Row:
    return {
        "zone": zone,
        "market": market,
        "usd_per_hour": _number(usd_per_hour),
        "price_as_of": as_of if usd_per_hour else "",
        "source": source,
    }


def _hardware(machine: Row) -> Row:
    gpu = _chip(machine["accelerator"])
    sustained, burst = _network(machine)
    link, rate = _gpu_link(machine["interconnect"], gpu, float(machine["accelerator_count"]))
    return {
        "cloud": machine["cloud"],
        "region": machine["region"],
        "instance_type": machine["instance_type"],
        "gpu": gpu,
        "gpu_count": _number(machine["accelerator_count"]),
        "gpu_memory_gib": CHIP_MEMORY_GIB.get(gpu) or _number(machine["accelerator_memory_gib"]),
        "vcpu_count": _number(machine["vcpus"]),
        "memory_gib": _number(machine["memory_gib"]),
        "network_gbit_per_s": sustained,
        "network_burst_gbit_per_s": burst,
        "gpu_link": link,
        "gpu_link_gbyte_per_s": "" if rate is None else _number(str(rate)),
    }


def _chip(accelerator: str) -> str:
    """The chip without its memory, which has a column of its own; H100-NVL is another chip than H100."""
    return CHIP_NAMES.get(accelerator) or re.sub(r"-\d+GB$", "", accelerator)


def _network(machine: Row) -> tuple[str, str]:
    """Sustained and burst rate of the whole machine [Gbit/s]; blank: not known."""
    instance_type, interconnect = machine["instance_type"], machine["interconnect"]
    if infiniband := _infiniband_gbit_per_s(interconnect):
        return str(infiniband), ""
    if whole := WHOLE_MACHINE_GBIT_PER_S.get(instance_type):
        return whole, whole
    sustained = _number(machine["network_baseline_gbps"])
    burst = _number(machine["network_burst_gbps"])
    if instance_type == "g3s.xlarge":
        return "", burst  # AWS says "up to 10": the facts give the burst twice
    if sustained and burst and float(burst) < float(sustained):
        burst = ""  # g3.16xlarge: 20 below 25 cannot be
    return sustained, burst


def _infiniband_gbit_per_s(interconnect: str) -> int | None:
    """Rate of the InfiniBand between machines, which NCCL uses in place of the slower front network."""
    if found := re.search(r"(\d+)x(\d+)G IB", interconnect):
        return int(found[1]) * int(found[2])
    if found := re.search(r"IB EDR (\d+)G", interconnect):
        return int(found[1])
    return None


def _gpu_link(interconnect: str, gpu: str, gpu_count: float) -> tuple[str, float | None]:
    """Kind and nominal one-way rate [GB/s] of one GPU's link to the others in its machine."""
    if gpu_count <= 1:
        return "", None
    if interconnect.startswith("Infinity Fabric"):
        return "other", INFINITY_FABRIC_GBYTE_PER_S
    if interconnect.startswith("NeuronLink"):
        return "other", None
    if "pairs" in interconnect:
        return "pcie", PCIE_GBYTE_PER_S[gpu]  # a ring over all four GPUs leaves the bridged pairs
    if "bridge" in interconnect:
        return "nvlink", NVLINK_BRIDGE_GBYTE_PER_S
    if found := re.search(r"NVLink(\d)", interconnect):
        return "nvlink", NVLINK_GBYTE_PER_S[found[1]]
    if interconnect == "NVLink" and gpu == "V100":
        return "nvlink", NVLINK_GBYTE_PER_S["2"]  # some rows of P3 leave the generation out
    if interconnect.startswith("PCIe"):
        return "pcie", PCIE_GBYTE_PER_S.get(gpu)
    raise ValueError(f"interconnect {interconnect!r} of {gpu} is not known here")


def _notes(machine: Row) -> str:
    """What was mended in this machine's row, for its source."""
    if _infiniband_gbit_per_s(machine["interconnect"]):
        return "; network is its InfiniBand"
    if machine["instance_type"] in WHOLE_MACHINE_GBIT_PER_S:
        return "; network corrected"
    return ""


def _date(price_as_of: str) -> str:
    return DAY_UNKNOWN if price_as_of == "2026" else price_as_of


def _number(text: str) -> str:
    """The same number in its shortest form ("4.0" -> "4"); blank stays blank."""
    return f"{float(text):.12g}" if text else ""


def _taken_at(folder: Path) -> str:
    found = re.search(r"assembled (\d{4}-\d{2}-\d{2})", (folder / "README.md").read_text(encoding="utf-8"))
    if not found:
        raise ValueError(f"{folder}/README.md does not say when the facts were assembled")
    return found[1]


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Write the table in its place, or where --output says."""
    default = os.environ.get("SRIFTY_DATA") or REPOSITORY.parent / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "data", nargs="?", type=Path, default=Path(default), help="folder that holds catalog/"
    )
    parser.add_argument("-o", "--output", type=Path, default=TABLE)
    given = parser.parse_args()
    given.output.write_text(build(given.data / "catalog"), encoding="utf-8")


if __name__ == "__main__":
    main()
