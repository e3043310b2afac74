"""Messages of a hostile broker to another one. They have the right types, and may break every other rule; they are
built from what the attacked cluster holds.

Every choice is the caller's: of a property test's data, or of a fuzzer's bytes. Values are mostly ones that matter:
epochs about the record's, positions about those of the logs, the real history and owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from migratory_broker.core.logic import events as ev
from migratory_protocol import peer as p
from migratory_protocol.positions import Position

from migratory_testing.brokers import Cluster

Choose = Callable[[Sequence[Any]], Any]

LARGE = (2**31, 2**53 - 1, 2**61, 2**62)


class HostilePeer:
    """A source of attacks on `cluster`. Its messages arrive as if a linked broker had sent them. `choose` returns one
    of the values that it is given."""

    def __init__(self, cluster: Cluster, choose: Choose) -> None:
        self.cluster = cluster
        self.choose = choose
        self.sender = self.receiver = ""

    def attack(self) -> None:
        """Deliver one to three hostile messages to a broker in one read, or publish, let time pass or restart a broker.
        Then handle all queued events. Deliver nothing to a broker without a link."""
        cluster, choose = self.cluster, self.choose
        running = cluster.running()
        what = choose(("messages", "messages", "messages", "messages", "publish", "wait", "wait long", "crash"))
        if what == "publish":
            cluster.publish(choose(running), choose(("t", "u")), choose(("x", "y")), id=choose((0, 1, 2, 3)))
        elif what == "wait":
            cluster.run(0.1)
        elif what == "wait long":
            cluster.run(3.0)
        elif what == "crash":
            cluster.restart(choose(running))
        else:
            self.receiver = choose(running)
            linked = sorted(cluster.logic(self.receiver).ctx.links)
            if linked:
                self.sender = choose(linked)
                messages = [self.message() for _ in range(choose((1, 1, 2, 3)))]
                event = ev.PeerReceived(self.sender, tuple(messages))
                cluster.give(self.receiver, event)
        cluster.settle()

    def message(self) -> Any:
        """Return a message of a chosen kind with chosen values, encoded and decoded once."""
        build = self.choose(
            (
                self._heartbeat, self._forward, self._replies, self._prepare, self._promise, self._refused,
                self._inventory_request, self._inventory, self._sync, self._sync, self._sync, self._synced,
                self._activated, self._accept, self._accept, self._accepted, self._hand_over, self._survey,
                self._survey_reply,
            )
        )  # fmt: skip
        return p.decode_peer(p.encode_peer(build()))

    # ---- values

    @property
    def _replica(self) -> Any:
        return self.cluster.logic(self.receiver).groups[0].replica

    def _number(self) -> int:
        found: int = self.choose((0, 1, 2, 3, *LARGE))
        return found

    def _epoch(self) -> int:
        """Return an epoch: about the record's or the replica's, or any."""
        record, replica = self.cluster.record(), self._replica
        found: int = self.choose(
            (
                record.epoch, record.epoch, record.epoch + 1, replica.promised, replica.promised + 1, replica.synced,
                record.epoch - 1, record.epoch + 1000, record.first, 0, *LARGE,
            )
        )  # fmt: skip
        return found

    def _history(self) -> int:
        found: int = self.choose((self.cluster.record().history, self._replica.history, 0, 7))
        return found

    def _group(self) -> int:
        found: int = self.choose((0, 0, 0, 0, 0, 0, 1, 99))
        return found

    def _topic(self) -> str:
        found: str = self.choose(("t", "t", "u", "v", ""))
        return found

    def _last(self) -> int:
        log = self._replica.topics.get("t")
        found: int = self.choose((log.last, log.last + 1, log.committed, log.base) if log else (0, 1))
        return found

    def _sequence(self) -> int:
        return self._last() if self.choose((True, True, False)) else self._number()

    def _sender_id(self) -> p.BrokerId:
        """Return a name and incarnation: mostly the real ones of the sender, or others."""
        links = self.cluster.logic(self.receiver).ctx.links
        found: p.BrokerId = self.choose(
            ((self.sender, links[self.sender]), (self.sender, links[self.sender]), (self.receiver, 1), ("z", 9))
        )
        return found

    def _many(self, build: Callable[[], Any]) -> list[Any]:
        return [build() for _ in range(self.choose((0, 1, 1, 2)))]

    def _publication(self) -> p.Publication:
        publisher = self.choose(("", "p", "q"))
        return p.Publication(self._epoch(), self._sequence(), b"x", publisher, self.choose((0, 1, 2, 2**53 - 1)))

    def _publications(self) -> list[p.Publication]:
        """Return one to three entries with consecutive numbers and one epoch, or up to two entries with any values."""
        if self.choose((False, True)):
            return self._many(self._publication)
        start, epoch = self._last(), self._epoch()
        return [
            p.Publication(epoch, start + number, b"x", "p", (start + number) % 2**53)
            for number in range(self.choose((1, 2, 3)))
        ]

    def _digest(self) -> p.LogDigest:
        return p.LogDigest(self._topic(), self._sequence(), self._sequence(), self._epoch(), self._number())

    def _row(self) -> p.PublisherRow:
        number = self.choose((0, 1, 2, 2**53 - 1))
        return p.PublisherRow("p", number, self._epoch(), self._sequence(), self.choose((b"", b"12345678")))

    def _part(self) -> p.TopicPart:
        """Return a topic's part of a `Sync` or promise: one without holes, or one of any values."""
        entries = self._publications()
        if self.choose((True, True, False)):  # a part without holes
            keep = max(0, entries[0].sequence - 1 if entries else self._last())
            whole = self.choose((True, False))
            base, last = keep if whole else self.choose((0, keep)), min(2**62, keep + len(entries))
            return p.TopicPart(
                self._topic(), keep, base, 0, last, self.choose((0, keep)),
                whole=whole, entries=entries, table=self._many(self._row),
            )  # fmt: skip
        return p.TopicPart(
            self._topic(), self._sequence(), self._sequence(), self._epoch(), self._sequence(), self._sequence(),
            self.choose((False, True)), self.choose((False, False, True)), self.choose((False, False, True)), entries,
            self._publications(), self._many(self._row),
        )  # fmt: skip

    # ---- messages

    def _heartbeat(self) -> p.Heartbeat:
        load = p.ClientLoad(self._number() % 2**31, self.choose((False, True)), "", [(self.receiver, 5), ("z", 2**31)])
        coordinated = self._many(lambda: (self._group(), self._epoch()))
        heard = [*self.cluster.names, "z"]
        incarnations = [self._number() for _ in heard]
        return p.Heartbeat(
            self.choose((-1.0, 0.0, 1e12)), heard, coordinated, True, self.choose((True, False)),
            self.choose((None, load)), incarnations,
        )  # fmt: skip

    def _forward(self) -> p.Forward:
        def build() -> p.ForwardedPublication:
            number = self.choose((0, 1, 2, 2**53 - 1))
            return p.ForwardedPublication(self._topic(), b"x", self.choose((0, 1)), "p", number, number)

        return p.Forward(self._group(), self._many(build))

    def _replies(self) -> p.ForwardReplies:
        def build() -> p.ForwardReply:
            position = self.choose((None, Position(self._epoch(), self._sequence())))
            return p.ForwardReply(self._topic(), "p", self.choose((0, 1, 2)), self.choose(("", "retry", "?")), position)

        return p.ForwardReplies(self._many(build))

    def _prepare(self) -> p.Prepare:
        useful = self.choose((False, True))
        return p.Prepare(self._group(), self._history(), self._epoch(), self._epoch(), useful, self._many(self._digest))

    def _promise(self) -> p.Promise:
        return p.Promise(
            self._group(), self._history(), self._epoch(), self._epoch(), self.choose((True, True, False)),
            self._many(self._digest), self._many(self._part),
        )  # fmt: skip

    def _refused(self) -> p.EpochRefused:
        return p.EpochRefused(self._group(), self._epoch(), self._epoch())

    def _inventory_request(self) -> p.InventoryRequest:
        return p.InventoryRequest(self._group(), self._history(), self._epoch())

    def _inventory(self) -> p.Inventory:
        digests = self._many(self._digest)
        return p.Inventory(self._group(), self._history(), self._epoch(), self._epoch(), self._epoch(), digests)

    def _sync(self) -> p.Sync:
        """Return a `Sync` whose counts fit its parts; each other field is right or wrong."""
        parts = self._many(self._part)
        lasts = {part.topic: part.last for part in parts if not part.continued}
        owner, whole = self._sender_id(), self.choose((True, True, False))
        members = self.choose(([owner, (self.receiver, 1)], [owner], [("z", 1), ("y", 1)]))
        return p.Sync(
            self._group(), self._history(), self.choose((0, self.cluster.record().first)), self._epoch(),
            self._number(), owner, members, self.choose((1, 2, 2, 0, 9)), self.choose((True, False)), whole,
            self.choose((True, True, True, False)), parts, len(lasts), sum(lasts.values()) % 2**62,
            self.choose((Position(0, 0), Position(self._epoch(), self._sequence()))), self._many(self._topic),
        )  # fmt: skip

    def _synced(self) -> p.Synced:
        return p.Synced(self._group(), self._history(), self._epoch(), self._number())

    def _activated(self) -> p.Activated:
        return p.Activated(self._group(), self._history(), self._epoch())

    def _accept(self) -> p.Accept:
        entries = self._many(lambda: p.TopicEntries(self._topic(), self._publications()))
        marks = self._many(lambda: (self._topic(), self._sequence()))
        forget = self._many(lambda: (self._topic(), "p"))
        return p.Accept(self._group(), self._history(), self._epoch(), entries, forget, marks)

    def _accepted(self) -> p.Accepted:
        lasts = self._many(lambda: (self._topic(), self._sequence()))
        return p.Accepted(self._group(), self._history(), self._epoch(), lasts)

    def _hand_over(self) -> p.HandOver:
        return p.HandOver(self._group(), self._history(), self._epoch())

    def _survey(self) -> p.Survey:
        return p.Survey(self._number(), self._many(self._group) * self.choose((1, 500)))

    def _survey_reply(self) -> p.SurveyReply:
        groups = self._many(lambda: (self._group(), self._epoch()))
        return p.SurveyReply(self._number(), groups, self._many(self._copy))

    def _copy(self) -> p.HeldCopy:
        owner = self._sender_id()
        members = self.choose(([owner, (self.receiver, 1)], [owner], [("z", 1), ("y", 1)], [], [owner, owner]))
        return p.HeldCopy(
            self._group(), self._history(), self.choose((0, self.cluster.record().first)), self._epoch(), owner,
            members, self.choose((1, 2, 2, 1000)), self.choose((True, False)), self.choose((True, False)),
        )  # fmt: skip
