"""A short run of the chaos test in Kubernetes (docs/contributing/chaos.md): two faults in a cluster that it creates
and deletes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from migratory_node.kubectl import Kubectl

pytestmark = pytest.mark.timeout(600)
FAULTS = ("kill-forced", "zookeeper-leader")


def test_two_faults_are_proven_and_lose_no_publication(operator: Kubectl, tmp_path: Path) -> None:
    namespace = os.environ.get("MIGRATORY_TEST_NAMESPACE") or f"test-{uuid.uuid4().hex[:8]}"
    outside = os.environ.get("MIGRATORY_OPERATOR") == "outside"
    file = tmp_path / "result.json"
    command = [
        sys.executable, "-m", "migratory_chaos", "kubernetes", "run", f"--faults={','.join(FAULTS)}", "--seed=5",
        f"--json={file}", f"--kubeconfig={operator.kubeconfig}", f"--namespace={namespace}",
        f"--operator={'outside' if outside else 'auto'}", "--prometheus=none",
    ]  # fmt: skip
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    output = f"{ended.stdout}\n{ended.stderr}"
    assert ended.returncode == 0, output
    result = json.loads(file.read_text())
    assert (result["verdict"], result["success"], result["failures"]) == ("met", True, []), output
    assert sorted(fault["kind"] for fault in result["faults"]) == sorted(FAULTS)
    for fault in result["faults"]:
        assert len(fault["proofs"]) >= 2, fault
        assert all(proof["holds"] for proof in fault["proofs"]), fault
        assert fault["recovery_seconds"] is not None
    assert result["acknowledged"] == result["published"] > 0
    assert result["delivered"] == result["expected"] > 0
    assert result["recount"]["delivered"] == result["delivered"]
    assert result["report"]["verdict"] == "no report"
    assert Kubectl(operator.kubeconfig, namespace).get("namespace", namespace) is None, "the namespace must be deleted"
