"""The pods' network of the tests' Kubernetes: a bridge that exists before the first pod, as the API server and DNS
listen on its address.

When the network is taken down, the rules that the kubelet made are removed as well.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from migratory_node.paths import BRIDGE, GATEWAY, PODS, NodeError, NodePaths
from migratory_node.processes import run, succeeds


def up(paths: NodePaths) -> None:
    if not succeeds(["ip", "link", "show", BRIDGE]):
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "addr", "add", f"{GATEWAY}/{PODS.rpartition('/')[2]}", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    # A Docker engine drops other forwarded packets, and filters those that cross a bridge.
    for way in ("-i", "-o"):
        rule = ["FORWARD", way, BRIDGE, "-j", "ACCEPT"]
        if not succeeds(["iptables", "-C", *rule]):
            run(["iptables", "-I", *rule])
    plugins = [
        {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    folder = paths.state / "cni"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"cniVersion": "1.0.0", "name": "migratory", "plugins": plugins}, indent=2)
    (folder / "10-bridge.conflist").write_text(text)


def down() -> None:
    for way in ("-i", "-o"):
        succeeds(["iptables", "-D", "FORWARD", way, BRIDGE, "-j", "ACCEPT"])
    succeeds(["ip", "link", "del", BRIDGE])
    # host-local remembers addresses across restarts, and would run out of them
    succeeds(["rm", "-rf", "/var/lib/cni/networks/migratory"])
    # A kubelet leaves its chains behind. One of another Kubernetes recreates its own within a minute.
    for tool in ("iptables", "ip6tables"):
        for table in ("mangle", "filter", "nat"):
            with contextlib.suppress(NodeError):  # no IPv6 here, or no such table
                for command in kubelet_removal(run([f"{tool}-save", "-t", table])):
                    succeeds([tool, "-t", table, *command])


def kubelet_removal(saved: str) -> Iterator[list[str]]:
    """Yield the iptables commands that remove a kubelet's chains from a saved table, jumps to them first."""
    lines = saved.splitlines()
    chains = [line[1:].split()[0] for line in lines if line.startswith(":KUBE-")]
    for line in lines:
        words = shlex.split(line) if line.startswith("-A ") else []
        if words and words[1] not in chains and words[-2:-1] == ["-j"] and words[-1] in chains:
            yield ["-D", *words[1:]]
    for action in ("-F", "-X"):
        for chain in chains:
            yield [action, chain]
