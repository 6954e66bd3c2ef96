"""Memory of the machine: the least that is left counts, and a limit is a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from srifty.profiling.host_memory import available_bytes, resident_peak_bytes

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def _machine(root: Path, available_mib: int, **files: str) -> Path:
    """A machine's /proc and /sys, made of files; in names __ stands for /."""
    texts = {"proc__meminfo": f"MemTotal: 9 kB\nMemAvailable:  {available_mib * 1024} kB\n"} | files
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_what_is_free_is_available(tmp_path: Path) -> None:
    assert available_bytes(_machine(tmp_path, 700)) == 700 * MIB


def test_a_control_group_leaves_less_and_counts_what_it_can_free(tmp_path: Path) -> None:
    group = {
        "proc__self__cgroup": "0::/batch/job\n",
        "sys__fs__cgroup__batch__job__memory.max": "max\n",
        "sys__fs__cgroup__batch__job__memory.current": f"{90 * MIB}\n",
        "sys__fs__cgroup__batch__memory.max": f"{500 * MIB}\n",
        "sys__fs__cgroup__batch__memory.current": f"{100 * MIB}\n",
        "sys__fs__cgroup__batch__memory.stat": f"anon 5\ninactive_file {20 * MIB}\n",
    }
    assert available_bytes(_machine(tmp_path, 700, **group)) == 420 * MIB


def test_in_a_container_the_group_at_the_top_counts(tmp_path: Path) -> None:
    group = {
        "proc__self__cgroup": "0::/somewhere/on/the/host\n",
        "sys__fs__cgroup__memory.max": f"{500 * MIB}\n",
        "sys__fs__cgroup__memory.current": f"{100 * MIB}\n",
    }
    assert available_bytes(_machine(tmp_path, 700, **group)) == 400 * MIB


def test_a_control_group_of_the_first_version_counts_too(tmp_path: Path) -> None:
    def group(limit: int) -> dict[str, str]:
        return {
            "proc__self__cgroup": "9:name=systemd:/\n4:cpu,memory:/job\n",
            "sys__fs__cgroup__memory__job__memory.limit_in_bytes": f"{limit}\n",
            "sys__fs__cgroup__memory__job__memory.usage_in_bytes": f"{200 * MIB}\n",
            "sys__fs__cgroup__memory__job__memory.stat": f"total_inactive_file {50 * MIB}\n",
        }

    assert available_bytes(_machine(tmp_path, 700, **group(400 * MIB))) == 250 * MIB
    assert available_bytes(_machine(tmp_path, 700, **group(2**63 - 4096))) == 700 * MIB


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    group = {
        "proc__self__cgroup": "0::/\n",
        "sys__fs__cgroup__memory.max": "5",
        "sys__fs__cgroup__memory.current": "9",
    }
    assert available_bytes(_machine(tmp_path, 700, **group)) == 0


def test_a_system_that_does_not_tell_leaves_half_of_its_memory(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 100 * MIB


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@linux
def test_a_limit_on_the_address_space_counts() -> None:
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**29, -1))\n"
        "from srifty.profiling.host_memory import available_bytes\n"
        "print(available_bytes())"
    )
    assert 2**27 < int(_run(code)) < 2**29


@linux
def test_a_process_can_be_kept_from_taking_more_and_its_peak_is_told() -> None:
    code = (
        "from srifty.profiling.host_memory import *\n"
        "forget_resident_peak()\n"
        "before = resident_peak_bytes()\n"
        "limit_further_data(100 * 2**20)\n"
        "held = bytearray(60 * 2**20)\n"
        "try:\n"
        "    bytearray(60 * 2**20)\n"
        "except MemoryError:\n"
        "    print((resident_peak_bytes() - before) >> 20)"
    )
    assert 55 <= int(_run(code)) <= 75


@linux
def test_the_peak_is_not_that_of_the_process_that_started_this_one() -> None:
    held = bytearray(b"x") * (300 * MIB)
    code = "from srifty.profiling.host_memory import *; print(resident_peak_bytes())"
    assert int(_run(code)) < 250 * MIB < len(held) < resident_peak_bytes()
