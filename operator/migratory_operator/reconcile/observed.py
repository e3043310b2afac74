"""The observed state of one cluster at one moment: the resource, its objects and pods, the brokers' status pages.
`decide` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from migratory_operator import names
from migratory_operator.api.broker_status import BrokerStatusPage
from migratory_operator.api.ensemble import EnsembleConfig
from migratory_operator.names import Object, ResourceOwner

ObjectKey = tuple[str, str]
"""Kind and name of an object within a namespace."""


@dataclass(frozen=True)
class ObservedCluster:
    """The observed state of a cluster. The operator decides everything about the cluster from these plain data."""

    resource: Object
    now: datetime
    objects: Mapping[ObjectKey, Object] = field(default_factory=dict)
    """Objects that the cluster owns."""
    conflicting: frozenset[ObjectKey] = frozenset()
    """Objects of another owner that have the kind and name of an object that the cluster needs."""
    missing_kinds: frozenset[str] = frozenset()
    """Optional kinds that this API server does not know."""
    rejected: Mapping[ObjectKey, str] = field(default_factory=dict)
    """Objects whose change failed in this reconciliation, with the error; "" for an error that may not last."""
    ineffective: Mapping[ObjectKey, str] = field(default_factory=dict)
    """Objects that were applied in this reconciliation and still are not as wanted, with the path of a field that
    differs."""
    pods: tuple[Object, ...] = ()
    """Pods with the cluster's labels, of brokers and ZooKeeper members."""
    claims: tuple[Object, ...] = ()
    """Volume claims with the labels of the cluster's ZooKeeper members. The StatefulSet makes and owns them."""
    pages: Mapping[str, BrokerStatusPage] = field(default_factory=dict)
    """Status pages of the brokers that answered, by pod name."""
    ensembles: Mapping[str, EnsembleConfig] = field(default_factory=dict)
    """The ensemble's configuration as ZooKeeper members report it, by pod name; only of those that serve."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """Modes (leader, follower or standalone) of the ZooKeeper members of an old revision that answered, by pod name."""

    @property
    def owner(self) -> ResourceOwner:
        """This cluster, as the owner of the objects that are created for it."""
        return ResourceOwner.of(self.resource)

    @property
    def status(self) -> Object:
        """The cluster's status when it was observed; {} if none has been written yet."""
        status: Object = self.resource.get("status") or {}
        return status

    @property
    def permanently_rejected(self) -> dict[ObjectKey, str]:
        """The objects whose change failed and would fail again without an intervention, with the error."""
        return {key: error for key, error in self.rejected.items() if error}

    @property
    def listed_brokers(self) -> frozenset[str]:
        """The names of the brokers that are on at least one member list. Only the lists of topic groups that are
        coordinated by a broker which answered are known."""
        return frozenset[str]().union(*(page.listed for page in self.pages.values()))

    @property
    def ensemble(self) -> EnsembleConfig | None:
        """The newest configuration of the ZooKeeper ensemble that members report, if a majority of its voting members
        report it; else None."""
        newest = max(self.ensembles.values(), key=lambda config: config.version, default=None)
        if newest is None:
            return None
        name = names.zookeeper_name(self.owner.name)
        agreeing = sum(self.ensembles.get(f"{name}-{member - 1}") == newest for member in newest.members)
        return newest if agreeing > len(newest.members) // 2 else None

    def pods_of(self, component: str) -> list[Object]:
        """Return the pods of a component, which is `broker` or `zookeeper`."""
        wanted = names.selector(self.owner.name, component).items()
        return [pod for pod in self.pods if wanted <= pod["metadata"].get("labels", {}).items()]

    def pods_by_name(self, component: str) -> dict[str, Object]:
        """Return the pods of a component, by pod name."""
        return {pod["metadata"]["name"]: pod for pod in self.pods_of(component)}

    def services(self) -> dict[str, Object]:
        """Return the Services that the cluster owns, by name."""
        return {name: service for (kind, name), service in self.objects.items() if kind == "Service"}


def key_of(item: Object) -> ObjectKey:
    """Return the kind and the name of an object."""
    return item["kind"], item["metadata"]["name"]
