"""A subscriber sees strictly rising positions without an unreported gap, for any order of events.

The machine draws publications, delayed fan-outs, evictions, lost histories, full transports, unsubscribes and
reconnects in any order. Both directions between edge and logic are queues, from which the machine takes as many entries
as it draws. Each client has one pending attach at a time; its later messages wait, and take effect with their answers.
"""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import Event
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Message,
    Subscribe,
    Subscribed,
    TopicReceipt,
    TopicRequest,
    Unsubscribe,
    Unsubscribed,
)
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, Reader
from migratory_testing.onelogic import OneLogic

TOPICS = ("a", "b")
CLIENTS = 3


class Follower:
    """A client that may reconnect, with the positions that a client library would hold."""

    def __init__(self) -> None:
        self.reader: Reader | None = None
        self.paused = False
        self.pending: dict[
            int, tuple[str, Position | None]
        ] = {}  # request without a receipt: topic, position to resume from
        self.last: dict[str, Position] = {}  # topic with a receipt: all up to here was received or reported
        self.seen: dict[str, Position] = {}  # survives a reconnect
        self.requests = 0


class SpliceMachine(RuleBasedStateMachine):
    """The machine: an edge, a model of the logic, and clients that reconnect and resume."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(EdgeConfig(page=40, queue_per_client=600, replay_cache=300, attaches_per_client=1))
        self.logic = OneLogic()
        self.channel: deque[Event] = deque()  # from logic to edge
        self.followers = [Follower() for _ in range(CLIENTS)]
        self.published: dict[tuple[str, Position], bytes] = {}
        self.count = 0

    clients = st.integers(0, CLIENTS - 1)
    topics = st.sampled_from(TOPICS)

    # ---- the logic -------------------------------------------------------------------------------------------

    @rule(topic=topics, number=st.integers(1, 4))
    def publish(self, topic: str, number: int) -> None:
        payloads = [b"%d" % (self.count + n) * (1 + n) for n in range(number)]
        self.count += number
        for new in self.logic.publish(topic, *payloads):
            self.published[topic, new.position] = new.payload

    @rule()
    def flush(self) -> None:
        self.channel += self.logic.flush()

    @rule(topic=topics, number=st.integers(1, 5))
    def evict(self, topic: str, number: int) -> None:
        self.logic.evict(topic, number)

    @rule(topic=topics, number=st.integers(1, 3))
    def skip(self, topic: str, number: int) -> None:
        self.channel += self.logic.skip(topic, number)

    @rule(dice=st.integers(0, 3))
    def lose_history(self, dice: int) -> None:
        if not dice:  # rarely, because most interesting sequences need a history
            self.channel += self.logic.lose_history()

    @precondition(lambda self: self.bench.requests)
    @rule(number=st.integers(1, 3))
    def answer_requests(self, number: int) -> None:
        for _ in range(min(number, len(self.bench.requests))):
            self.channel += self.logic.answer(self.bench.requests.pop(0))

    @precondition(lambda self: self.channel)
    @rule(number=st.integers(1, 4))
    def deliver_to_edge(self, number: int) -> None:
        for _ in range(min(number, len(self.channel))):
            self.bench.step(self.channel.popleft())

    @rule()
    def settle(self) -> None:
        """Deliver everything that is pending between logic and edge."""
        while self.bench.requests or self.channel or any(log.pending for log in self.logic.logs.values()):
            self.flush()
            while self.bench.requests:
                self.channel += self.logic.answer(self.bench.requests.pop(0))
            while self.channel:
                self.bench.step(self.channel.popleft())

    @rule(topic=topics)
    def publish_and_settle(self, topic: str) -> None:
        self.publish(topic, 1)
        self.settle()

    # ---- the clients -----------------------------------------------------------------------------------------

    @initialize(wires=st.lists(st.sampled_from(["json", "msgpack"]), min_size=CLIENTS, max_size=CLIENTS))
    def connect_all(self, wires: list[str]) -> None:
        for client, wire in enumerate(wires):
            self.connect(client, wire)

    @rule(client=clients, wire=st.sampled_from(["json", "msgpack"]))
    def connect(self, client: int, wire: str) -> None:
        follower = self.followers[client]
        if follower.reader is None:
            follower.reader = self.bench.client(wire=wire)  # type: ignore[arg-type]
            follower.paused = False

    @rule(client=clients, dice=st.integers(0, 2))
    def disconnect(self, client: int, dice: int) -> None:
        follower = self.followers[client]
        if follower.reader is not None and not dice:
            self.check(follower)
            follower.reader.lose_socket()
            self.forget(follower)

    @rule(client=clients, topic=topics, resume=st.sampled_from(["last", "last", "older", "newer", "none", "snapshot"]))
    def subscribe(self, client: int, topic: str, resume: str) -> None:
        follower = self.followers[client]
        if follower.reader is None:
            return
        after = follower.seen.get(topic) if resume not in ("none", "snapshot") else None
        if after is not None and resume == "older":
            after = Position(after.epoch, max(0, after.sequence - 3))
        if after is not None and resume == "newer":
            after = Position(after.epoch, after.sequence + 50)
        self.check(follower)
        follower.requests += 1
        follower.pending[follower.requests] = topic, after
        follower.reader.send(Subscribe(follower.requests, [TopicRequest(topic, after, resume == "snapshot")]))
        self.check(follower)

    @rule(client=clients, topic=topics)
    def unsubscribe(self, client: int, topic: str) -> None:
        follower = self.followers[client]
        if follower.reader is not None and not follower.paused:
            follower.requests += 1
            self.check(follower)
            follower.reader.send(Unsubscribe(follower.requests, [topic]))

    @rule(client=clients)
    def pause(self, client: int) -> None:
        follower = self.followers[client]
        if follower.reader is not None and not follower.paused:
            follower.paused = True
            follower.reader.pause()

    @rule(client=clients)
    def resume(self, client: int) -> None:
        follower = self.followers[client]
        if follower.reader is not None and follower.paused:
            follower.paused = False
            follower.reader.resume()
            self.check(follower)

    # ---- invariants --------------------------------------------------------------------------------------

    @invariant()
    def positions_rise_without_a_gap(self) -> None:
        for follower in self.followers:
            if follower.reader is not None:
                self.check(follower)

    def check(self, follower: Follower) -> None:
        reader = follower.reader
        assert reader is not None
        for message in reader.received:
            if isinstance(message, Subscribed):
                for receipt in message.topics:
                    self.receipt(follower, message.request, receipt)
            elif isinstance(message, Message):
                self.message(follower, message)
            else:
                assert isinstance(message, Unsubscribed)
                self.unsubscribed(follower, message)
        reader.received.clear()
        if reader.close_code is not None:
            assert reader.close_code == CloseCode.SLOW_CONSUMER
            assert follower.paused
            reader.lose_socket()
            self.forget(follower)

    def receipt(self, follower: Follower, request: int, receipt: TopicReceipt) -> None:
        topic, position = receipt.topic, receipt.position
        if request:
            wanted, after = follower.pending.pop(request)
            assert wanted == topic
        if receipt.receipt is None:
            assert receipt.code == "retry"
            return
        assert position is not None
        if request and topic in follower.last:
            assert receipt.receipt == "complete" or position == follower.last[topic]  # the answer to a repeated request
            return
        if request == 0:
            has = follower.last[topic]
        else:
            has = position if after is None else after
        if receipt.receipt == "truncated":
            assert receipt.first == has.sequence + 1
            assert receipt.last >= receipt.first
            has = Position(has.epoch, receipt.last)
        elif receipt.receipt == "reset":
            has = position
        follower.last[topic] = follower.seen[topic] = has

    def unsubscribed(self, follower: Follower, message: Unsubscribed) -> None:
        """Take note of an `unsubscribed`: forget the topics' positions and the client's earlier requests for them,
        which are not answered any more."""
        for topic in message.topics:
            follower.last.pop(topic, None)
            for request, (wanted, _) in list(follower.pending.items()):
                if wanted == topic and request < message.request:
                    del follower.pending[request]

    def message(self, follower: Follower, message: Message) -> None:
        topic, position = message.topic, message.position
        assert self.published[topic, position] == message.payload
        last = follower.last[topic]
        snapshot = message.replayed and position == last
        assert snapshot or (position.sequence == last.sequence + 1 and position > last), (topic, last, position)
        follower.last[topic] = follower.seen[topic] = position

    def forget(self, follower: Follower) -> None:
        follower.reader = None
        follower.pending.clear()
        follower.last.clear()

    def teardown(self) -> None:
        """Let all paused clients read again and receive everything. Check that every subscriber has every publication,
        and that the edge has no other subscriptions, replays, queued bytes or clients left."""
        for client in range(CLIENTS):
            self.resume(client)
        self.settle()
        self.positions_rise_without_a_gap()
        for follower in self.followers:
            assert follower.pending == {}
            for topic, last in follower.last.items():
                assert last.sequence == self.logic.logs[topic].position.sequence
        assert self.bench.notes == [] or {note.event for note in self.bench.notes} == {"slow_consumer"}
        assert self.bench.edge.subscriptions == sum(len(follower.last) for follower in self.followers)
        assert self.bench.edge.status()["replays"] == 0
        assert self.bench.edge.queue_bytes == 0
        for number, reader in self.bench.readers.items():
            if reader.socket == "open" and number in self.bench.edge._connections.table:
                reader.lose_socket()
        assert (self.bench.edge.topics, self.bench.edge.clients) == (0, 0)


SpliceMachine.TestCase.settings = settings(stateful_step_count=50, suppress_health_check=list(HealthCheck))
TestSpliceMachine = SpliceMachine.TestCase
