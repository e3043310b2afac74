"""The volume claims of ZooKeeper's members: which of them have data, and their growth; pure.

A member whose volume was lost starts with an empty folder under its old id. If it voted, it could form a quorum with a
member that is behind, and the two would undo what the others have confirmed. So a claim is marked once its member has
served (`names.HAS_DATA`). While the claims of a majority of members have the mark, the ensemble is founded: a member
without data does not vote before it has copied them from the leader. With fewer there could be no quorum without new
members, so they may vote, and brokers restore what is lost (docs/decisions/0015-lost-volumes.md).

The mark goes with the claim, so that nothing else has to be remembered.
"""

from __future__ import annotations

from datetime import datetime

from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.quantities import format_size, parse_amount

from migratory_operator import names
from migratory_operator.names import HAS_DATA, Object
from migratory_operator.reconcile.health import member_names
from migratory_operator.reconcile.observed import ObservedCluster
from migratory_operator.reconcile.pods import is_ready

_RESIZE_ERRORS = ("ControllerResizeError", "NodeResizeError")
"""Conditions of a claim whose volume or file system could not be made larger."""


def is_founded(cluster: KubernetesCluster, observed: ObservedCluster) -> bool:
    """Return whether a majority of the voting members have a claim that is marked as one with data. Always False with
    an external ensemble, and with ephemeral storage, which has no claims."""
    ensemble = observed.ensemble
    replicas = len(ensemble.members) if ensemble is not None else cluster.spec.zookeeper.replicas
    marked = sum(HAS_DATA in claim["metadata"].get("annotations", {}) for claim, _ in _claims(cluster, observed))
    return marked > replicas // 2


def claim_changes(cluster: KubernetesCluster, observed: ObservedCluster) -> list[Object]:
    """Return the claims to apply: those that are smaller than `spec.zookeeper.storage.size`, and those whose member has
    served and that have no mark. Only bound claims can grow.

    An applied claim has everything that the operator sets in claims, because the API server removes what is left out.
    """
    wanted_size = cluster.spec.zookeeper.storage.size
    changes = []
    for claim, pod in _claims(cluster, observed):
        metadata, requested = claim["metadata"], _requested(claim)
        is_marked = HAS_DATA in metadata.get("annotations", {})
        is_served = pod is not None and is_ready(pod) and not _is_newer(claim, pod)
        grows = claim.get("status", {}).get("phase") == "Bound" and parse_amount(requested) < wanted_size
        if not grows and (is_marked or not is_served):
            continue
        change: Object = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            # With the uid, so that no claim is created in place of one that is gone.
            "metadata": {key: metadata[key] for key in ("name", "namespace", "uid")},
            "spec": {"resources": {"requests": {"storage": format_size(wanted_size) if grows else requested}}},
        }
        if is_marked or is_served:
            change["metadata"]["annotations"] = {HAS_DATA: "true"}
        changes.append(change)
    return changes


def growing_claims(cluster: KubernetesCluster, observed: ObservedCluster) -> str:
    """Return which volumes are smaller than their claims request, "" for none."""
    growing = [
        f"{claim['metadata']['name']} has {capacity} of {_requested(claim)}"
        for claim, _ in _claims(cluster, observed)
        if (capacity := claim.get("status", {}).get("capacity", {}).get("storage")) is not None
        and parse_amount(capacity) < parse_amount(_requested(claim))
    ]
    return ", ".join(growing)


def growth_error(cluster: KubernetesCluster, observed: ObservedCluster) -> str:
    """Return the first error with which the storage could not make a volume larger, "" for none."""
    for claim, _ in _claims(cluster, observed):
        for condition in claim.get("status", {}).get("conditions") or ():
            if condition["type"] in _RESIZE_ERRORS and condition["status"] == "True":
                return f"{claim['metadata']['name']}: {condition.get('message') or condition['type']}"
    return ""


def _claims(cluster: KubernetesCluster, observed: ObservedCluster) -> list[tuple[Object, Object | None]]:
    """Return the claims of the cluster's members that are not being deleted, in the order of their ordinals, each with
    its member's pod or None."""
    claims = {claim["metadata"]["name"]: claim for claim in observed.claims}
    pods = observed.pods_by_name(names.ZOOKEEPER)
    found = [(claims.get(f"data-{member}"), pods.get(member)) for member in member_names(cluster, observed)]
    return [(claim, pod) for claim, pod in found if claim and "deletionTimestamp" not in claim["metadata"]]


def _requested(claim: Object) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def _is_newer(claim: Object, pod: Object) -> bool:
    """Return whether the claim was created after the pod, which then uses an earlier one of the name."""
    created, started = (datetime.fromisoformat(item["metadata"]["creationTimestamp"]) for item in (claim, pod))
    return created > started
