"""The node of the tests' Kubernetes as a whole: it is started and stopped, and images are imported."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from migratory_node import components, network, volumes
from migratory_node.binaries import check_programs, node_binary, pause_binary, pause_image
from migratory_node.kubectl import Kubectl, KubectlError
from migratory_node.paths import GATEWAY, NODE, NodeError, NodePaths
from migratory_node.processes import Processes, run, succeeds, unmount_below

# The order in which they are stopped.
_COMPONENTS = ("volumes", "coredns", "proxy", "kubelet", "scheduler", "controllers", "apiserver", "etcd", "containerd")
_RUN = Path("/run/migratory-node")


class Node:
    """The Kubernetes node of this machine."""

    def __init__(self, paths: NodePaths) -> None:
        self._paths = paths
        self._processes = Processes(paths.state)

    @property
    def running(self) -> bool:
        return self._processes.running("kubelet")

    def up(self) -> Path:
        """Build the programs that are missing, and start the components that do not run. Return the kubeconfig once the
        node is Ready and its DNS answers."""
        check_programs()
        paths, processes = self._paths, self._processes
        binary = str(node_binary(paths))
        pause = pause_binary(paths)
        paths.state.mkdir(parents=True, exist_ok=True)

        def start(name: str, command: Callable[[NodePaths], list[str]]) -> None:
            processes.start(name, [binary, *command(paths)])

        processes.start("containerd", components.containerd(paths))
        processes.wait("containerd", lambda: self._ctr("version"), 30, "containerd")
        self.import_archive(pause_image(pause))
        network.up(paths)
        start("etcd", components.etcd)
        start("apiserver", components.api_server)
        certificate = paths.state / "certs" / "apiserver.crt"
        processes.wait("certificate of the API server", certificate.exists, 120, "apiserver")
        components.kubeconfig(paths)
        kube = Kubectl(paths.kubeconfig)

        def answers(*arguments: str) -> bool:
            with contextlib.suppress(KubectlError):
                kube(*arguments, "--request-timeout=5s")
                return True
            return False

        processes.wait("ready API server", lambda: answers("get", "--raw", "/readyz"), 120, "apiserver")
        start("controllers", components.controllers)
        start("scheduler", components.scheduler)
        start("kubelet", components.kubelet)
        start("proxy", components.proxy)
        start("coredns", components.dns)
        ready = ("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=1s")
        processes.wait("Ready node", lambda: answers(*ready), 120, "kubelet")
        account = ("get", "serviceaccount", "default")
        processes.wait("default service account", lambda: answers(*account), 60, "controllers")
        processes.wait("cluster DNS", lambda: _listens(GATEWAY, 8181), 60, "coredns")
        kube("apply", "--server-side", "-f", "-", given=json.dumps(volumes.STORAGE_CLASS))
        processes.start(
            "volumes",
            [sys.executable, "-m", "migratory_node", "volumes"],
            {"PYTHONPATH": str(Path(__file__).parents[1]), "MIGRATORY_CLUSTER_HOME": str(paths.cache)},
        )
        return paths.kubeconfig

    def import_from_engine(self, images: list[str], engine: str) -> None:
        """Copy images from a Docker engine into the node. Raise NodeError when the engine can't give them."""
        saved = subprocess.Popen(["docker", "--host", engine, "save", *images], stdout=subprocess.PIPE)
        self._import(stdin=saved.stdout)
        if saved.wait():
            raise NodeError("the Docker engine did not save the images; see the output above")

    def import_archive(self, archive: bytes) -> None:
        """Import images as `docker save` writes them."""
        self._import(input=archive)

    def _import(self, **source: Any) -> None:
        command = ["ctr", "-a", str(self._paths.containerd_socket), "-n", "k8s.io", "images", "import", "-"]
        result = subprocess.run(command, capture_output=True, check=False, **source)
        if result.returncode:
            raise NodeError(f"the images were not imported: {result.stderr.decode(errors='replace')}")

    def down(self) -> None:
        """Stop the node and delete its data. Binaries and the engine's images stay."""
        check_programs()
        processes, state = self._processes, self._paths.state
        # first the kubelet, which would restart containers; then these, while containerd knows them
        processes.stop("kubelet")
        if processes.running("containerd"):
            for container in self._containers():
                self._ctr("-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container)
        for name in _COMPONENTS:
            processes.stop(name)
        for root in (state, _RUN):
            unmount_below(root)
        for binary in self._paths.binaries.glob("kubenode-*"):
            # kube-proxy leaves its rules behind
            succeeds([str(binary), "kube-proxy", "--cleanup"])
        network.down()
        for root in (state, _RUN):
            shutil.rmtree(root, ignore_errors=True)

    def _containers(self) -> list[str]:
        with contextlib.suppress(NodeError):
            address = str(self._paths.containerd_socket)
            return run(["ctr", "-a", address, "-n", "k8s.io", "tasks", "ls", "-q"]).split()
        return []

    def _ctr(self, *arguments: str) -> bool:
        return succeeds(["ctr", "-a", str(self._paths.containerd_socket), *arguments])


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
