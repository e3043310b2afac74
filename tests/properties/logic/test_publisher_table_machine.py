"""A state machine of acknowledged publishing over a network that loses, repeats and delays messages.

One broker commits at once. Publishers number, send, resend and give up; copies arrive at any time within the duplicate
window. The model knows no tables, only the answers that each publisher received.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from migratory_broker.core.logic.events import PublishRequest
from migratory_protocol import limits
from migratory_protocol.messages import LARGEST_INTEGER
from migratory_protocol.peer import ForwardedPublication
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster

TOPICS = ("t", "u")
WINDOW = 6.0
CACHED = 3


@dataclass(frozen=True)
class Copy:
    """One copy of a message that is being sent and has not arrived."""

    id: int
    payload: bytes
    mark: int
    missing: frozenset[int]  # lower ids that were neither published nor given up when it was sent


@dataclass
class Publisher:
    name: str
    topic: str
    next_id: int = 1
    waiting: dict[int, bytes] = field(default_factory=dict)
    published: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # by id: sequence number, payload
    travelling: list[Copy] = field(default_factory=list)
    last_at: float = 0.0  # when something was last published


class PublisherTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(
            ("a",), min_copies=1, duplicate_window=WINDOW, bootstrap_wait=0.0, messages_per_topic=CACHED, min_age=0.0,
            max_age=1000.0,
        ).up(1.0)  # fmt: skip
        self.publishers = {(topic, name): Publisher(name, topic) for topic in TOPICS for name in ("p", "q")}
        self.log: dict[str, list[tuple[str, int, bytes]]] = {topic: [] for topic in TOPICS}
        self.reference = 0

    source = st.tuples(st.sampled_from(TOPICS), st.sampled_from(["p", "q"]))

    # ---- publishers ------------------------------------------------------------------------------------------

    @rule(source=source, payload=st.sampled_from([b"", b"1", b"2"]))
    def publish(self, source: tuple[str, str], payload: bytes) -> None:
        publisher = self.publishers[source]
        publisher.waiting[publisher.next_id] = payload
        publisher.next_id += 1
        self._send(publisher, publisher.next_id - 1)

    @rule(source=source)
    def send_all_again(self, source: tuple[str, str]) -> None:
        """Resend all waiting messages from the lowest id, each with a fresh mark, as a publisher does after a gap, a
        timeout or a new connection. Each must be accepted or have an unknown outcome, so that none waits any more."""
        publisher = self.publishers[source]
        for id in sorted(publisher.waiting):
            self._send(publisher, id)
            code = self._arrive(publisher, publisher.travelling[-1])
            assert code in ("", "outcome_unknown"), "resending does not help"
        assert not publisher.waiting

    @rule(source=source)
    def give_the_lowest_up(self, source: tuple[str, str]) -> None:
        publisher = self.publishers[source]
        if publisher.waiting:
            del publisher.waiting[min(publisher.waiting)]

    def _send(self, publisher: Publisher, id: int) -> None:
        missing = frozenset(other for other in publisher.waiting if other < id and other not in publisher.published)
        publisher.travelling.append(Copy(id, publisher.waiting[id], min(publisher.waiting), missing))

    # ---- the network -----------------------------------------------------------------------------------------

    @rule(source=source, index=st.integers(0, 30), again=st.booleans())
    def one_arrives(self, source: tuple[str, str], index: int, again: bool) -> None:
        """Let any sent copy arrive; with `again` it may arrive once more."""
        publisher = self.publishers[source]
        if publisher.travelling:
            copy = publisher.travelling[index % len(publisher.travelling)]
            if not again:
                publisher.travelling.remove(copy)
            self._arrive(publisher, copy)

    @rule(seconds=st.sampled_from([0.1, 1.0, WINDOW / 2]))
    def time_goes_by(self, seconds: float) -> None:
        self.cluster.run(seconds)
        for publisher in self.publishers.values():
            # a publisher that was silent for so long is forgotten at some time: its copies must be gone by then
            if self.cluster.now - publisher.last_at > WINDOW - 1:
                publisher.travelling.clear()

    # ---- what the broker says --------------------------------------------------------------------------------

    def _arrive(self, publisher: Publisher, copy: Copy, payload: bytes | None = None) -> str:
        self.reference += 1
        sent = copy.payload if payload is None else payload
        request = ForwardedPublication(publisher.topic, sent, 1, publisher.name, copy.id, copy.mark)
        before = len(self.log[publisher.topic])
        self.cluster.give("a", PublishRequest(0, self.reference, [request]))
        self.cluster.settle()
        for sequence, text in self.cluster.delivered("a", publisher.topic)[before:]:
            assert sequence == len(self.log[publisher.topic]) + 1
            self._published(publisher, copy, sequence, text.encode("latin-1"))
        answer = self.cluster.answers[self.reference]
        assert (answer.topic, answer.publisher, answer.id) == (publisher.topic, publisher.name, copy.id)
        if answer.code == "":
            self._acknowledged(publisher, copy, sent, answer.position)
            publisher.last_at = self.cluster.now  # a repeat begins the window anew
        elif answer.code == "gap":
            assert copy.missing - set(publisher.published), "a gap where nothing is missing"
        elif answer.code == "outcome_unknown":
            assert copy.id < max(publisher.published), "the last id of a publisher is known"
            assert not self._is_cached(publisher, copy.id), "what is cached is known"
            publisher.waiting.pop(copy.id, None)
        else:
            assert answer.code == "id_reused"
            assert publisher.published[copy.id][1] != sent, "the same payload is no other one"
        return answer.code

    def _published(self, publisher: Publisher, copy: Copy, sequence: int, payload: bytes) -> None:
        assert payload == copy.payload
        assert copy.id not in publisher.published, "published twice"
        assert copy.id > max(publisher.published, default=0), "published after a later one"
        assert not copy.missing - set(publisher.published), "published before an earlier one that still waits"
        publisher.published[copy.id] = (sequence, payload)
        publisher.last_at = self.cluster.now
        self.log[publisher.topic].append((publisher.name, copy.id, payload))

    def _acknowledged(self, publisher: Publisher, copy: Copy, sent: bytes, position: Position | None) -> None:
        publisher.waiting.pop(copy.id, None)
        assert position is not None, "acknowledged, and not known to be stored"
        assert self.log[publisher.topic][position.sequence - 1] == (publisher.name, copy.id, sent)

    def _is_cached(self, publisher: Publisher, id: int) -> bool:
        sequence, _ = publisher.published.get(id, (0, b""))
        return sequence > len(self.log[publisher.topic]) - CACHED

    @rule(source=source, index=st.integers(0, 30))
    def an_id_is_used_for_something_else(self, source: tuple[str, str], index: int) -> None:
        """Send another payload under an id that was used, a mistake of the publisher. The broker must refuse it,
        with `id_reused` if it still knows the id, otherwise with `outcome_unknown`."""
        publisher = self.publishers[source]
        if not publisher.published or self.cluster.now - publisher.last_at > WINDOW - 1:
            return
        id = index % max(publisher.published) + 1  # perhaps one that was given up
        known = id == max(publisher.published) or self._is_cached(publisher, id)
        sent = publisher.published[id][1] if id in publisher.published else b""
        waits = id in publisher.waiting
        copy = Copy(id, sent, id, frozenset())
        assert self._arrive(publisher, copy, payload=sent + b"!") == ("id_reused" if known else "outcome_unknown")
        if waits:
            publisher.waiting[id] = sent
            publisher.waiting = dict(sorted(publisher.waiting.items()))

    @rule(source=source, far=st.sampled_from([1, 1000, 2**53]))
    def an_id_jumps(self, source: tuple[str, str], far: int) -> None:
        """Publish under an id too far above the last one, which would use up the publisher's ids. The broker must
        refuse it with `id_too_high`."""
        publisher = self.publishers[source]
        if not publisher.published or self.cluster.now - publisher.last_at > WINDOW - 1:
            return
        id = min(max(publisher.published) + 1 + limits.ID_JUMP + far, LARGEST_INTEGER)
        self.reference += 1
        request = ForwardedPublication(publisher.topic, b"", 1, publisher.name, id, id)
        self.cluster.give("a", PublishRequest(0, self.reference, [request]))
        self.cluster.settle()
        assert self.cluster.answers[self.reference].code == "id_too_high"


TestPublisherTableMachine = PublisherTableMachine.TestCase
TestPublisherTableMachine.settings = settings(max_examples=40, stateful_step_count=40)
