"""The part of a broker's status page (`/v1/status`) on which the operator bases decisions; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BrokerStatusPage:
    """The fields of a broker's status page that the operator uses."""

    ready: bool
    zookeeper_connected: bool
    clients: int
    """The number of client connections."""
    waiting_groups: int
    """The number of topic groups that wait for brokers of their last member list."""
    lost_records: int
    """The number of topic groups that this broker coordinates and whose records ZooKeeper has lost."""
    identity: str
    """The identity of ZooKeeper's data that the broker takes part in; "" if there is none yet."""
    incarnation: int
    member: bool
    """True if the broker is a synced member of an activated list in every topic group."""
    fenced: bool
    """True while the broker serves no clients, because others may continue without it."""
    draining: bool
    links: Mapping[str, int]
    """Incarnations of the brokers that this broker is connected to, by name."""
    lists: Mapping[int, frozenset[str]]
    """Member lists of the topic groups that this broker coordinates now, by the group's number."""
    copies: int
    """The highest `minCopies` in the records of the groups in `lists`; 0 if this broker coordinates none."""
    staying: frozenset[str]
    """The brokers to which this broker sends its clients when it leaves, itself included; empty if the page does not
    name them."""

    @property
    def owned(self) -> frozenset[int]:
        """The numbers of the topic groups that this broker coordinates."""
        return frozenset(self.lists)

    @property
    def listed(self) -> frozenset[str]:
        """The names of the brokers that are on at least one member list of a topic group that this broker
        coordinates."""
        return frozenset[str]().union(*self.lists.values())

    @classmethod
    def read(cls, page: Mapping[str, Any]) -> BrokerStatusPage:
        """Return the status page from its decoded JSON. A page without an edge has 0 clients.

        :raises KeyError, TypeError, ValueError: a field is missing or has the wrong type.
        """
        logic, edge = page["logic"], page["edge"]
        coordinated = [group for group in logic["groups"] if group["role"] == "coordinator"]
        return cls(
            ready=bool(page["ready"]),
            zookeeper_connected=bool(page["zookeeper_connected"]),
            clients=int(edge["clients"]) if edge is not None else 0,
            waiting_groups=int(logic["waiting_groups"]),
            lost_records=sum("record_missing" in group.get("election_state", ()) for group in coordinated),
            identity=str(logic.get("zookeeper", {}).get("identity", "")),
            incarnation=int(logic["incarnation"]),
            member=bool(logic["member"]),
            fenced=bool(logic["fenced"]),
            draining=bool(logic["draining"]),
            links={str(name): int(incarnation) for name, incarnation in logic["peers"].items()},
            lists={int(group["group"]): frozenset(str(name) for name in group["members"]) for group in coordinated},
            copies=max((int(group["copies"]) for group in coordinated), default=0),
            staying=frozenset(str(name) for name in page.get("staying", ())),
        )
