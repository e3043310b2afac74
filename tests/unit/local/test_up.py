"""`migratory up`: the hosts that brokers serve, the warning about a changed cluster file, and the message about ports
other than the default."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from migratory_local.cluster import local_cluster
from migratory_local.cluster.brokers import write_config
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_local.cluster.up import ClusterFileWatcher
from migratory_protocol.origins import OriginPolicy
from migratory_resources import load_cluster

CLUSTER = "apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: quotes}\n"


def origins(text: str, folder: Path) -> Any:
    return json.loads(write_config(load_cluster(text).cluster, "127.0.0.1:1", folder).read_text())["origins"]


def test_brokers_on_one_machine_serve_loopback_hosts_unless_the_file_names_others(tmp_path: Path) -> None:
    assert origins(CLUSTER, tmp_path)["hosts"] == ["localhost", "127.0.0.1", "[::1]"]
    assert origins(CLUSTER + "spec: {security: {hosts: [lan]}}\n", tmp_path)["hosts"] == ["lan"]


def test_brokers_on_one_machine_allow_pages_of_loopback_hosts_unless_the_file_names_others(tmp_path: Path) -> None:
    default = origins(CLUSTER, tmp_path)
    policy = OriginPolicy(default["allowed"], default["hosts"])
    for origin in ("http://localhost:5173", "http://127.0.0.1:8080", "https://[::1]"):
        assert policy.check([origin], ["127.0.0.1:8800"]) is None
    for origin in ("http://evil.test", "http://localhost.evil.test:8080", "http://10.0.0.1:8080", "null"):
        assert policy.check([origin], ["127.0.0.1:8800"]) is not None
    named = CLUSTER + "spec: {security: {origins: ['https://a.example']}}\n"
    assert origins(named, tmp_path)["allowed"] == ["https://a.example"]


def test_changed_cluster_file_causes_one_warning(tmp_path: Path) -> None:
    path, messages = tmp_path / "cluster.yaml", list[str]()
    path.write_text(CLUSTER)
    watcher = ClusterFileWatcher(path, messages.append)
    watcher.check()
    assert messages == []
    path.write_text(CLUSTER + "spec: {brokers: {replicas: 4}}\n")
    watcher.check()
    watcher.check()
    assert len(messages) == 1
    assert f"{path} has changed; changes take effect at the next start" in messages[0]
    other = tmp_path / "other"
    other.write_text(CLUSTER)
    path.unlink()
    watcher.check()
    assert len(messages) == 1, "an editor may remove the old file first"
    other.rename(path)
    watcher.check()
    assert len(messages) == 2


def test_touched_cluster_file_causes_no_warning(tmp_path: Path) -> None:
    path, messages = tmp_path / "cluster.yaml", list[str]()
    path.write_text(CLUSTER)
    watcher = ClusterFileWatcher(path, messages.append)
    os.utime(path, ns=(1, 1))
    watcher.check()
    assert messages == []


def test_other_ports_than_the_default_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = list[str]()
    cluster = LocalCluster(load_cluster(CLUSTER).cluster, tmp_path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        monkeypatch.setattr(local_cluster, "FIRST_CLIENT_PORT", port)
        chosen = cluster._choose_ports(messages.append)
    assert port not in [ports.clients for ports in chosen]
    assert len(messages) == 1
    assert f"not the default ones from {port} on: {port}" in messages[0]
    assert "--ports BASE" in messages[0]
