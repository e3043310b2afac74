"""What pods have in common: nobody's privileges; of brokers and ZooKeeper, resources and where they may run. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from migratory_resources.cluster.kubernetes import PodResources, ResourceAmounts

from migratory_operator.names import CONFIG_HASH, Object, Owner, labels, selector
from migratory_operator.settings import Settings

USER = 10001
"""The user of the images. As a number, so that Kubernetes can see that it is not root."""


def nobody() -> Object:
    """The security context of a pod: the images' user, who owns its volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def no_privileges() -> Object:
    """The security context of a container."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def pod_template(
    owner: Owner, component: str, configuration: dict[str, str], settings: Settings, grace: int, **spec: Any
) -> Object:
    """`spec` holds the containers and volumes. A change of `configuration` makes the pods new, one after the other
    (rollout.py)."""
    template: Object = {
        "metadata": {
            "labels": labels(owner.name, component),
            "annotations": {CONFIG_HASH: digest(configuration)},
        },
        "spec": {
            "serviceAccountName": owner.name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace,
            "securityContext": nobody(),
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": key,
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": selector(owner.name, component)},
                }
                for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
            ],
            **spec,
        },
    }
    if settings.pull_secrets:
        template["spec"]["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    return template


def container(name: str, image: str, resources: PodResources, settings: Settings, **fields: Any) -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": settings.pull_policy,
        "resources": {
            side: amounts
            for side, amounts in (
                ("requests", _amounts(resources.requests)),
                ("limits", _amounts(resources.limits)),
            )
            if amounts
        },
        "securityContext": no_privileges(),
        **fields,
    }


# Of both StatefulSets: which pod goes next, and when, is decided in rollout.py. The null takes away what the API server
# itself or an older operator left there, which is refused beside OnDelete.
ON_DELETE: Object = {"type": "OnDelete", "rollingUpdate": None}


def from_field(name: str, path: str) -> Object:
    """An environment variable that holds what Kubernetes says of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def port(name: str, number: int) -> Object:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def service_port(name: str, number: int) -> Object:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}


def digest(configuration: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:16]


def _amounts(amounts: ResourceAmounts) -> dict[str, str]:
    return {name: value for name, value in (("cpu", amounts.cpu), ("memory", amounts.memory)) if value is not None}
