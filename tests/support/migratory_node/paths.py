"""Paths and addresses of the node, of which a machine has one, below a folder of the user's cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "tests" / "cluster" / "node"
MONITORING_SOURCES = ROOT / "tests" / "cluster" / "prometheus"

BRIDGE = "migratory0"
GATEWAY = "10.244.0.1"
PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/16"
API_PORT = 6443
ETCD_PORT = 12379
NODE = "node-1"
DOMAIN = "cluster.local"


class NodeError(Exception):
    """The node can't be started or used. The text says what to do."""


@dataclass(frozen=True)
class NodePaths:
    """The paths of a node. `cache` outlives it (binaries, the images' base), `state` does not."""

    cache: Path

    @classmethod
    def default(cls) -> NodePaths:
        home = os.environ.get("MIGRATORY_CLUSTER_HOME")
        return cls(Path(home) if home else Path.home() / ".cache" / "migratory-cluster")

    @property
    def state(self) -> Path:
        return self.cache / "node"

    @property
    def binaries(self) -> Path:
        return self.cache / "bin"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"
