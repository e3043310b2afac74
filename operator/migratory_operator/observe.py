"""What there is of one cluster at one moment: the resource, its objects and pods, what its brokers say. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from migratory_operator import names
from migratory_operator.names import Object, Owner

Key = tuple[str, str]
"""An object within a namespace: kind and name."""


@dataclass(frozen=True)
class BrokerPage:
    """Of a broker's `/v1/status`, what the operator goes by."""

    ready: bool
    zookeeper_connected: bool
    clients: int
    coordinators: int
    waiting_groups: int
    owned: frozenset[int] = frozenset()
    """Groups that it coordinates now."""
    listed: frozenset[str] = frozenset()
    """Brokers on the lists of those groups."""

    @classmethod
    def read(cls, page: Mapping[str, Any]) -> BrokerPage:
        """:raises KeyError, TypeError: not such a page."""
        logic, edge = page["logic"], page["edge"]
        own = [group for group in logic["groups"] if group["role"] == "coordinator"]
        owned = frozenset(int(group["group"]) for group in own)
        return cls(
            ready=bool(page["ready"]),
            zookeeper_connected=bool(page["zookeeper_connected"]),
            clients=int(edge["clients"]) if edge is not None else 0,
            coordinators=len(owned),
            waiting_groups=int(logic["waiting_groups"]),
            owned=owned,
            listed=frozenset(str(name) for group in own for name in group["members"]),
        )


@dataclass(frozen=True)
class Observed:
    """`taken`: objects that have a name that the operator needs, and belong to somebody else."""

    resource: Object
    now: datetime
    objects: Mapping[Key, Object] = field(default_factory=dict)
    taken: frozenset[Key] = frozenset()
    pods: tuple[Object, ...] = ()
    pages: Mapping[str, BrokerPage] = field(default_factory=dict)

    @property
    def owner(self) -> Owner:
        return Owner.of(self.resource)

    def pods_of(self, component: str) -> list[Object]:
        wanted = names.selector(self.owner.name, component).items()
        return [pod for pod in self.pods if wanted <= pod["metadata"].get("labels", {}).items()]

    def services(self) -> dict[str, Object]:
        return {name: found for (kind, name), found in self.objects.items() if kind == "Service"}


def key_of(thing: Object) -> Key:
    return thing["kind"], thing["metadata"]["name"]


def is_ready(pod: Object) -> bool:
    """Ready, and not on its way out."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def trouble(pod: Object) -> tuple[str, str] | None:
    """(reason, message) of a pod that will not become ready without somebody's doing; None when none is known."""
    status = pod.get("status", {})
    name = pod["metadata"]["name"]
    for condition in status.get("conditions") or ():
        # Other reasons are the scheduler's own hiccups, which it gets over by itself.
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "Unschedulable", f"{name}: {condition.get('message', 'not scheduled')}"
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = container.get("state", {}).get("waiting")
        if waiting is None or waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
            continue
        ended = container.get("lastState", {}).get("terminated", {})
        message = waiting.get("message") or waiting["reason"]
        if ended:
            message += f"; it ended with exit code {ended.get('exitCode')}"
        return waiting["reason"], f"{name}: {message}"
    return None
