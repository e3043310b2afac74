"""Parts that pods have in common: security contexts without privileges, the template and containers of broker and
ZooKeeper pods, environment, ports, the hash of a configuration; pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from migratory_resources.cluster.kubernetes import PodResources, ResourceAmounts
from migratory_resources.quantities import format_size, parse_amount

from migratory_operator.names import CONFIG_HASH, Object, ResourceOwner, labels, selector
from migratory_operator.settings import OperatorSettings

USER = 10001
"""User id of the images. A number, so that Kubernetes can verify that it is not root."""


def pod_security_context() -> Object:
    """Return the security context of a pod: it runs as the images' user, whose group owns the volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security_context() -> Object:
    """Return the security context of a container: no privileges, and a root file system that cannot be written."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def pod_template(
    owner: ResourceOwner,
    component: str,
    configuration: dict[str, str],
    settings: OperatorSettings,
    grace: int,
    **spec: Any,
) -> Object:
    """Return the operator's part of the pod template of brokers or ZooKeeper members (`component`). The caller adds the
    user's part with `merge_template`.

    :param configuration: what the pods read at their start, as texts or hashes by name. The template has a hash of it
        as an annotation, so that a change makes a new revision, and the operator's rollout replaces the pods.
    :param grace: seconds from SIGTERM to SIGKILL.
    :param spec: more fields of the pod's spec, such as containers and volumes.
    """
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
            "securityContext": pod_security_context(),
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


def container(
    name: str, image: str, resources: PodResources, memory_limit: int, settings: OperatorSettings, **fields: Any
) -> Object:
    """Return a container of a broker or ZooKeeper pod, with the operator's pull policy and security context.

    :param memory_limit: the memory limit in bytes if `resources` gives none, so that a pod can't take its node's
        memory. A higher memory request takes its place.
    :param fields: more fields of the container, such as `command` and `ports`.
    """
    requests = _amounts(resources.requests)
    memory = max(requests.get("memory", "0"), format_size(memory_limit), key=parse_amount)
    amounts = {"requests": requests, "limits": {"memory": memory, **_amounts(resources.limits)}}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": settings.pull_policy,
        "resources": {side: given for side, given in amounts.items() if given},
        "securityContext": container_security_context(),
        **fields,
    }


ON_DELETE: Object = {"type": "OnDelete", "rollingUpdate": None}
"""Update strategy of both StatefulSets: the operator's rollout replaces the pods. The null removes a default of the API
server or an older operator, which the API server rejects beside OnDelete."""


def from_field(name: str, path: str) -> Object:
    """Return an environment variable whose value is the field of the pod at `path`."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def port(name: str, number: int) -> Object:
    """Return a TCP port of a container, with this name and number."""
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def service_port(name: str, number: int) -> Object:
    """Return a port of a Service that leads to the same port number of the pod."""
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}


def digest(configuration: dict[str, str]) -> str:
    """Return a hash of a configuration, given as texts by name: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:16]


def _amounts(amounts: ResourceAmounts) -> dict[str, str]:
    return {name: value for name, value in (("cpu", amounts.cpu), ("memory", amounts.memory)) if value is not None}
