"""The node as a whole: up, down, images in."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from migratory_node import components, network, volumes
from migratory_node.binaries import check_programs, kubectl, node_binary, pause_binary, pause_image
from migratory_node.places import GATEWAY, NODE, NodeError, Places
from migratory_node.processes import Processes, run, succeeds, unmount_below

# In this order they end.
_PARTS = ("volumes", "coredns", "proxy", "kubelet", "scheduler", "controllers", "apiserver", "etcd", "containerd")
_RUN = Path("/run/migratory-node")


class Node:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._processes = Processes(places.state)

    @property
    def running(self) -> bool:
        return self._processes.running("kubelet")

    def up(self) -> Path:
        """The kubeconfig of a Ready node; at once when it runs already."""
        check_programs()
        places, processes = self._places, self._processes
        binary = str(node_binary(places))
        pause = pause_binary(places)
        places.state.mkdir(parents=True, exist_ok=True)

        def part(name: str, command: Callable[[Places], list[str]]) -> None:
            processes.start(name, [binary, *command(places)])

        processes.start("containerd", components.containerd(places))
        processes.wait("containerd", lambda: self._ctr("version"), 30, "containerd")
        self.take(pause_image(pause))
        network.up(places)
        part("etcd", components.etcd)
        part("apiserver", components.api_server)
        certificate = places.state / "certs" / "apiserver.crt"
        processes.wait("certificate of the API server", certificate.exists, 120, "apiserver")
        components.kubeconfig(places)
        processes.wait("ready API server", lambda: self._kubectl("get", "--raw", "/readyz"), 120, "apiserver")
        part("controllers", components.controllers)
        part("scheduler", components.scheduler)
        part("kubelet", components.kubelet)
        part("proxy", components.proxy)
        part("coredns", components.dns)
        ready = ("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=1s")
        processes.wait("Ready node", lambda: self._kubectl(*ready), 120, "kubelet")
        account = ("get", "serviceaccount", "default")
        processes.wait("default service account", lambda: self._kubectl(*account), 60, "controllers")
        processes.wait("cluster DNS", lambda: _listens(GATEWAY, 8181), 60, "coredns")
        self._apply(volumes.STORAGE_CLASS)
        processes.start(
            "volumes",
            [sys.executable, "-m", "migratory_node", "volumes"],
            {"PYTHONPATH": str(Path(__file__).parents[1]), "MIGRATORY_CLUSTER_HOME": str(places.cache)},
        )
        return places.kubeconfig

    def load(self, images: list[str], engine: str) -> None:
        """From a Docker engine into the node."""
        saved = subprocess.Popen(["docker", "--host", engine, "save", *images], stdout=subprocess.PIPE)
        command = ["ctr", "-a", str(self._places.containerd_socket), "-n", "k8s.io", "images", "import", "-"]
        imported = subprocess.run(command, stdin=saved.stdout, capture_output=True, text=True, check=False)
        if saved.wait() or imported.returncode:
            raise NodeError(f"images were not loaded: {imported.stderr.strip()}")

    def take(self, archive: bytes) -> None:
        """Images as `docker save` writes them."""
        command = ["ctr", "-a", str(self._places.containerd_socket), "-n", "k8s.io", "images", "import", "-"]
        result = subprocess.run(command, input=archive, capture_output=True, check=False)
        if result.returncode:
            raise NodeError(f"images were not taken: {result.stderr.decode(errors='replace')}")

    def down(self) -> None:
        """All of it, with its data. Binaries and images of the engine stay."""
        check_programs()
        processes, state = self._processes, self._places.state
        # first the one that would start them anew, then the containers, while there is still who knows them
        processes.stop("kubelet")
        if processes.running("containerd"):
            for container in self._containers():
                self._ctr("-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container)
        for name in _PARTS:
            processes.stop(name)
        for root in (state, _RUN):
            unmount_below(root)
        for binary in self._places.binaries.glob("kubenode-*"):
            # the rules of Services outlive the proxy that made them
            succeeds([str(binary), "kube-proxy", "--cleanup"])
        network.down()
        for root in (state, _RUN):
            shutil.rmtree(root, ignore_errors=True)

    def _containers(self) -> list[str]:
        with contextlib.suppress(NodeError):
            address = str(self._places.containerd_socket)
            return run(["ctr", "-a", address, "-n", "k8s.io", "tasks", "ls", "-q"]).split()
        return []

    def _ctr(self, *arguments: str) -> bool:
        return succeeds(["ctr", "-a", str(self._places.containerd_socket), *arguments])

    def _kubectl(self, *arguments: str) -> bool:
        return succeeds([kubectl(), f"--kubeconfig={self._places.kubeconfig}", "--request-timeout=5s", *arguments])

    def _apply(self, thing: object) -> None:
        command = [kubectl(), f"--kubeconfig={self._places.kubeconfig}", "apply", "--server-side", "-f", "-"]
        run(command, input=json.dumps(thing))


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
