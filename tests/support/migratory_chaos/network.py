"""A network namespace for each process of the cluster, joined by a router that loses what it is told to lose.

The run itself lives in the router's namespace (`enter_own_network`), together with a mount namespace: when its last
process ends, the kernel takes away namespaces, rules and mounts, however it ended. It reaches every node without
passing the rules, which stand in the FORWARD chain: what is asked of a broker's administration is no part of a fault.

Needs root, iproute2, iptables and util-linux. Without them a run has no network faults and says so.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from migratory_local.processes.network import Placement

INSIDE = "MIGRATORY_CHAOS_INSIDE"
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "ss": "iproute2", "iptables": "iptables"}
_COMMAND_SECONDS = 20.0
_DIAL = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1.0).close()
    print("accepted")
except ConnectionRefusedError:
    print("refused")
except OSError:
    print("silence")
"""
_NAMES = Path("/run/netns")


def missing() -> str:
    """Why there can be no networks of one's own here; empty when there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root"
    packages = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if packages:
        return f"not installed: {', '.join(packages)}"
    found = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS)
    return "" if found.returncode == 0 else f"unshare: {found.stderr.strip()}"


_UNSHARE = ("unshare", "--mount", "--net", "--propagation", "private")


def enter_own_network(command: Sequence[str]) -> None:
    """Becomes `command` inside new namespaces; does not return."""
    os.execvpe(_UNSHARE[0], [*_UNSHARE, *command], {**os.environ, INSIDE: "1"})


def inside() -> bool:
    return os.environ.get(INSIDE) == "1"


def run(*words: str) -> str:
    """A command's output. Raises RuntimeError, which says what it said, when it fails."""
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS)
    if found.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {found.stderr.strip() or found.stdout.strip()}")
    return found.stdout


@dataclass(frozen=True)
class Node:
    """`address` is its own, `router` the address at which it sees the router."""

    name: str
    address: str
    router: str

    @property
    def place(self) -> Placement:
        return Placement(self.address, ("nsenter", f"--net={_NAMES / self.name}"))


class Rule:
    """One rule of the router; `packets` are those that it met."""

    def __init__(self, words: Sequence[str], chain: str, table: str = "filter") -> None:
        self._number = f"chaos-{next(_numbers)}"
        self._table, self._chain = table, chain
        self._words = [*words[:-1], "-m", "comment", "--comment", self._number, *words[-1].split()]
        run("iptables", "-w", "-t", table, "-I", chain, *self._words)
        self._last = 0
        self._stands = True

    def packets(self) -> int:
        """How many packets it met so far, also when it is gone."""
        if self._stands:
            lines = run("iptables", "-w", "-t", self._table, "-nvxL", self._chain).splitlines()
            self._last = next(int(line.split()[0]) for line in lines if f"/* {self._number} */" in line)
        return self._last

    def remove(self) -> None:
        if self._stands:
            self.packets()
            run("iptables", "-w", "-t", self._table, "-D", self._chain, *self._words)
            self._stands = False


_numbers = itertools.count(1)


class Network:
    """The nodes of one run. Only inside `enter_own_network`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.nodes: dict[str, Node] = {}
        _NAMES.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "none", str(_NAMES))
        run("ip", "link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for number, name in enumerate(names, 1):
            self.nodes[name] = self._join(number, name)

    def _join(self, number: int, name: str) -> Node:
        node = Node(name, f"10.77.{number}.2", f"10.77.{number}.1")
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"to-{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "addr", "add", f"{node.router}/30", "dev", f"to-{number}")
        run("ip", "link", "set", f"to-{number}", "up")
        run("ip", "-n", name, "addr", "add", f"{node.address}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")
        run("ip", "-n", name, "route", "add", "default", "via", node.router)
        return node

    def drop(self, source: str, target: str, probability: float = 1.0) -> Rule:
        """Loses what goes from `source` to `target`, or a random part of it."""
        chance = [] if probability >= 1 else ["-m", "statistic", "--mode", "random", "--probability", str(probability)]
        return Rule([*self._between(source, target), *chance, "-j DROP"], "FORWARD")

    def redirect(self, source: str, target: str, port: int, to: int) -> Rule:
        """New connections from `source` to a port of `target` end at the router's port `to`."""
        where = f"{self.nodes[source].router}:{to}"
        words = [*self._between(source, target), "-p", "tcp", "--dport", str(port), f"-j DNAT --to-destination {where}"]
        return Rule(words, "PREROUTING", "nat")

    def connections(self, source: str, target: str, port: int) -> frozenset[str]:
        """The established connections that `source` made to a port of `target`, by its end of them."""
        return self._connections(source, target, port)

    def break_connections(self, source: str, target: str, port: int) -> frozenset[str]:
        """Ends them; those that were there."""
        return self._connections(source, target, port, "-K")

    def _connections(self, source: str, target: str, port: int, *options: str) -> frozenset[str]:
        address = self.nodes[target].address
        words = ["ss", *options, "-H", "-n", "-t", "state", "established", "dst", address, "dport", "=", str(port)]
        return frozenset(line.split()[2] for line in run(*self.nodes[source].place.command_prefix, *words).splitlines())

    def meets(self, source: str, target: str, port: int) -> str:
        """What a new connection from `source` to a port of `target` meets: "refused", "accepted" or "silence"."""
        node = self.nodes[target]
        words = [sys.executable, "-S", "-c", _DIAL, node.address, str(port)]
        return run(*self.nodes[source].place.command_prefix, *words).strip()

    def _between(self, source: str, target: str) -> list[str]:
        return ["-s", self.nodes[source].address, "-d", self.nodes[target].address]


def mount_disk(folder: Path, megabytes: int) -> None:
    """A small disk of its own for a folder, so that it can be filled without harm."""
    folder.mkdir(parents=True, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder))
