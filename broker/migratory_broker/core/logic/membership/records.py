"""The records in ZooKeeper, for membership and election: their JSON, the rules by which the next record of a group is
made, and how many promises its source needs.

Paths are below the cluster's root: `/brokers/<name>` (the incarnation), `/members/<name>` (ephemeral), `/groups/<g>`
(the record of the highest epoch), `/coordinators/<g>` (ephemeral of its owner), `/cluster`, and `/identity`, whose only
child names the data. `rendezvous` is the order in which brokers try to write a group's record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec
from migratory_protocol.diagnosis import DECODE_ERRORS
from migratory_protocol.peer import BrokerId
from msgspec import Meta, Struct

CLUSTER = "/cluster"
BROKERS = "/brokers"
MEMBERS = "/members"
GROUPS = "/groups"
COORDINATORS = "/coordinators"
IDENTITY = "/identity"

# These numbers, and each plus one, go into signed 64 bits on the wire. Another program may write larger ones.
Epoch = Annotated[int, Meta(ge=0, le=2**62)]
Copies = Annotated[int, Meta(ge=1, le=1000)]
Incarnation = Annotated[int, Meta(ge=0, le=2**62)]
Listed = Annotated[list[tuple[str, Incarnation]], Meta(min_length=1)]

R = TypeVar("R", bound=Struct)


class BadRecord(ValueError):
    """The error for a node's data that is not a valid record, so that no broker wrote it. The text says what is
    wrong."""


class ClusterRecord(Struct, frozen=True):
    """The content of `/cluster`: the number of topic groups and the hash of topics. Written once, because brokers that
    hash topics differently must not form a cluster."""

    groups: int
    hash: str = "crc32"


class MemberRecord(Struct, frozen=True):
    """The content of `/members/<name>`: a live broker, by incarnation. `url` is for clients, `peer` ("host:port") for
    other brokers. `weight` is that in the server list, and `ready` and `draining` say whether it accepts clients."""

    incarnation: Incarnation
    url: str
    peer: str
    weight: Annotated[int, Meta(ge=0, le=10_000)]
    ready: bool
    draining: bool


class SourceEpoch(Struct, frozen=True):
    """The source of a record: the last activated epoch before that of the record, with the list, `minCopies` (`copies`)
    and owner of its record. Of a restored record it is the epoch from which that was restored, which perhaps was not
    activated, and the list may be of an earlier epoch (RESTORE-SOURCE).

    Records of older versions have `copies` 1 where the epoch was perhaps not activated, so that every member must
    promise.
    """

    epoch: Epoch
    members: Listed
    copies: Copies
    owner: tuple[str, Incarnation]

    def enough(self, answered: Iterable[BrokerId]) -> bool:
        """TAKEOVER-QUORUM: return whether `answered` includes n - q + 1 members of this epoch's list, or its owner if
        that is listed, which holds every committed publication. n is the length of the list, q is `copies`. Brokers
        that are not listed do not count."""
        listed = [broker for broker in answered if broker in self.members]
        return len(listed) >= len(self.members) - self.copies + 1 or self.owner in listed


class GroupRecord(Struct, frozen=True):
    """The content of `/groups/<g>`: one epoch of a topic group. `history` is the history's random name, `first` its
    first epoch, and `copies` the `minCopies` of this epoch. Without a `source`, no earlier epoch of the history was
    activated, and nothing was committed before this one."""

    history: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    first: Epoch
    epoch: Epoch
    owner: tuple[str, Incarnation]
    members: Listed
    copies: Copies
    activated: bool
    source: SourceEpoch | None

    def as_source(self) -> SourceEpoch | None:
        """SOURCE-IS-ACTIVATED: return the source for the next record: this epoch if it is activated, else this record's
        own source, which may be None."""
        if self.activated:
            return SourceEpoch(self.epoch, self.members, self.copies, self.owner)
        return self.source

    def next(self, owner: BrokerId, members: list[BrokerId], copies: int, above: int = 0) -> GroupRecord:
        """HIGHER-THAN-PROMISED: return the record that follows this one in its history, not activated, of the epoch one
        above this one and above the promise `above`."""
        epoch = max(self.epoch, above) + 1
        return GroupRecord(
            self.history, self.first, epoch, owner, members, copies, activated=False, source=self.as_source()
        )

    def as_activated(self) -> GroupRecord:
        return msgspec.structs.replace(self, activated=True)


def encode(record: ClusterRecord | MemberRecord | GroupRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_group(data: bytes) -> GroupRecord:
    """Return the group record in `data`. Raises BadRecord if `data` is not one."""
    return _decode(data, GroupRecord)


def decode_member(data: bytes) -> MemberRecord:
    """Return the member record in `data`. Raises BadRecord if `data` is not one."""
    return _decode(data, MemberRecord)


def decode_cluster(data: bytes) -> ClusterRecord:
    """Return the cluster's record in `data`. Raises BadRecord if `data` is not one."""
    return _decode(data, ClusterRecord)


def _decode(data: bytes, kind: type[R]) -> R:
    """Return the record of this class in JSON. Raises BadRecord if `data` is not one."""
    try:
        return msgspec.json.decode(data, type=kind)
    except DECODE_ERRORS as error:
        raise BadRecord(str(error)) from None


def incarnation_in(data: bytes, version: int) -> int:
    """Return the incarnation that the data of a broker's node has in decimal digits. Of a node with any other data,
    which an older program wrote, it is the node's version."""
    return int(data) if data.isascii() and data.isdigit() and len(data) < 20 else version


def group_number(name: str) -> int | None:
    """Return the number of the group that a node below /groups or /coordinators is named for, None for a name that is
    not a number of at most nine digits. The cluster need not have such a group."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None


def rendezvous(group: int, names: Iterable[str]) -> list[str]:
    """Return the names in an order of this group's own, the same at every broker (rendezvous hashing).

    Over all groups each name comes first about equally often, whatever the set of names.
    """
    return sorted(names, key=lambda name: (-_mix(group, name), name))


def _mix(group: int, name: str) -> int:
    """Return a number of 64 bits from the group and the name, by which `rendezvous` orders names. It is the same in
    every process."""
    value = 0xCBF29CE484222325 ^ group  # FNV-1a, then a finalizer: similar names must not get similar values
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & (2**64 - 1)
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & (2**64 - 1)
    return value ^ (value >> 33)
