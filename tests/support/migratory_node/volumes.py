"""The provisioner of volumes: a folder of this machine for each claim, once its pod is scheduled.

Runs as a process of the node (`python -m migratory_node volumes`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from migratory_node.binaries import kubectl
from migratory_node.paths import NODE, NodePaths

CLASS = "folder"
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "migratory.dev/folder",
    "volumeBindingMode": "WaitForFirstConsumer",
    "reclaimPolicy": "Delete",
}
_POLL_SECONDS = 1.0


def serve(paths: NodePaths) -> None:
    """Create and delete volumes until the process ends."""
    tool = kubectl()

    def call_kubectl(*arguments: str, given: object = None) -> Any:
        answer = subprocess.run(
            [tool, f"--kubeconfig={paths.kubeconfig}", *arguments],
            input=None if given is None else json.dumps(given),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if answer.returncode:
            print(answer.stderr, flush=True)
            return None
        return json.loads(answer.stdout) if "json" in arguments else answer.stdout

    while True:
        claims = call_kubectl("get", "pvc", "--all-namespaces", "-o", "json")
        for claim in (claims or {"items": []})["items"]:
            node = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
            if (
                node == NODE
                and claim["status"].get("phase") == "Pending"
                and claim["spec"].get("storageClassName") == CLASS
            ):
                call_kubectl("apply", "--server-side", "-f", "-", given=_volume(claim, paths.volumes))
        volumes = call_kubectl("get", "pv", "-o", "json")
        for volume in (volumes or {"items": []})["items"]:
            if (
                volume["status"].get("phase") in ("Released", "Failed")
                and volume["spec"].get("storageClassName") == CLASS
            ):
                call_kubectl("delete", "pv", volume["metadata"]["name"], "--wait=false")
                shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
        time.sleep(_POLL_SECONDS)


def _volume(claim: dict[str, Any], folder: Path) -> dict[str, Any]:
    name = f"pvc-{claim['metadata']['uid']}"
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
            "accessModes": claim["spec"]["accessModes"],
            "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim["metadata"]["namespace"],
                "name": claim["metadata"]["name"],
                "uid": claim["metadata"]["uid"],
            },
            "local": {"path": str(path)},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}
                    ]
                }
            },
        },
    }
