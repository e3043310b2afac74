"""What `migratory up` says besides: that its file changed, and why clients' ports are not the usual ones."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from migratory_local import cluster as module
from migratory_local.cluster import LocalCluster
from migratory_local.up import Source
from migratory_resources import load_cluster

CLUSTER = "apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: quotes}\n"


def test_a_change_of_the_clusters_file_is_told_once_and_without_effect(tmp_path: Path) -> None:
    path, said = tmp_path / "cluster.yaml", list[str]()
    path.write_text(CLUSTER)
    source = Source(path, said.append)
    source.look()
    assert said == []
    path.write_text(CLUSTER + "spec: {brokers: {replicas: 4}}\n")
    source.look()
    source.look()
    assert len(said) == 1
    assert f"{path} has changed; changes take effect at the next start" in said[0]
    other = tmp_path / "other"
    other.write_text(CLUSTER)
    path.unlink()
    source.look()
    assert len(said) == 1, "an editor takes the old file away first"
    other.rename(path)
    source.look()
    assert len(said) == 2


def test_a_file_that_was_only_touched_has_not_changed(tmp_path: Path) -> None:
    path, said = tmp_path / "cluster.yaml", list[str]()
    path.write_text(CLUSTER)
    source = Source(path, said.append)
    os.utime(path, ns=(1, 1))
    source.look()
    assert said == []


def test_other_ports_than_the_usual_ones_have_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    cluster = LocalCluster(load_cluster(CLUSTER).cluster, tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "FIRST_CLIENT_PORT", port)
        chosen = cluster._choose_ports(said.append)
    assert port not in [ports.clients for ports in chosen]
    assert len(said) == 1
    assert f"not the usual ones from {port} on: {port}" in said[0]
    assert "--ports BASE" in said[0]
