"""The node where it is this machine's own (`migratory_node`): its kubelet and containerd, its containers, its firewall.

Processes are ended by their ids, which that package keeps; rules carry a comment with the namespace, and no others are
taken out. Root is needed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from migratory_node.places import NODE, PODS, Places
from migratory_node.processes import Processes, run, succeeds

DAEMONS = ("kubelet", "containerd")
"""In this order they end; they start in the other one."""
START_SECONDS = 60.0


class MachineNode:
    """`MachineNode.of(kubeconfig, namespace)` is None when the cluster is another's."""

    name = NODE

    def __init__(self, places: Places, namespace: str) -> None:
        self._places = places
        self._processes = Processes(places.state)
        self._comment = f"migratory-chaos {namespace}"
        self._commands: dict[str, list[str]] = {}

    @classmethod
    def of(cls, kubeconfig: Path, namespace: str) -> MachineNode | None:
        places = Places.usual()
        ours = places.kubeconfig.exists() and places.kubeconfig.samefile(kubeconfig)
        if not ours or os.geteuid() != 0 or not Processes(places.state).running("kubelet"):
            return None
        return cls(places, namespace)

    # ---- kubelet and containerd ------------------------------------------------------------------------------------

    def process_ids(self) -> dict[str, int]:
        """Of those that run."""
        found = {}
        for name in DAEMONS:
            if self._processes.running(name):
                found[name] = int((self._places.state / f"{name}.pid").read_text().split()[0])
        return found

    def stop_daemons(self) -> None:
        for name, pid in self.process_ids().items():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
            # By the same file, even if it was replaced on disk or is found by the first word's path only.
            self._commands[name] = words
        for name in DAEMONS:
            self._processes.stop(name)

    def start_daemons(self) -> None:
        """As they were started before; does nothing for those that run."""
        for name in reversed(DAEMONS):
            if name in self._commands:
                self._processes.start(name, self._commands[name])
            if name == "containerd":
                self._processes.wait("containerd", lambda: self._ctr("version"), START_SECONDS, name)

    # ---- containers -------------------------------------------------------------------------------------------------

    def kill_container(self, identity: str) -> None:
        """SIGKILL to its first process. :param identity: containerd://ID, as a pod's status has it."""
        container = identity.removeprefix("containerd://")
        run([*self._tool(), "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container])

    def _ctr(self, *arguments: str) -> bool:
        return succeeds([*self._tool(), *arguments])

    def _tool(self) -> list[str]:
        return ["ctr", "-a", str(self._places.containerd_socket)]

    # ---- packets ----------------------------------------------------------------------------------------------------

    def cut(self, address: str) -> None:
        """Drops what is forwarded between the pod of this address and all other pods, both ways. What comes from the
        node itself (probes, DNS, the API server) goes on."""
        for rule in self._rules(address):
            run(["iptables", "-w", "-I", "FORWARD", "1", *rule])

    def dropped(self, address: str) -> tuple[int, int]:
        """Packets (from the pod, to the pod) that met the rules."""
        listed = run(["iptables", "-w", "-nvxL", "FORWARD"])
        return packets(listed, self._comment, address)

    def heal(self) -> None:
        """Takes out all rules of this namespace's runs, also of one that was killed."""
        for line in run(["iptables", "-w", "-S", "FORWARD"]).splitlines():
            if f'--comment "{self._comment}"' in line:
                words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
                run(["iptables", "-w", "-D", *words[1:]])

    def _rules(self, address: str) -> list[list[str]]:
        tail = ["-m", "comment", "--comment", self._comment, "-j", "DROP"]
        return [["-s", address, "-d", PODS, *tail], ["-s", PODS, "-d", address, *tail]]


def packets(listed: str, comment: str, address: str) -> tuple[int, int]:
    """From `iptables -nvxL`: packets of the rules with that comment that name the address as source, as destination."""
    out = back = 0
    for line in listed.splitlines():
        words = line.split()
        if f"/* {comment} */" in line and "DROP" in words:
            count, source, destination = int(words[0]), words[words.index("--") + 3], words[words.index("--") + 4]
            out += count if source == address else 0
            back += count if destination == address else 0
    return out, back
