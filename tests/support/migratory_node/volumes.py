"""The provisioner of volumes: a folder of this machine for each claim, once its pod is scheduled.

Runs as a process of the node (`python -m migratory_node volumes`).
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.paths import NODE, NodePaths

CLASS = "folder"
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "migratory.dev/folder",
    "volumeBindingMode": "WaitForFirstConsumer",
    "reclaimPolicy": "Delete",
    "allowVolumeExpansion": True,
}
_POLL_SECONDS = 1.0


def serve(paths: NodePaths) -> None:
    """Create volumes for the claims of scheduled pods, and delete released ones, until the process ends."""
    kube = Kubectl(paths.kubeconfig)
    while True:
        try:
            claims = kube.list_all("pvc")
            for claim in claims:
                node = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
                is_ours = node == NODE and claim["spec"].get("storageClassName") == CLASS
                if is_ours and claim["status"].get("phase") == "Pending":
                    kube("apply", "--server-side", "-f", "-", given=json.dumps(_volume(claim, paths.volumes)))
            volumes = kube.list("pv")
            _grow(kube, claims, volumes)
            for volume in volumes:
                is_ours = volume["spec"].get("storageClassName") == CLASS
                if is_ours and volume["status"].get("phase") in ("Released", "Failed"):
                    kube("delete", "pv", volume["metadata"]["name"], "--wait=false")
                    shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
        except KubectlError as error:
            print(error, flush=True)
        time.sleep(_POLL_SECONDS)


def _grow(kube: Kubectl, claims: list[Object], volumes: list[Object]) -> None:
    """Give volumes the size that their claims request now. A folder has no size of its own."""
    by_name = {claim["spec"].get("volumeName"): claim for claim in claims if claim["status"].get("phase") == "Bound"}
    for volume in volumes:
        claim = by_name.get(volume["metadata"]["name"])
        if claim is None or volume["spec"].get("storageClassName") != CLASS:
            continue
        capacity = {"storage": claim["spec"]["resources"]["requests"]["storage"]}
        if claim["status"]["capacity"] == capacity:
            continue
        patch = json.dumps({"spec": {"capacity": capacity}})
        kube("patch", "pv", volume["metadata"]["name"], "--type=merge", "--patch", patch)
        metadata = claim["metadata"]
        patch = json.dumps({"status": {"capacity": capacity}})
        where = f"--namespace={metadata['namespace']}"
        kube("patch", "pvc", metadata["name"], where, "--subresource=status", "--type=merge", "--patch", patch)


def _volume(claim: Object, folder: Path) -> Object:
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
