"""The part of a broker's status page (`/v1/status`) on which the operator bases decisions; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from migratory_resources.validation.loading import problems_of
from pydantic import BaseModel, ConfigDict, Field, ValidationError


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
    def read(cls, text: bytes) -> BrokerStatusPage:
        """Return the status page from its JSON text. A page without an edge has 0 clients.

        :raises MalformedStatusPage: the text is not JSON, or a field is missing or has the wrong type.
        """
        try:
            page = _Page.model_validate_json(text)
        except ValidationError as error:
            raise MalformedStatusPage(str(next(problems_of(error)))) from error
        logic = page.logic
        coordinated = [group for group in logic.groups if group.role == "coordinator"]
        return cls(
            ready=page.ready,
            zookeeper_connected=page.zookeeper_connected,
            clients=page.edge.clients if page.edge is not None else 0,
            waiting_groups=logic.waiting_groups,
            lost_records=sum("record_missing" in group.election_state for group in coordinated),
            identity=logic.zookeeper.identity,
            incarnation=logic.incarnation,
            member=logic.member,
            fenced=logic.fenced,
            draining=logic.draining,
            links=logic.peers,
            lists={group.group: frozenset(group.members) for group in coordinated},
            copies=max((group.copies for group in coordinated), default=0),
            staying=frozenset(page.staying),
        )


class MalformedStatusPage(ValueError):
    """Raised for a status page that is not JSON or has not the fields that the operator uses. The message names one
    field, its value and what is allowed."""


_Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    """A part of the page as the broker sends it. Fields that the operator does not use are passed over, because brokers
    of another release have others."""

    model_config = ConfigDict(strict=True)


class _Group(_Part):
    group: _Count
    role: str
    members: list[str]
    copies: _Count
    election_state: list[str] = []


class _ZooKeeper(_Part):
    identity: str = ""


class _Logic(_Part):
    groups: list[_Group]
    waiting_groups: _Count
    incarnation: _Count
    member: bool
    fenced: bool
    draining: bool
    peers: dict[str, _Count]
    zookeeper: _ZooKeeper = _ZooKeeper()


class _Edge(_Part):
    clients: _Count


class _Page(_Part):
    ready: bool
    zookeeper_connected: bool
    logic: _Logic
    edge: _Edge | None
    staying: list[str] = []
