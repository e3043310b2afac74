"""Gives pods the volumes that they claim: a folder of this machine for each, as soon as it is known which pod wants it.

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
from migratory_node.places import NODE, Places

CLASS = "folder"
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "migratory.dev/folder",
    "volumeBindingMode": "WaitForFirstConsumer",
    "reclaimPolicy": "Delete",
}
_EVERY = 1.0


def serve(places: Places) -> None:
    """For ever."""
    tool = kubectl()

    def ask(*arguments: str, given: object = None) -> Any:
        answer = subprocess.run(
            [tool, f"--kubeconfig={places.kubeconfig}", *arguments],
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
        claims = ask("get", "pvc", "--all-namespaces", "-o", "json")
        for claim in (claims or {"items": []})["items"]:
            chosen = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
            if (
                chosen == NODE
                and claim["status"].get("phase") == "Pending"
                and claim["spec"].get("storageClassName") == CLASS
            ):
                ask("apply", "--server-side", "-f", "-", given=_volume(claim, places.volumes))
        volumes = ask("get", "pv", "-o", "json")
        for volume in (volumes or {"items": []})["items"]:
            if (
                volume["status"].get("phase") in ("Released", "Failed")
                and volume["spec"].get("storageClassName") == CLASS
            ):
                ask("delete", "pv", volume["metadata"]["name"], "--wait=false")
                shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
        time.sleep(_EVERY)


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
