"""A model of the logic for one broker, as an edge sees it: it commits at once and answers as `logic.events` specifies.

It holds all publications, so that a test can check what a subscriber must have received. `Fanout`s wait for `flush`, as
the real logic collects them over a turn of the event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from migratory_broker.core.edge.events import Event
from migratory_broker.core.logic.events import (
    Attach,
    Attached,
    Fanout,
    Gap,
    NextPage,
    Page,
    PublishAnswers,
    PublishRequest,
    Receipt,
)
from migratory_protocol.messages import Ack, Nack
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position


class Log:
    """The log of a topic. `epoch` and `base` are the position before the oldest cached publication; `cached` has all
    later ones."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.base = 0
        self.cached: list[Publication] = []
        self.pending: list[Publication] = []  # committed and not fanned out

    @property
    def position(self) -> Position:
        return self.cached[-1].position if self.cached else Position(self.epoch, self.base)


class OneLogic:
    """A logic with the logs of all topics. `epoch` is that of new publications, and `history` the first epoch of the
    current history."""

    def __init__(self, epoch: int = 1) -> None:
        self.history = self.epoch = epoch
        self.logs: dict[str, Log] = defaultdict(lambda: Log(self.epoch))

    def publish(self, topic: str, *payloads: bytes) -> list[Publication]:
        """Commit publications of a topic with these payloads, and return them. `flush` fans them out."""
        log = self.logs[topic]
        new = []
        for payload in payloads:
            new.append(Publication(self.epoch, log.position.sequence + 1, payload, time=1000.0))
            log.cached.append(new[-1])
        log.pending += new
        return new

    def flush(self) -> list[Event]:
        """Remove all pending publications, which `publish` committed, and return their fan-outs: one for each topic."""
        events: list[Event] = []
        for topic, log in self.logs.items():
            if log.pending:
                events.append(Fanout(topic, tuple(log.pending)))
                log.pending = []
        return events

    def evict(self, topic: str, count: int) -> None:
        """Evict the `count` oldest publications of a topic from the cache: a replay that needs them is truncated."""
        log = self.logs[topic]
        for publication in log.cached[:count]:
            log.base = publication.sequence
            log.epoch = publication.epoch
        del log.cached[:count]

    def skip(self, topic: str, count: int) -> list[Event]:
        """Skip `count` sequence numbers, as a broker that never received these publications, and empty the topic's
        cache. Return the pending fan-outs and the gap."""
        events = self.flush()
        log = self.logs[topic]
        first = log.position.sequence + 1
        log.base = first + count - 1
        log.epoch = self.epoch
        log.cached.clear()
        return [*events, Gap(topic, "truncated", log.position, first, log.base)]

    def lose_history(self) -> list[Event]:
        """Drop all publications and begin a new history for all topics. Return the pending fan-outs and the resets."""
        events = self.flush()
        self.epoch += 10
        self.history = self.epoch
        for topic in self.logs:
            self.logs[topic] = Log(self.epoch)
            events.append(Gap(topic, "reset", self.logs[topic].position))
        return events

    def answer(self, request: Attach | NextPage | PublishRequest) -> list[Event]:
        """Commit the publications of a request, or read a log for a subscription or page. Return the answers: one with
        the acknowledgements of QoS 1 (none for QoS 0 alone), or the one `Attached` or `Page`."""
        if isinstance(request, PublishRequest):
            acknowledged: list[Ack | Nack] = []
            for publication in request.publications:
                (new,) = self.publish(publication.topic, publication.payload)
                if publication.qos:
                    acknowledged.append(Ack(publication.topic, publication.publisher, publication.id, new.position))
            return [PublishAnswers(request.edge, request.reference, acknowledged)] if acknowledged else []
        if isinstance(request, Attach):
            return [self._attach(request)]
        return [self._page(request)]

    def _attach(self, request: Attach) -> Attached:
        """Return the answer to a subscription: the receipt, and the first page of the replay or the snapshot."""
        log = self.logs[request.topic]
        receipt: Receipt = "complete"
        position, after = log.position, request.after
        entries: Iterable[Publication] = ()
        done, first, last = True, 0, 0
        if after is None:
            entries = log.cached[-1:] if request.snapshot else ()
        elif after.epoch < self.history or after > position:
            receipt = "reset"
        else:
            if after.sequence < log.base:
                receipt, first, last = "truncated", after.sequence + 1, log.base
            entries, done = self._cut(log, after.sequence, request.max_bytes)
        return Attached(
            request.edge, request.reference, request.topic, receipt, position, tuple(entries), done, first, last
        )

    def _page(self, request: NextPage) -> Page:
        """Return a page of a replay. Say that it is truncated or reset if publications after the requested position are
        no longer cached."""
        log = self.logs[request.topic]
        after = request.after
        if after.epoch < self.history:
            return Page(request.edge, request.reference, request.topic, (), True, "reset", log.position)
        entries, done = self._cut(log, after.sequence, request.max_bytes)
        if after.sequence < log.base:
            return Page(
                request.edge, request.reference, request.topic, tuple(entries), done, "truncated", log.position,
                after.sequence + 1, log.base,
            )  # fmt: skip
        return Page(request.edge, request.reference, request.topic, tuple(entries), done)

    @staticmethod
    def _cut(log: Log, after: int, max_bytes: int) -> tuple[list[Publication], bool]:
        """Return the cached publications after the sequence number `after`, up to `max_bytes` but at least one, and
        whether these are all."""
        rest = [publication for publication in log.cached if publication.sequence > after]
        page: list[Publication] = []
        size = 0
        for publication in rest:
            size += len(publication.payload)
            if page and size > max_bytes:
                break
            page.append(publication)
        return page, len(page) == len(rest)
