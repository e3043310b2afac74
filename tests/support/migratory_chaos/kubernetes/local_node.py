"""Access to a cluster's node that is this machine itself (`migratory_node`): its kubelet, containerd, containers and
firewall.

Processes are ended by the ids that `migratory_node` recorded. Firewall rules carry a comment with the namespace, and no
other rules are removed. Needs root.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from migratory_node.paths import NODE, PODS, NodePaths
from migratory_node.processes import Processes, run, succeeds

from migratory_chaos.processes.network import Rule

DAEMONS = ("kubelet", "containerd")
"""The daemons of the node, in the order in which they are stopped. They start in the reverse order."""
START_SECONDS = 60.0


class LocalNode:
    """The node of `NodePaths.default()`, as runs in one namespace use it."""

    name = NODE

    def __init__(self, paths: NodePaths, namespace: str) -> None:
        self._paths = paths
        self._processes = Processes(paths.state)
        self._comment = f"migratory-chaos {namespace}"
        self._commands: dict[str, list[str]] = {}

    @classmethod
    def find(cls, kubeconfig: Path, namespace: str) -> LocalNode | None:
        """Return the node, or None when `kubeconfig` is that of another cluster, this process is not root, or the
        kubelet does not run."""
        paths = NodePaths.default()
        local = paths.kubeconfig.exists() and paths.kubeconfig.samefile(kubeconfig)
        if not local or os.geteuid() != 0 or not Processes(paths.state).running("kubelet"):
            return None
        return cls(paths, namespace)

    def process_ids(self) -> dict[str, int]:
        """Return the process ids of the daemons that run, by name."""
        running = [name for name in DAEMONS if self._processes.running(name)]
        return {name: int((self._paths.state / f"{name}.pid").read_text().split()[0]) for name in running}

    def stop_daemons(self) -> None:
        for name, pid in self.process_ids().items():
            self._commands[name] = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        for name in DAEMONS:
            self._processes.stop(name)

    def start_daemons(self) -> None:
        """Start the daemons that `stop_daemons` stopped, with the same commands, and wait until containerd answers."""
        for name in reversed(DAEMONS):
            if name in self._commands:
                self._processes.start(name, self._commands[name])
            if name == "containerd":
                self._processes.wait(name, lambda: succeeds([*self._ctr(), "version"]), START_SECONDS, name)

    def kill_container(self, identity: str) -> None:
        """Send SIGKILL to the first process of a container. :param identity: containerd://ID, as in a pod's status."""
        container = identity.removeprefix("containerd://")
        run([*self._ctr(), "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container])

    def _ctr(self) -> list[str]:
        return ["ctr", "-a", str(self._paths.containerd_socket)]

    def cut(self, address: str) -> list[Rule]:
        """Drop the packets that are forwarded between a pod and all other pods, both ways, and return the two
        firewall rules. Packets of the node itself (probes, DNS, the API server) are not forwarded, and pass."""
        return [
            Rule(["-s", source, "-d", target, "-j DROP"], "FORWARD", comment=f"{self._comment} {way}")
            for way, source, target in (("from", address, PODS), ("to", PODS, address))
        ]

    def heal(self) -> None:
        """Remove the firewall rules of all runs in this namespace, including those of a run that was killed."""
        for words in self.rules():
            run(["iptables", "-w", "-D", *words[1:]])

    def rules(self) -> list[list[str]]:
        """Return the firewall rules of all runs in this namespace, each as the words of the command that made it."""
        listed = [shlex.split(line) for line in run(["iptables", "-w", "-S", "FORWARD"]).splitlines()]
        return [words for words in listed if any(word.startswith(f"{self._comment} ") for word in words)]
