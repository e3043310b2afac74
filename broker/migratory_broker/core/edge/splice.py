"""The splice of the edge core: joins the replay of a resumed subscription to the live stream, without a gap or a
repetition.

A subscription's life:

    Attach ── Attached: its receipt, then publications ──┬── done ─> live
                                                         └── NextPage ── Page ── ... ── done ─> live

The logic's effects arrive in order, and a `Fanout` that arrives during a replay is also part of one of its later replay
pages. So nothing is buffered and nothing merged: fan-outs skip a replaying subscriber until the answer that is `done`,
after which only fan-outs follow. Sequence numbers check every step: a publication is never sent twice, and a gap that
the logic did not report becomes a receipt for the subscriber and an error in the log.

Each connection has one replay page pending at a time, in turn over its topics, and none while its transport is paused:
a replay of any length holds one page in memory. Answers to a cancelled replay (unsubscribed, closed, replaced by a
reset) are ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from migratory_protocol.messages import Subscribed, TopicReceipt
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from msgspec.structs import replace

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.conflation import Conflator
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.events import Detach
from migratory_broker.core.edge.formats import message_of
from migratory_broker.core.edge.state import ClientConnection, EdgeTopic, Replay
from migratory_broker.core.logic.events import Attach, Attached, Fanout, Gap, NextPage, Note, Page


class Splice:
    """The topics that have subscribers on an edge, by name, with the replays in progress and the requests to the logic
    for them."""

    def __init__(self, config: EdgeConfig, number: int, delivery: EdgeDelivery) -> None:
        self._config = config
        self._number = number
        self._delivery = delivery
        self.conflator = Conflator(config, delivery)
        self._last_reference = 0
        self._pending: dict[int, Replay] = {}  # by the reference of the request to the logic
        self.topics: dict[str, EdgeTopic] = {}

    @property
    def pending_requests(self) -> int:
        """The number of requests to the logic (`Attach`, `NextPage`) that are not answered yet. A `NextPage` of a
        cancelled replay does not count."""
        return len(self._pending)

    # ---- requests to the logic -------------------------------------------------------------------------------

    def attach(
        self,
        connection: ClientConnection,
        topic: EdgeTopic,
        request: int,
        after: Position | None,
        snapshot: bool,
        page: int,
        *,
        anew: bool = False,
    ) -> None:
        """Begin a replay for a new subscription, and send the logic an `Attach` for it.

        request    the number of the client's subscribe request, for the receipt
        after      the position to resume after, None to start with new publications
        snapshot   without `after`: whether to send the latest publication too
        page       bytes of publications that the first answer may bring
        anew       the client may not read the history: start with new publications, after the receipt `reset`,
                   whatever `after` and `snapshot` are
        """
        if anew:
            after, snapshot = None, False
        replay = topic.replays[connection] = Replay(connection, topic, request, after)
        replay.page = page
        replay.anew = anew
        replay.history = snapshot or after is not None
        connection.replay_count += 1
        connection.pending_attaches += 1
        reference = self._register(replay)
        self._delivery.emit(Attach(self._number, reference, topic.name, after, snapshot, page))

    def request_page(self, connection: ClientConnection) -> None:
        """Request the next page of the one of the connection's replays whose turn it is. Nothing if none needs a page,
        if one is pending or if the transport is paused."""
        if connection.paged_replays and connection.pending_page is None and connection.queue is None:
            replay, _ = connection.paged_replays.popitem(last=False)
            connection.pending_page = replay
            assert replay.cursor is not None
            reference = self._register(replay)
            self._delivery.emit(NextPage(self._number, reference, replay.topic.name, replay.cursor, self._config.page))

    def cancel(self, replay: Replay) -> None:
        """End a replay whose subscription ended or became live by a `reset`. An answer to it that is still to come will
        be ignored. If a page of this replay was pending, request a page for another topic."""
        connection = replay.connection
        if replay.requests:
            replay.requests = ()  # its `Attached` is still to come, and counts in `pending_attaches` until then
        else:
            self._pending.pop(replay.reference, None)
        del replay.topic.replays[connection]
        connection.replay_count -= 1
        if connection.paged_replays is not None:
            connection.paged_replays.pop(replay, None)
        if connection.pending_page is replay:
            connection.pending_page = None
            self.request_page(connection)

    def add_topic(self, name: str) -> EdgeTopic:
        """Create and return the state of a topic that gets its first subscriber, with conflation if a rule matches."""
        topic = self.topics[name] = EdgeTopic(name)
        self.conflator.add_topic(topic)
        return topic

    def remove_topic(self, topic: EdgeTopic) -> None:
        """Remove a topic without subscribers, with its pending conflated publication, and emit `Detach`: the edge does
        not need its publications any more."""
        del self.topics[topic.name]
        self.conflator.remove_topic(topic)
        self._delivery.emit(Detach(self._number, topic.name))

    def _register(self, replay: Replay) -> int:
        """Assign the replay a new reference, by which the logic's next answer is matched to it, and return the
        reference."""
        self._last_reference += 1
        replay.reference = self._last_reference
        self._pending[replay.reference] = replay
        return replay.reference

    # ---- answers of the logic --------------------------------------------------------------------------------

    def match_attached(self, event: Attached) -> Replay | None:
        """Return the replay that this answer belongs to, and count it as pending no more. None if no replay waits for
        it."""
        replay = self._pending.pop(event.reference, None)
        if replay is not None:
            replay.connection.pending_attaches -= 1
        return replay

    def begin_replay(self, replay: Replay, event: Attached) -> None:
        """Send the receipt, then the answer's publications. If these are larger than the replay's page, they are left
        out and requested in pages. The receipt of a client that may not read the history is `reset`."""
        if replay.anew:
            event = replace(event, receipt="reset")
        receipt = TopicReceipt(event.topic, event.receipt, event.position, event.first, event.last)
        self._send_receipt(replay, receipt, is_live=event.done and not event.publications)
        first = event.publications
        if sum(len(publication.payload) for publication in first) > replay.page:
            # The logic sends at least one publication. A large one for each of a thousand topics would fill the queue
            # at once, so they come in pages.
            if replay.cursor is None:
                replay.cursor = Position(first[0].epoch, first[0].sequence - 1)
                replay.snapshot = first[0].sequence
            event = replace(event, publications=(), done=False)
        self._continue(replay, event, event.position)

    def refuse(self, replay: Replay, event: Attached) -> None:
        """Send a receipt with the error code and reason of a topic that the logic refused. The caller ends the
        replay."""
        self._send_receipt(replay, TopicReceipt(event.topic, None, code=event.code, text=event.text), is_live=False)

    def _send_receipt(self, replay: Replay, receipt: TopicReceipt, *, is_live: bool) -> None:
        """Send the receipt once for every subscribe request that waits for it; none waits afterwards. `is_live`:
        nothing is replayed, and live publications follow."""
        connection = replay.connection
        for request in replay.requests:
            self._delivery.write(connection, connection.format.receipt(request, receipt, is_live=is_live))
        replay.requests = ()

    def handle_page(self, event: Page) -> None:
        """Send the publications of a replay page, after a receipt if publications were evicted or the history ended
        meanwhile. Continue or end the replay. Ignore the page of a cancelled replay."""
        replay = self._pending.pop(event.reference, None)
        if replay is None:
            return
        replay.connection.pending_page = None
        position = replay.cursor
        assert position is not None
        if event.receipt != "complete":
            position = event.position
            # A snapshot that was evicted before it could be sent is no gap: the receipt already names its position.
            first = max(event.first, replay.snapshot + 1) if event.receipt == "truncated" else event.first
            if first <= event.last or event.receipt == "reset":
                receipt = TopicReceipt(event.topic, event.receipt, position, first, event.last)
                self._delivery.reply(replay.connection, Subscribed(0, [receipt]))
        self._continue(replay, event, position)

    def _continue(self, replay: Replay, answer: Attached | Page, position: Position) -> None:
        """Send those publications of an answer that the subscriber lacks. If the answer is `done`, end the replay at
        `position` or at the last publication sent, whichever is later; otherwise put the replay in line for its next
        page. Request a page for the connection if none is pending."""
        connection = replay.connection
        if answer.receipt == "truncated":
            replay.cursor = Position(position.epoch, answer.last)
        elif answer.receipt == "reset":
            replay.cursor = None
        floor = 0 if replay.cursor is None else replay.cursor.sequence
        fresh = [publication for publication in answer.publications if publication.sequence > floor]
        if fresh:
            self._delivery.write_parts(connection, connection.format.replay(replay.topic.name, fresh), len(fresh))
            replay.cursor = fresh[-1].position
        if answer.done:
            if replay.cursor is None or replay.cursor.sequence < position.sequence:
                replay.cursor = position
            self._finish(replay, replay.cursor)
        else:
            if replay.cursor is None:
                replay.cursor = position
            if connection.paged_replays is None:
                connection.paged_replays = OrderedDict()
            connection.paged_replays[replay] = None
        self.request_page(connection)

    def _finish(self, replay: Replay, cursor: Position) -> None:
        """Make the subscriber live: it has everything up to `cursor`. If the fan-outs have not come so far, wait until
        they have (`Replay.ahead`). If they are further, report the gap to the subscriber, and log an error."""
        topic = replay.topic
        if topic.last is None:
            topic.last = cursor
        if cursor.sequence > topic.last.sequence:
            replay.ahead = True  # fan-outs that are still to come would repeat the end of the replay
            return
        self._join_live(replay)
        if cursor.sequence < topic.last.sequence:
            self._log_fault(topic, "unreported_hole", cursor, topic.last)
            missed = Gap(topic.name, "truncated", topic.last, cursor.sequence + 1, topic.last.sequence)
            self._delivery.reply(replay.connection, _truncated(missed, cursor.sequence))

    def _join_live(self, replay: Replay) -> None:
        """Make a replaying subscriber live: end its replay and add it to the topic's fan-outs. A pending conflated
        publication is sent before, to the other live subscribers."""
        self.conflator.flush(replay.topic)  # to the subscribers before it: this one has that publication already
        del replay.topic.replays[replay.connection]
        replay.connection.replay_count -= 1
        self._delivery.join(replay.topic, replay.connection)

    # ---- the live stream -------------------------------------------------------------------------------------

    def fanout(self, event: Fanout) -> None:
        """Send committed publications to the topic's live subscribers, conflated if the topic is. Replaying subscribers
        get them in a replay page. Those to which the whole replay was sent become live once the fan-outs have come as
        far (`Replay.ahead`), and get what is new to them. A topic without subscribers is ignored.

        While no subscriber was ever live, nothing is sent: all publications are part of answers that are still to come.
        A fan-out must not count as the beginning of the live stream then: it may have been sent before this edge left
        the topic, and what followed it was not sent.
        """
        topic = self.topics.get(event.topic)
        if topic is None or topic.last is None:
            return
        publications = self._new_publications(topic, topic.last, event.publications)
        if not publications:
            return
        topic.last = publications[-1].position
        if topic.conflation is None:
            self._delivery.fanout(topic, publications, len(publications))
        else:
            self.conflator.fanout(topic, topic.conflation, publications)
        for replay, reached in replays_ahead(topic) if topic.replays else ():
            fresh = [publication for publication in publications if publication.sequence > reached]
            if fresh or publications[-1].sequence == reached:
                self._join_live(replay)
            if fresh:
                data = replay.connection.format.frames([message_of(topic.name, publication) for publication in fresh])
                self._delivery.write(replay.connection, data, len(fresh))

    def _new_publications(
        self, topic: EdgeTopic, last: Position, publications: Sequence[Publication]
    ) -> Sequence[Publication]:
        """Return those of the publications that the topic's live subscribers have not been sent, after reporting to the
        subscribers what is missing before them. `last` is the position that the fan-outs have reached.

        A new history becomes a `reset` receipt, and missing sequence numbers a `truncated` one: nothing is lost
        silently. Unless no history was known here before, either is a fault of this broker, which should have reported
        the gap, and an error is logged.
        """
        first = publications[0]
        unknown = last.epoch == 0 and first.sequence > 1  # no history was known when the topic was attached
        if unknown or (first.sequence <= last.sequence and first.epoch > last.epoch):
            if not unknown:
                self._log_fault(topic, "unreported_reset", last, first.position)
            self.handle_gap(Gap(topic.name, "reset", Position(first.epoch, first.sequence - 1)))
            return publications
        if first.sequence <= last.sequence:
            return [publication for publication in publications if publication.sequence > last.sequence]
        if first.sequence > last.sequence + 1:
            self._log_fault(topic, "unreported_hole", last, first.position)
            until = Position(last.epoch, first.sequence - 1)
            self.handle_gap(Gap(topic.name, "truncated", until, last.sequence + 1, first.sequence - 1))
        return publications

    def _log_fault(self, topic: EdgeTopic, event: str, last: Position, next_: Position) -> None:
        """Log as an error that this broker did not report a gap of a topic, between the positions `last` and
        `next_`."""
        self._delivery.emit(
            Note("error", event, {"edge": self._number, "topic": topic.name, "last": str(last), "next": str(next_)})
        )

    def handle_gap(self, event: Gap) -> None:
        """Report missing publications to the live subscribers, with a receipt. Nothing if they have these publications,
        or while no subscriber has an answer of the logic yet.

        The next replay page of a replaying subscriber reports what is missing for it in the same history. A new history
        (`reset`) ends its replay here, if its receipt was sent: everything that follows is live.
        """
        topic = self.topics.get(event.topic)
        if topic is None:
            return
        if topic.last is None and all(replay.requests for replay in topic.replays.values()):
            return  # no subscriber has an answer yet, and the answers will include it
        self.conflator.flush(topic)
        if event.receipt == "reset":
            topic.last = event.position
            receipt = TopicReceipt(topic.name, "reset", event.position)
            report = Subscribed(0, [receipt])
            self._delivery.multicast(topic, [report])
            for replay in list(topic.replays.values()):
                if not replay.requests:  # else its `Attached` is still to come and includes the new history
                    self.cancel(replay)
                    self._delivery.join(topic, replay.connection)
                    self._delivery.reply(replay.connection, report)
            return
        last = 0 if topic.last is None else topic.last.sequence
        if event.last <= last:
            return  # the subscribers have these publications
        topic.last = Position(event.position.epoch, event.last)
        report = _truncated(event, last)
        self._delivery.multicast(topic, [report])
        for replay, reached in replays_ahead(topic):
            if event.last >= reached:
                self._join_live(replay)
            if event.last > reached:
                self._delivery.reply(replay.connection, _truncated(event, reached))


def replays_ahead(topic: EdgeTopic) -> list[tuple[Replay, int]]:
    """Return the replays whose subscribers have been sent everything, up to a higher position than the fan-outs have
    reached. Each comes with the sequence number up to which its subscriber has everything."""
    return [
        (replay, replay.cursor.sequence)
        for replay in topic.replays.values()
        if replay.ahead and replay.cursor is not None
    ]


def _truncated(gap: Gap, has: int) -> Subscribed:
    """Return the report of a gap for a subscriber that has everything up to sequence number `has`: only what it lacks
    counts as missing."""
    return Subscribed(0, [TopicReceipt(gap.topic, "truncated", gap.position, max(gap.first, has + 1), gap.last)])
