"""Testbed network: nodes as network namespaces on a bridge, with links shaped both ways.

It needs Linux, root, and the programs ip and tc. Everything that it makes has a name that begins with the
network's own, lies in namespaces of its own, and goes with them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from srifty.errors import CloudRefused, InvalidInput

PREFIX = "srifty-"
MOST_NODES = 64
SMALLEST_BURST_BYTES = 128 * 1024
"""With a smaller bucket the kernel's timer is too coarse, and links of more than 1 Gbit/s stay below their rate."""
LIMIT_BYTES = 32 * 2**20
"""Queue of a link: nothing is lost in it, so that TCP does not hunt for the rate."""
_STATE = Path("/run/srifty-testbed")
_PATIENCE_S = 30.0
_NAME = re.compile(r"[a-z0-9]{1,12}")


@dataclass(frozen=True)
class Shape:
    """The rate of a link, the same both ways.

    Attributes:
        bytes_per_s: sustained rate
        peak_bytes_per_s: rate while there are credits; None: no credits
        credit_bytes: what passes at the peak rate before the sustained one holds; it fills again at that rate
    """

    bytes_per_s: float
    peak_bytes_per_s: float | None = None
    credit_bytes: int = 0

    def __post_init__(self) -> None:
        for rate in (self.bytes_per_s, self.peak_bytes_per_s):
            if rate is not None and not 1e4 <= rate <= 1e10:
                raise InvalidInput(f"a link of {rate:g} bytes/s cannot be shaped here: expected 1e4 to 1e10")
        if self.peak_bytes_per_s is not None and self.peak_bytes_per_s < self.bytes_per_s:
            raise InvalidInput(
                f"a peak rate of {self.peak_bytes_per_s:g} bytes/s is below the sustained {self.bytes_per_s:g}"
            )


@dataclass(frozen=True)
class NodeLink:
    """A node: the shape of its link, and the rack whose bridge it is on."""

    shape: Shape
    rack: int = 0


class TestbedNetwork:
    """Some nodes and the network between them; `close` removes exactly what was made.

    Racks are bridges, joined by an uplink of their own where there are two.
    """

    __test__ = False  # no test of pytest's, whatever its name

    def __init__(self, name: str, nodes: Sequence[NodeLink], *, uplink: Shape | None = None) -> None:
        """Make the namespaces, links and bridges.

        Args:
            name: of this network: 1 to 12 lower-case letters or digits
            nodes: their links; a node's number is its place here
            uplink: between the racks 0 and 1; None: not shaped

        Raises:
            InvalidInput: the name or the number of nodes cannot be used
            CloudRefused: not Linux, not root, a program or a part of the kernel is missing, the name is taken
        """
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"testbed name {name!r}: expected 1 to 12 lower-case letters or digits")
        if not 1 <= len(nodes) <= MOST_NODES:
            raise InvalidInput(f"{len(nodes)} nodes: a testbed has 1 to {MOST_NODES}")
        if not {node.rack for node in nodes} <= {0, 1}:
            raise InvalidInput("a testbed has the racks 0 and 1")
        check_able()
        self.name = name
        self.node_count = len(nodes)
        self._rack_count = max(node.rack for node in nodes) + 1
        taken = [space for space in namespaces() if space.startswith(f"{PREFIX}{name}-")]
        if taken:
            raise CloudRefused(
                f"a testbed {name!r} is there already ({', '.join(taken[:3])}): stop it, or take another name"
            )
        _write_owner(name)
        try:
            self._make(nodes)
            for number, node in enumerate(nodes):
                self.shape(number, node.shape)
            if uplink is not None:
                self.shape_uplink(uplink)
        except BaseException:
            self.close()
            raise

    def namespace(self, node: int) -> str:
        """The namespace of a node."""
        return f"{PREFIX}{self.name}-{node}"

    def address(self, node: int) -> str:
        """The address of a node, known inside this network only."""
        return f"10.77.0.{node + 1}"

    def inside(self, node: int, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on a node."""
        return ["ip", "netns", "exec", self.namespace(node), *command]

    def shape(self, node: int, shape: Shape) -> None:
        """Give a node's link this rate from now on; what is on its way stays."""
        _shape(self.namespace(node), "eth0", shape)
        _shape(self._hub, f"n{node}", shape)

    def shape_uplink(self, shape: Shape) -> None:
        """Give the link between the racks this rate from now on."""
        if self._rack_count < 2:
            raise InvalidInput("the testbed has one rack and no uplink")
        _shape(self._hub, "up0", shape)
        _shape(self._hub, "up1", shape)

    def cut(self, node: int) -> None:
        """Pull a node's cable."""
        _ip(f"link set n{node} down", namespace=self._hub)

    def close(self) -> None:
        """End every process on the nodes and remove everything."""
        remove(self.name)

    def __enter__(self) -> TestbedNetwork:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _hub(self) -> str:
        return f"{PREFIX}{self.name}-hub"

    def _make(self, nodes: Sequence[NodeLink]) -> None:
        hub = self._hub
        _ip(f"netns add {hub}", *(f"netns add {self.namespace(number)}" for number in range(len(nodes))))
        lines = [f"link add br{rack} type bridge" for rack in range(self._rack_count)]
        if self._rack_count == 2:
            lines += ["link add up0 type veth peer name up1"]
            lines += [f"link set up{rack} master br{rack}" for rack in (0, 1)]
            lines += [f"link set up{rack} up" for rack in (0, 1)]
        lines += [f"link set br{rack} up" for rack in range(self._rack_count)]
        for number, node in enumerate(nodes):
            lines.append(f"link add n{number} type veth peer name eth0 netns {self.namespace(number)}")
            lines += [f"link set n{number} master br{node.rack}", f"link set n{number} up"]
        _ip(*lines, namespace=hub)
        for number in range(len(nodes)):
            space = self.namespace(number)
            _ip(
                f"addr add {self.address(number)}/24 dev eth0",
                "link set eth0 up",
                "link set lo up",
                namespace=space,
            )
            # Cubic probes for more than the link has, and falls back: reno keeps to a shaped rate.
            _run(
                ["ip", "netns", "exec", space, "tee", "/proc/sys/net/ipv4/tcp_congestion_control"],
                given="reno",
            )


def check_able() -> None:
    """Raise CloudRefused where no testbed can be made here."""
    if not sys.platform.startswith("linux"):
        raise CloudRefused(f"the testbed needs Linux's network namespaces; this is {sys.platform}")
    if os.geteuid() != 0:
        raise CloudRefused("the testbed makes network namespaces, which takes root: run it with sudo")
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise CloudRefused(
            f"the testbed needs {' and '.join(missing)}: install iproute2 (apt-get install iproute2)"
        )


def namespaces() -> list[str]:
    """Every network namespace that has a name."""
    return [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines() if line.strip()]


def remove(name: str) -> None:
    """Remove a testbed of that name with all its processes; what is not there is no matter."""
    spaces = [space for space in namespaces() if space.startswith(f"{PREFIX}{name}-")]
    _end_processes(spaces)
    for space in spaces:
        with suppress(CloudRefused):
            _run(["ip", "netns", "delete", space])
    with suppress(OSError):
        (_STATE / f"{name}.json").unlink()


def stale() -> list[str]:
    """Names of testbeds whose maker is gone, and on which nothing runs."""
    names = {space.split("-")[1] for space in namespaces() if space.startswith(PREFIX)}
    names |= {path.stem for path in _STATE.glob("*.json")}
    return sorted(name for name in names if not _has_owner(name) and not processes(name))


def processes(name: str) -> list[int]:
    """Processes on the nodes of a testbed."""
    spaces = [space for space in namespaces() if space.startswith(f"{PREFIX}{name}-")]
    return [process for space in spaces for process in _processes_in(space)]


def _processes_in(space: str) -> list[int]:
    return [int(line) for line in _run(["ip", "netns", "pids", space]).split()]


def _end_processes(spaces: Sequence[str]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        left = [process for space in spaces for process in _processes_in(space)]
        if not left:
            return
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, os.WNOHANG)
        time.sleep(0.02)
    raise CloudRefused(f"processes on the testbed do not end: {left}")


def _shape(space: str, device: str, shape: Shape) -> None:
    """A token bucket; with credits one inside another: the outer holds the peak, the inner the sustained rate."""
    rate = shape.peak_bytes_per_s or shape.bytes_per_s
    inner = f"handle 20: bfifo limit {LIMIT_BYTES}"
    if shape.peak_bytes_per_s is not None:
        credit = max(shape.credit_bytes, _burst(shape.bytes_per_s))
        inner = f"handle 10: {_bucket(shape.bytes_per_s, credit)}"
    lines = [
        f"qdisc replace dev {device} root handle 1: {_bucket(rate, _burst(rate))}",
        f"qdisc replace dev {device} parent 1:1 {inner}",
    ]
    _run(["tc", "-n", space, "-batch", "-"], given="\n".join(lines) + "\n")


def _bucket(bytes_per_s: float, burst_bytes: int) -> str:
    return f"tbf rate {round(8 * bytes_per_s)}bit burst {burst_bytes} limit {LIMIT_BYTES}"


def _burst(bytes_per_s: float) -> int:
    return max(SMALLEST_BURST_BYTES, round(bytes_per_s / 1000))


def _ip(*lines: str, namespace: str | None = None) -> None:
    where = [] if namespace is None else ["-n", namespace]
    _run(["ip", *where, "-batch", "-"], given="\n".join(lines) + "\n")


def _run(command: Sequence[str], given: str = "") -> str:
    try:
        done = subprocess.run(  # noqa: S603 - programs of the system, as an argument list
            command, input=given, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CloudRefused(f"{command[0]} did not answer within {_PATIENCE_S:g} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise CloudRefused(
            f"the kernel refuses a part of the testbed: {said[0]} (from {' '.join(command[:4])}, given "
            f"{given.strip().splitlines()[:1]})"
        )
    return done.stdout


def _write_owner(name: str) -> None:
    _STATE.mkdir(mode=0o700, exist_ok=True)
    told = {"process": os.getpid(), "started": _started(os.getpid())}
    (_STATE / f"{name}.json").write_text(json.dumps(told), encoding="utf-8")


def _has_owner(name: str) -> bool:
    try:
        told = json.loads((_STATE / f"{name}.json").read_text(encoding="utf-8"))
        return bool(_started(told["process"]) == told["started"])
    except (OSError, ValueError, KeyError):
        return False


def _started(process: int) -> int:
    """When a process started, in the kernel's ticks; its number alone may be another's by now."""
    text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    return int(text.rpartition(")")[2].split()[19])


@contextmanager
def shaped_network(
    name: str, nodes: Sequence[NodeLink], *, uplink: Shape | None = None
) -> Iterator[TestbedNetwork]:
    """A testbed network, after what is left of dead ones has been swept away."""
    check_able()
    for old in stale():
        remove(old)
    with TestbedNetwork(name, nodes, uplink=uplink) as network:
        yield network
