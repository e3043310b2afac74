"""A state machine of resumed subscriptions, checked against a record of everything that was published.

Coordinators of three brokers die and come back one at a time, caches evict, and subscribers resume at any position at
any broker. The model is the list of acknowledged publications; the answers of the brokers must agree with it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from migratory_broker.core.logic.events import Attached
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster

NAMES = ("a", "b", "c")
TOPICS = ("t", "u")
PAGE = 6  # bytes of payload


class ResumeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(
            NAMES, messages_per_topic=5, min_age=2.0, max_age=30.0, bootstrap_wait=0.0, duplicate_window=60.0
        ).up(2.0)
        self.first = self.cluster.record().first
        self.all: dict[str, list[tuple[Position, bytes]]] = {topic: [] for topic in TOPICS}
        self.ids = dict.fromkeys(TOPICS, 0)

    brokers = st.sampled_from(NAMES)
    topics = st.sampled_from(TOPICS)

    # ---- what happens ----------------------------------------------------------------------------------------

    @initialize(number=st.integers(0, 3))
    def some_were_published(self, number: int) -> None:
        for _ in range(number):
            self.publish("a", "t", 2)

    @rule(broker=brokers, topic=topics, size=st.integers(0, 4))
    def publish(self, broker: str, topic: str, size: int) -> None:
        self.ids[topic] += 1
        payload = "x" * size
        reference = self.cluster.publish(broker, topic, payload, publisher="p", id=self.ids[topic])
        answer = self.cluster.answers[reference]
        assert answer.code == ""
        assert answer.position is not None
        if self.all[topic]:
            assert answer.position > self.all[topic][-1][0]
        assert answer.position.sequence == len(self.all[topic]) + 1
        self.all[topic].append((answer.position, payload.encode()))

    @rule(seconds=st.sampled_from([0.2, 2.5, 31.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.cluster.run(seconds)

    @rule()
    def the_coordinator_dies_and_comes_back(self) -> None:
        name = self.cluster.coordinator()
        self.cluster.crash(name)
        self.cluster.run(4.0)
        self.cluster.start(name)
        self.cluster.run(4.0)
        assert all(self.cluster.logic(name).membership.ready for name in NAMES)
        assert self.cluster.record().first == self.first  # one member of three is never the history

    # ---- subscribers -----------------------------------------------------------------------------------------

    @rule(broker=brokers, topic=topics, snapshot=st.booleans())
    def subscribe_from_now_on(self, broker: str, topic: str, snapshot: bool) -> None:
        attached = self._ask(broker, topic, None, snapshot)
        assert (attached.receipt, attached.done) == ("complete", True)
        known = self.all[topic]
        latest = [payload for position, payload in known[-1:] if snapshot]
        payloads = [publication.payload for publication in attached.publications]
        log = self.cluster.logic(broker).groups[0].replica.topics.get(topic)
        assert payloads == (latest if log is not None and log.entries else [])

    @rule(broker=brokers, topic=topics, back=st.integers(0, 12))
    def resume_from_a_position_that_was_seen(self, broker: str, topic: str, back: int) -> None:
        """Resume at a position of the history. The replay must have everything after it, or everything but the gap
        that the receipt reports; the receipt is never a reset."""
        known = self.all[topic]
        after = known[-1 - back][0] if back < len(known) else Position(self.first, 0)
        attached, payloads = self._resume(broker, topic, after)
        assert attached.receipt in ("complete", "truncated")
        if attached.receipt == "truncated":
            assert attached.first == after.sequence + 1
            assert attached.first <= attached.last <= len(known)
            begin = attached.last
        else:
            begin = after.sequence
        assert payloads == known[begin:]

    @rule(broker=brokers, topic=topics, ahead=st.integers(1, 3), epochs=st.integers(0, 2))
    def resume_from_ahead(self, broker: str, topic: str, ahead: int, epochs: int) -> None:
        """Resume at a position ahead of the topic's last one. The broker must answer with a reset, after waiting."""
        current = self._current(topic)
        epoch = self.cluster.record().epoch + epochs
        attached = self._ask(broker, topic, Position(epoch, current.sequence + ahead))
        assert attached.receipt == "reset"
        assert attached.publications == ()

    @rule(broker=brokers, topic=topics, at=st.integers(0, 12), wrong=st.sampled_from([-(10**6), -1, 1, 10**6, 2**62]))
    def resume_from_where_nothing_ever_was(self, broker: str, topic: str, at: int, wrong: int) -> None:
        """Resume at an existing number with an epoch that it never had. The answer must be a reset, unless eviction
        has removed the proof; then it is a receipt of a gap."""
        known = self.all[topic]
        right = known[at - 1][0] if 0 < at <= len(known) else Position(self.first, 0)
        after = Position(max(0, right.epoch + wrong), right.sequence)
        if after in [position for position, _ in known]:
            return
        log = self.cluster.logic(broker).groups[0].replica.topics.get(topic)
        base, base_epoch = (log.base, log.base_epoch) if log is not None else (0, 0)
        attached, payloads = self._resume(broker, topic, after)
        evicted = self.first <= after.epoch <= base_epoch and 0 < after.sequence < base
        if evicted:
            assert attached.receipt == "truncated"
            assert payloads == known[attached.last :]
        else:
            assert attached.receipt == "reset"
            assert payloads == []

    @rule(broker=brokers, topic=topics, ahead=st.integers(1, 2))
    def resume_from_what_is_about_to_come(self, broker: str, topic: str, ahead: int) -> None:
        """Resume at a position that is published a moment later. The broker must answer then, with a complete
        receipt at that position and nothing to replay."""
        coordinator = self.cluster.coordinator()
        epoch = self.cluster.record().epoch
        after = Position(epoch, self._current(topic).sequence + ahead)
        attached = self.cluster.attach(broker, topic, after)
        assert attached is None
        reference = self.cluster._reference
        for _ in range(ahead):
            self.publish(coordinator, topic, 1)
        self.cluster.run(0.1)
        (attached,) = [event for event in self.cluster[broker].of(Attached) if event.reference == reference]
        assert (attached.receipt, attached.publications, attached.done) == ("complete", (), True)
        assert attached.position == after

    # ---- asking ----------------------------------------------------------------------------------------------

    def _current(self, topic: str) -> Position:
        return self.all[topic][-1][0] if self.all[topic] else Position(self.first, 0)

    def _ask(self, broker: str, topic: str, after: Position | None, snapshot: bool = False) -> Attached:
        """Attach at this position, wait for the answer (at most 2.2 s, for the resume wait), check its position, and
        return it."""
        attached = self.cluster.attach(broker, topic, after, snapshot=snapshot, max_bytes=PAGE)
        if attached is None:
            self.cluster.run(2.2)
            reference = self.cluster._reference
            (attached,) = [event for event in self.cluster[broker].of(Attached) if event.reference == reference]
        assert attached.code == ""
        assert attached.position == self._current(topic)
        return attached

    def _resume(self, broker: str, topic: str, after: Position) -> tuple[Attached, list[tuple[Position, bytes]]]:
        """Attach at this position, and return the answer and the whole replay, fetched page by page. Check that no
        page exceeds its size."""
        attached = self._ask(broker, topic, after)
        pages = [attached.publications]
        done = attached.done
        while not done:
            assert pages[-1], "a page that is not the last holds something"
            page = self.cluster.page(broker, topic, pages[-1][-1].position, PAGE)
            assert page.receipt == "complete"
            pages.append(page.publications)
            done = page.done
        for publications in pages:
            assert len(publications) <= 1 or sum(len(publication.payload) for publication in publications) <= PAGE
        return attached, [shown(publication) for publications in pages for publication in publications]


def shown(publication: Publication) -> tuple[Position, bytes]:
    return publication.position, publication.payload


TestResumeMachine = ResumeMachine.TestCase
TestResumeMachine.settings = settings(max_examples=25, stateful_step_count=25)
