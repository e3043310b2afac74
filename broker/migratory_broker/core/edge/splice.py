"""The splice: from a resume position over the replay into the live stream, without a seam.

A subscription's life:

    Attach ── Attached: its receipt, then publications ──┬── done ─> live
                                                         └── NextPage ── Page ── ... ── done ─> live

The logic's effects arrive in order, and what a `Fanout` brings while a replay goes on is in one of its later pages. So
nothing is held back and nothing merged: what is fanned out passes a replaying subscriber by, until the answer that is
`done` says that only fan-outs follow. Every step of that is checked by sequence number: what a subscriber has is not
sent again, and a hole that nobody reported becomes a receipt and an error in the log.

Pages are asked for one at a time for each connection, in turn over its topics, and none while its transport is paused:
a replay of any length holds one page in memory. Answers that nobody waits for any more (unsubscribed, closed,
overtaken by a reset) are ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from migratory_protocol.messages import Subscribed, TopicReceipt
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from msgspec.structs import replace

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.conflation import Conflation
from migratory_broker.core.edge.connection import Connection, Replay, Topic
from migratory_broker.core.edge.delivery import Delivery
from migratory_broker.core.edge.events import Detach
from migratory_broker.core.logic.events import Attach, Attached, Fanout, Gap, NextPage, Note, Page


class Splice:
    """All replays of an edge, and the order of what its topics are given."""

    def __init__(self, config: EdgeConfig, number: int, delivery: Delivery) -> None:
        self._config = config
        self._number = number
        self._delivery = delivery
        self.conflation = Conflation(config, delivery)
        self._references = 0
        self._waiting: dict[int, Replay] = {}  # by the reference of the request that is under way
        self.topics: dict[str, Topic] = {}

    @property
    def waiting(self) -> int:
        """Requests to the logic that are under way."""
        return len(self._waiting)

    # ---- asking ----------------------------------------------------------------------------------------------

    def attach(
        self, connection: Connection, topic: Topic, request: int, after: Position | None, snapshot: bool, page: int
    ) -> None:
        """Begins a subscription; `page` is how many bytes of publications its first answer may bring."""
        replay = topic.replays[connection] = Replay(connection, topic, request, after)
        replay.page = page
        connection.replaying += 1
        connection.attaching += 1
        reference = self._expect(replay)
        self._delivery.aside(Attach(self._number, reference, topic.name, after, snapshot, page))

    def pump(self, connection: Connection) -> None:
        """Asks for the connection's next page, if it wants one and can take it."""
        if connection.pages and connection.paging is None and connection.queue is None:
            replay, _ = connection.pages.popitem(last=False)
            connection.paging = replay
            assert replay.cursor is not None
            reference = self._expect(replay)
            self._delivery.aside(NextPage(self._number, reference, replay.topic.name, replay.cursor, self._config.page))

    def cancel(self, replay: Replay) -> None:
        """What was asked for is not wanted any more."""
        connection = replay.connection
        if replay.requests:
            replay.requests = ()  # its `Attached` is still to come, and counts until then
        else:
            self._waiting.pop(replay.reference, None)
        del replay.topic.replays[connection]
        connection.replaying -= 1
        if connection.pages is not None:
            connection.pages.pop(replay, None)
        if connection.paging is replay:
            connection.paging = None
            self.pump(connection)

    def begin(self, name: str) -> Topic:
        """Somebody subscribes to a topic that nobody was subscribed to."""
        topic = self.topics[name] = Topic(name)
        self.conflation.begin(topic)
        return topic

    def forget(self, topic: Topic) -> None:
        """Nobody is subscribed to it any more."""
        del self.topics[topic.name]
        self.conflation.end(topic)
        self._delivery.aside(Detach(self._number, topic.name))

    def _expect(self, replay: Replay) -> int:
        self._references += 1
        replay.reference = self._references
        self._waiting[replay.reference] = replay
        return replay.reference

    # ---- answers ---------------------------------------------------------------------------------------------

    def answered(self, event: Attached) -> Replay | None:
        """Who it is for."""
        replay = self._waiting.pop(event.reference, None)
        if replay is not None:
            replay.connection.attaching -= 1
        return replay

    def attached(self, replay: Replay, event: Attached) -> None:
        """The receipt, before anything that it speaks of, and the begin of the replay."""
        self._answer(replay, TopicReceipt(event.topic, event.receipt, event.position, event.first, event.last))
        first = event.publications
        if sum(len(publication.payload) for publication in first) > replay.page:
            # The logic gives one at least. A thousand topics with a large one each would fill the queue at once: they
            # come page by page.
            if replay.cursor is None:
                replay.cursor = Position(first[0].epoch, first[0].sequence - 1)
                replay.told = first[0].sequence
            event = replace(event, publications=(), done=False)
        self._go_on(replay, event, event.position)

    def refused(self, replay: Replay, event: Attached) -> None:
        """The logic refuses the topic, and the receipt says why. The replay is to end with that."""
        self._answer(replay, TopicReceipt(event.topic, None, code=event.code, text=event.text))

    def _answer(self, replay: Replay, receipt: TopicReceipt) -> None:
        """To every request that waits for it."""
        for request in replay.requests:
            self._delivery.reply(replay.connection, Subscribed(request, [receipt]))
        replay.requests = ()

    def page(self, event: Page) -> None:
        """More of a replay, or word that it was overtaken."""
        replay = self._waiting.pop(event.reference, None)
        if replay is None:
            return
        replay.connection.paging = None
        position = replay.cursor
        assert position is not None
        if event.receipt != "complete":
            position = event.position
            # A snapshot that was evicted before it could be sent is no gap: its subscriber stands there already.
            first = max(event.first, replay.told + 1) if event.receipt == "truncated" else event.first
            if first <= event.last or event.receipt == "reset":
                receipt = TopicReceipt(event.topic, event.receipt, position, first, event.last)
                self._delivery.reply(replay.connection, Subscribed(0, [receipt]))
        self._go_on(replay, event, position)

    def _go_on(self, replay: Replay, answer: Attached | Page, position: Position) -> None:
        """Sends what the subscriber lacks of the answer. When that is done, it is live from `position` on, or from
        the last publication."""
        connection = replay.connection
        if answer.receipt == "truncated":
            replay.cursor = Position(position.epoch, answer.last)
        elif answer.receipt == "reset":
            replay.cursor = None
        floor = 0 if replay.cursor is None else replay.cursor.sequence
        fresh = [publication for publication in answer.publications if publication.sequence > floor]
        if fresh:
            data = connection.format.replay(replay.topic.name, fresh)
            self._delivery.write(connection, data, len(fresh))
            replay.cursor = fresh[-1].position
        if answer.done:
            if replay.cursor is None or replay.cursor.sequence < position.sequence:
                replay.cursor = position
            self._join(replay, replay.cursor)
        else:
            if replay.cursor is None:
                replay.cursor = position
            if connection.pages is None:
                connection.pages = OrderedDict()
            connection.pages[replay] = None
        self.pump(connection)

    def _join(self, replay: Replay, cursor: Position) -> None:
        """The subscriber has everything up to its cursor, and only fan-outs follow."""
        topic = replay.topic
        if topic.last is None:
            topic.last = cursor
        if cursor.sequence > topic.last.sequence:
            replay.ahead = True  # what is on its way to all others, it has already
            return
        self._live(replay)
        if cursor.sequence < topic.last.sequence:
            self._fault(topic, "unreported_hole", cursor, topic.last)
            missed = Gap(topic.name, "truncated", topic.last, cursor.sequence + 1, topic.last.sequence)
            self._delivery.reply(replay.connection, _truncated(missed, cursor.sequence))

    def _live(self, replay: Replay) -> None:
        self.conflation.release(replay.topic)  # to those before it: it has that already
        del replay.topic.replays[replay.connection]
        replay.connection.replaying -= 1
        self._delivery.join(replay.topic, replay.connection)

    # ---- live ------------------------------------------------------------------------------------------------

    def fanout(self, event: Fanout) -> None:
        """To the live subscribers; those that replay get it in a page.

        Before anybody is live all of it is in answers that are still to come. It must not be taken for the begin of the
        live stream: it may have been on its way since before this edge left the topic, and what followed was not sent.
        """
        topic = self.topics.get(event.topic)
        if topic is None or topic.last is None:
            return
        publications = self._new(topic, topic.last, event.publications)
        if not publications:
            return
        topic.last = publications[-1].position
        if topic.conflated is None:
            self._delivery.fanout(topic, publications, len(publications))
        else:
            self.conflation.take(topic, topic.conflated, publications)
        for replay, reached in ahead(topic) if topic.replays else ():
            fresh = [publication for publication in publications if publication.sequence > reached]
            if fresh or publications[-1].sequence == reached:
                self._live(replay)
            if fresh:
                data = replay.connection.format.live(topic.name, fresh)
                self._delivery.write(replay.connection, data, len(fresh))

    def _new(self, topic: Topic, last: Position, publications: Sequence[Publication]) -> Sequence[Publication]:
        """What the topic's subscribers don't have yet. When the logic left something out without saying so, which is
        a fault of this broker, they are told: nothing is lost silently."""
        first = publications[0]
        unknown = last.epoch == 0 and first.sequence > 1  # nobody knew a history when the topic was attached
        if unknown or (first.sequence <= last.sequence and first.epoch > last.epoch):
            if not unknown:
                self._fault(topic, "unreported_reset", last, first.position)
            self.gap(Gap(topic.name, "reset", Position(first.epoch, first.sequence - 1)))
            return publications
        if first.sequence <= last.sequence:
            return [publication for publication in publications if publication.sequence > last.sequence]
        if first.sequence > last.sequence + 1:
            self._fault(topic, "unreported_hole", last, first.position)
            until = Position(last.epoch, first.sequence - 1)
            self.gap(Gap(topic.name, "truncated", until, last.sequence + 1, first.sequence - 1))
        return publications

    def _fault(self, topic: Topic, event: str, last: Position, next_: Position) -> None:
        self._delivery.aside(
            Note("error", event, {"edge": self._number, "topic": topic.name, "last": str(last), "next": str(next_)})
        )

    def gap(self, event: Gap) -> None:
        """Live subscribers lost something. Those that replay are told by their next page what they miss of the same
        history, but a new history ends their replay here: what comes is live."""
        topic = self.topics.get(event.topic)
        if topic is None:
            return
        if topic.last is None and all(replay.requests for replay in topic.replays.values()):
            return  # nobody was answered yet, and the answers know of it
        self.conflation.release(topic)
        if event.receipt == "reset":
            topic.last = event.position
            receipt = TopicReceipt(topic.name, "reset", event.position)
            told = Subscribed(0, [receipt])
            self._delivery.multicast(topic, lambda format: format.frame(told))
            for replay in list(topic.replays.values()):
                if not replay.requests:  # else its `Attached` is to come and knows of the new history
                    self.cancel(replay)
                    self._delivery.join(topic, replay.connection)
                    self._delivery.reply(replay.connection, told)
            return
        last = 0 if topic.last is None else topic.last.sequence
        if event.last <= last:
            return  # they have it
        topic.last = Position(event.position.epoch, event.last)
        told = _truncated(event, last)
        self._delivery.multicast(topic, lambda format: format.frame(told))
        for replay, reached in ahead(topic):
            if event.last >= reached:
                self._live(replay)
            if event.last > reached:
                self._delivery.reply(replay.connection, _truncated(event, reached))


def ahead(topic: Topic) -> list[tuple[Replay, int]]:
    """The subscribers that have more than was fanned out, and up to which sequence number."""
    return [
        (replay, replay.cursor.sequence)
        for replay in topic.replays.values()
        if replay.ahead and replay.cursor is not None
    ]


def _truncated(gap: Gap, has: int) -> Subscribed:
    """The receipt for a subscriber that has everything up to sequence number `has`."""
    return Subscribed(0, [TopicReceipt(gap.topic, "truncated", gap.position, max(gap.first, has + 1), gap.last)])
