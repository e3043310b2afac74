"""The budget of an edge under random runs: after every step, the counted bytes of subscriptions and input are those
that the connections hold, and subscriptions are within their limit. All counts are 0 when all clients have left."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.budget import SUBSCRIPTION_BYTES, topic_bytes
from migratory_broker.core.logic.events import Attach, Attached
from migratory_protocol.messages import Publish, Subscribe, TopicRequest, Unsubscribe
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, Reader

TOPICS = [f"topic/{'x' * number}" for number in range(6)] + ["börse", "\n"]
LIMIT = 5 * (topic_bytes(TOPICS[0]) + 2 * SUBSCRIPTION_BYTES)


class BudgetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(EdgeConfig(subscriptions_total=LIMIT, attaches_per_client=2, queue_per_client=100_000))
        self.readers: list[Reader] = []
        self.waiting: list[Attach] = []
        self.number = 0

    def step(self) -> None:
        """Move the edge's attach requests to `waiting`, and drop its other requests."""
        self.waiting += self.bench.requests_of(Attach)

    def reader(self, index: int) -> Reader:
        return self.readers[index % len(self.readers)]

    @precondition(lambda self: len(self.readers) < 5)
    @rule(wire=st.sampled_from(["json", "msgpack"]))
    def connect(self, wire: str) -> None:
        self.readers.append(self.bench.client(wire=wire))  # type: ignore[arg-type]

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 4), topics=st.lists(st.sampled_from(TOPICS), max_size=8))
    def subscribe(self, index: int, topics: list[str]) -> None:
        self.number += 1
        self.reader(index).send(Subscribe(self.number, [TopicRequest(topic) for topic in topics]))
        self.step()

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 4), topics=st.lists(st.sampled_from(TOPICS), max_size=4))
    def unsubscribe(self, index: int, topics: list[str]) -> None:
        self.number += 1
        self.reader(index).send(Unsubscribe(self.number, topics))
        self.step()

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, 20), code=st.sampled_from(["", "too_many_topics"]))
    def answer(self, index: int, code: str) -> None:
        attach = self.waiting.pop(index % len(self.waiting))
        answer = Attached(0, attach.reference, attach.topic, "complete", Position(1, 0), code=code)
        self.bench.step(answer)
        self.step()

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 4), cut=st.integers(1, 200))
    def send_a_part(self, index: int, cut: int) -> None:
        """Send the first `cut` bytes of a frame. Then lose the socket if `cut` is odd, else send the rest."""
        reader = self.reader(index)
        data = reader.frame(Publish("t", bytes(150)))
        reader.send_bytes(data[:cut])
        if cut % 2:
            self.lose(index)
        else:
            reader.send_bytes(data[cut:])
        self.step()

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 4))
    def lose(self, index: int) -> None:
        reader = self.reader(index)
        self.readers.remove(reader)
        reader.lose_socket()
        self.step()

    @invariant()
    def what_is_counted_is_there(self) -> None:
        edge = self.bench.edge
        table = edge._connections.table
        subscriptions = [topic.name for connection in table.values() for topic in connection.topics]
        counted = SUBSCRIPTION_BYTES * len(subscriptions) + sum(map(topic_bytes, set(subscriptions)))
        assert edge.subscription_bytes == counted <= LIMIT
        assert edge.subscriptions == len(subscriptions)
        held = 0
        for connection in table.values():
            held += connection.parser.buffered_bytes if connection.parser is not None else 0
            held += connection.request.size if connection.request is not None else 0
            if connection.backlog is not None:
                held += connection.backlog.size + connection.backlog.parsed
        assert edge.input_bytes == held

    def teardown(self) -> None:
        for reader in self.readers:
            reader.lose_socket()
        edge = self.bench.edge
        assert (edge.subscription_bytes, edge.input_bytes, edge.queue_bytes, edge.topics) == (0, 0, 0, 0)


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
