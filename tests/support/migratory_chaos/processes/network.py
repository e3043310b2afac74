"""A network namespace for each process of a run, joined by a router that drops packets by rules.

The run itself lives in the router's namespace (`enter_own_network`), together with a mount namespace: when its last
process ends, however it ended, the kernel removes namespaces, rules and mounts. The run reaches every node without
passing the rules, which are in the FORWARD chain: requests to a broker's administration are no part of a fault.
`mount_disk` mounts the small disks that faults fill.

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
"""The environment variable that is set for a run in namespaces of its own."""
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "ss": "iproute2", "iptables": "iptables"}
"""Programs, and the Debian packages that have them."""
_UNSHARE = ("unshare", "--mount", "--net", "--propagation", "private")
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
_NAMESPACES = Path("/run/netns")


def explain_missing() -> str:
    """Return why there can be no network namespaces here; empty when there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root"
    packages = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if packages:
        return f"not installed: {', '.join(packages)}"
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS)
    return "" if tried.returncode == 0 else f"unshare: {tried.stderr.strip()}"


def enter_own_network(command: Sequence[str]) -> None:
    """Replace this process by `command` in new namespaces. Does not return."""
    os.execvpe(_UNSHARE[0], [*_UNSHARE, *command], {**os.environ, INSIDE: "1"})


def is_inside() -> bool:
    """Return whether this process is in namespaces of its own."""
    return os.environ.get(INSIDE) == "1"


def run(*words: str) -> str:
    """Return a command's output. :raises RuntimeError: it failed; the text has its error output."""
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {ended.stderr.strip() or ended.stdout.strip()}")
    return ended.stdout


@dataclass(frozen=True)
class Node:
    """A namespace with its `address`, and the address at which it sees the `router`."""

    name: str
    address: str
    router: str

    @property
    def placement(self) -> Placement:
        return Placement(self.address, ("nsenter", f"--net={_NAMESPACES / self.name}"))


class Rule:
    """An iptables rule, inserted at construction, which counts the packets that match it."""

    _numbers = itertools.count(1)

    def __init__(self, words: Sequence[str], chain: str, table: str = "filter", comment: str = "") -> None:
        self._comment = comment or f"chaos-{next(Rule._numbers)}"
        self._table, self._chain = table, chain
        self._words = [*words[:-1], "-m", "comment", "--comment", self._comment, *words[-1].split()]
        run("iptables", "-w", "-t", table, "-I", chain, *self._words)
        self._packets = 0
        self._active = True

    def packets(self) -> int:
        """Return the number of packets that matched so far, also after `remove`."""
        if self._active:
            lines = run("iptables", "-w", "-t", self._table, "-nvxL", self._chain).splitlines()
            self._packets = next(int(line.split()[0]) for line in lines if f"/* {self._comment} */" in line)
        return self._packets

    def remove(self) -> None:
        if self._active:
            self.packets()
            run("iptables", "-w", "-t", self._table, "-D", self._chain, *self._words)
            self._active = False


class Network:
    """The nodes of one run and the router's rules. Only inside `enter_own_network`."""

    def __init__(self, names: Sequence[str]) -> None:
        _NAMESPACES.mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "none", str(_NAMESPACES))
        run("ip", "link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self.nodes = {name: self._add_node(number, name) for number, name in enumerate(names, 1)}

    def _add_node(self, number: int, name: str) -> Node:
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
        """Drop packets from `source` to `target`, each with this probability. Return the rule."""
        chance = [] if probability >= 1 else ["-m", "statistic", "--mode", "random", "--probability", str(probability)]
        return Rule([*self._between(source, target), *chance, "-j DROP"], "FORWARD")

    def redirect(self, source: str, target: str, port: int, to: int) -> Rule:
        """Redirect new connections from `source` to a port of `target` to the router's port `to`. Return the rule."""
        where = f"{self.nodes[source].router}:{to}"
        words = [*self._between(source, target), "-p", "tcp", "--dport", str(port), f"-j DNAT --to-destination {where}"]
        return Rule(words, "PREROUTING", "nat")

    def connections(self, source: str, target: str, port: int, *options: str) -> frozenset[str]:
        """Return the established connections that `source` made to a port of `target`, by their source address.

        :param options: of `ss`.
        """
        address = self.nodes[target].address
        words = ["ss", *options, "-H", "-n", "-t", "state", "established", "dst", address, "dport", "=", str(port)]
        lines = run(*self.nodes[source].placement.command_prefix, *words).splitlines()
        return frozenset(line.split()[2] for line in lines)

    def break_connections(self, source: str, target: str, port: int) -> frozenset[str]:
        """Abort the established connections that `source` made to a port of `target`, and return their source
        addresses."""
        return self.connections(source, target, port, "-K")

    def try_connection(self, source: str, target: str, port: int) -> str:
        """Return the outcome of a new connection from `source`: "refused", "accepted" or "silence"."""
        node = self.nodes[target]
        words = [sys.executable, "-S", "-c", _DIAL, node.address, str(port)]
        return run(*self.nodes[source].placement.command_prefix, *words).strip()

    def _between(self, source: str, target: str) -> list[str]:
        return ["-s", self.nodes[source].address, "-d", self.nodes[target].address]


def mount_disk(folder: Path, megabytes: int) -> None:
    """Create the folder and mount a file system of this size (MiB, in memory) there, which a fault can fill without
    harm to the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder))
