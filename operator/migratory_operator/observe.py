"""What there is of one cluster at one moment: the resource, its objects and pods, what its brokers say. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
    waiting_groups: int
    incarnation: int
    member: bool
    """Synced, on an activated list, in every topic group."""
    fenced: bool
    draining: bool
    links: Mapping[str, int]
    """Brokers that it is connected to, and in which of their lives."""
    lists: Mapping[int, frozenset[str]]
    """The groups that it coordinates now, and the brokers on the list of each."""
    copies: int
    """The most that any of these groups has; 0 without one."""
    staying: frozenset[str]
    """The brokers that it sends its clients to when it leaves, itself among them; empty where it does not say."""

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self.lists)

    @property
    def listed(self) -> frozenset[str]:
        """Brokers on any of the lists."""
        return frozenset[str]().union(*self.lists.values())

    @classmethod
    def read(cls, page: Mapping[str, Any]) -> BrokerPage:
        """:raises KeyError, TypeError, ValueError: not such a page."""
        logic, edge = page["logic"], page["edge"]
        own = [group for group in logic["groups"] if group["role"] == "coordinator"]
        return cls(
            ready=bool(page["ready"]),
            zookeeper_connected=bool(page["zookeeper_connected"]),
            clients=int(edge["clients"]) if edge is not None else 0,
            waiting_groups=int(logic["waiting_groups"]),
            incarnation=int(logic["incarnation"]),
            member=bool(logic["member"]),
            fenced=bool(logic["fenced"]),
            draining=bool(logic["draining"]),
            links={str(name): int(life) for name, life in logic["peers"].items()},
            lists={int(group["group"]): frozenset(str(name) for name in group["members"]) for group in own},
            copies=max((int(group["copies"]) for group in own), default=0),
            staying=frozenset(str(name) for name in page.get("staying", ())),
        )


@dataclass(frozen=True)
class Observed:
    """`taken`: objects that have a name that the operator needs, and belong to somebody else. `modes`: of ZooKeeper's
    members that were asked and answered, leader or follower."""

    resource: Object
    now: datetime
    objects: Mapping[Key, Object] = field(default_factory=dict)
    taken: frozenset[Key] = frozenset()
    unknown: frozenset[str] = frozenset()
    """Kinds that this Kubernetes has not."""
    untaken: Mapping[Key, str] = field(default_factory=dict)
    """What the API server did not take just now, and why, as far as it will not do so by itself; else ""."""
    pods: tuple[Object, ...] = ()
    pages: Mapping[str, BrokerPage] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> Owner:
        return Owner.of(self.resource)

    @property
    def status(self) -> Object:
        """As it was written last."""
        found: Object = self.resource.get("status") or {}
        return found

    @property
    def refused(self) -> dict[Key, str]:
        """What the API server will not take as it is."""
        return {key: why for key, why in self.untaken.items() if why}

    def pods_of(self, component: str) -> list[Object]:
        wanted = names.selector(self.owner.name, component).items()
        return [pod for pod in self.pods if wanted <= pod["metadata"].get("labels", {}).items()]

    def services(self) -> dict[str, Object]:
        return {name: found for (kind, name), found in self.objects.items() if kind == "Service"}

    def named(self, component: str) -> dict[str, Object]:
        return {pod["metadata"]["name"]: pod for pod in self.pods_of(component)}


def key_of(thing: Object) -> Key:
    return thing["kind"], thing["metadata"]["name"]


def leaves(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_ready(pod: Object) -> bool:
    """Ready, and not on its way out."""
    return not leaves(pod) and readiness(pod).get("status") == "True"


def readiness(pod: Object) -> Object:
    """Its condition Ready; empty when it has none."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})


SHORT_LIFE = timedelta(minutes=10)
"""A container that has lived longer is started again at once when it ends, and is in no loop."""
_SAME = {"ErrImagePull": "ImagePullBackOff", "InvalidImageName": "ImagePullBackOff"}
"""The kubelet's words for one and the same, as it goes from one to the other and back."""
_ON_ITS_WAY = (None, "ContainerCreating", "PodInitializing")


def trouble(pod: Object) -> tuple[str, str] | None:
    """(reason, message) of a pod that will not become ready without somebody's doing; None when none is known. The
    reason stays the same while the trouble does: each change of it is told."""
    status = pod.get("status", {})
    name = pod["metadata"]["name"]
    for condition in status.get("conditions") or ():
        # Other reasons are the scheduler's own hiccups, which it gets over by itself.
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "Unschedulable", f"{name}: {condition.get('message', 'not scheduled')}"
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = container.get("state", {}).get("waiting") or {}
        ended = container.get("lastState", {}).get("terminated", {})
        reason, message = waiting.get("reason"), waiting.get("message") or waiting.get("reason")
        if reason in _ON_ITS_WAY:
            if not _loops(container):
                continue
            reason, message = "CrashLoopBackOff", "it ends again and again"
        if ended:
            message = f"{message}; it ended with exit code {ended.get('exitCode')}"
        return _SAME.get(reason, reason), f"{name}: {message}"
    return None


def _loops(container: Object) -> bool:
    """Whether it runs between two of its ends, as far as its last life tells."""
    last = container.get("lastState", {}).get("terminated", {})
    if container.get("ready") or int(container.get("restartCount", 0)) < 2:
        return False
    if not (last.get("startedAt") and last.get("finishedAt")):
        return False
    return datetime.fromisoformat(last["finishedAt"]) - datetime.fromisoformat(last["startedAt"]) < SHORT_LIFE
