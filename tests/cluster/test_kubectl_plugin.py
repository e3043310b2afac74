"""`kubectl migratory` on a real cluster: its state and rates under load, a drained broker, a restart, the logs of the
takeovers that these cause. Reports by it: the same SLAReport as in test_reports.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from migratory_node.kubectl import Kubectl
from migratory_node.load import CLIENTS, assert_nothing_lost, load

pytestmark = pytest.mark.timeout(900)
BROKERS = "app.kubernetes.io/component=broker"
PLUGIN = '#!/bin/sh\nexec "{python}" -c "from migratory_cli.commands.kubernetes import main; main()" "$@"\n'


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a PATH on which kubectl finds the plugin."""
    folder = tmp_path_factory.mktemp("plugin")
    program = folder / "kubectl-migratory"
    program.write_text(PLUGIN.format(python=sys.executable))
    program.chmod(0o755)
    return f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"


def run(kube: Kubectl, path: str, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = [f"--kubeconfig={kube.kubeconfig}", f"--namespace={kube.namespace}"]
    return subprocess.run(
        ["kubectl", "migratory", command, *arguments, *options],
        env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def uids(kube: Kubectl) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", BROKERS)}


def test_state_rates_drain_restart_and_takeovers_of_a_cluster_under_load(standing: Kubectl, path: str) -> None:
    shown = run(standing, path, "status")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert all(name in shown.stdout for name in uids(standing))
    load(standing, "plugin")
    measured = run(standing, path, "top", "quotes", "--json")
    assert measured.returncode == 0, measured.stderr
    rates = json.loads(measured.stdout)
    assert sum(row["clients"] for row in rates.values()) == CLIENTS
    assert sum(row["publications"] for row in rates.values()) > 0
    assert sum(row["deliveries"] for row in rates.values()) > 0

    before = uids(standing)
    drained = run(standing, path, "drain", "quotes-broker-1")
    assert drained.returncode == 0, drained.stdout + drained.stderr
    changed = {name for name, uid in uids(standing).items() if before[name] != uid}
    assert changed == {"quotes-broker-1"}
    standing.wait_ready("quotes")
    before = uids(standing)
    restarted = run(standing, path, "restart")
    assert restarted.returncode == 0, restarted.stdout + restarted.stderr
    assert not set(before.values()) & set(uids(standing).values())
    assert_nothing_lost(standing, "plugin", cease=True)

    found = run(standing, path, "takeovers", "--json")
    assert found.returncode == 0, found.stderr
    entries = [json.loads(line) for line in found.stdout.splitlines()]
    assert {"epoch_activated", "started"} <= {entry["event"] for entry in entries}
    assert [entry["time"] for entry in entries] == sorted(entry["time"] for entry in entries)


def test_what_does_not_exist_ends_with_2(standing: Kubectl, path: str) -> None:
    for command, *arguments in (("status", "absent"), ("drain", "absent"), ("restart", "absent")):
        result = run(standing, path, command, *arguments)
        assert (result.returncode, "NotFound" in result.stderr) == (2, True), result.stderr
    result = run(standing, path, "drain", "quotes-zookeeper-0")
    assert (result.returncode, "is not a broker" in result.stderr) == (2, True), result.stderr
