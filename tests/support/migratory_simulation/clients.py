"""Publishers and subscribers: the production client core over modelled connections.

Deliveries are checked twice: as the application gets them from the core (`ExternalChecker`), and before that, per
connection, as they were on the wire (`WireTopic`), so that the client core cannot hide a broker's mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from random import Random
from typing import TYPE_CHECKING

from migratory_client.core import events as ev
from migratory_client.core.servers import parse_servers
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import Settings
from migratory_protocol import frames
from migratory_protocol import messages as wire
from migratory_protocol.codec import Codec
from migratory_protocol.positions import Position

from migratory_simulation.connections import Connection
from migratory_simulation.external_checker import Key, Violation

if TYPE_CHECKING:
    from migratory_simulation.world import World

FINAL = frozenset({"timeout", "not_connected", "outcome_unknown"})
"""Codes with which a publication may fail at any time. Every other code of `PublishFailed` is a violation here, except
`id_reused` on a topic on which another client misused the publisher's ids."""

LATELY = 130.0
"""Seconds, scaled by the run's tempo, for which a client reports a change of broker as recent: longer than a rollout
takes here."""

MASK = b"\x17\x2a\x05\x99"


class WireTopic:
    """The position of one topic on one connection, by what the broker has sent there."""

    __slots__ = ("position", "snapshot")

    def __init__(self, position: Position, snapshot: bool = False) -> None:
        self.position = position
        self.snapshot = snapshot  # the publication at this very position may follow


class ClientLink:
    """One connection of a client, from dialling on, with what the client has asked for on it. `connection` is None
    until the broker accepted it."""

    def __init__(self, number: int, codec: Codec) -> None:
        self.number = number
        self.codec = codec
        self.connection: Connection | None = None
        self.parser = frames.FrameParser("client", 4_000_000)
        self.asked: dict[int, dict[str, Position | None]] = {}  # request -> topic -> after
        self.snapshots: dict[int, set[str]] = {}  # request -> topics with a requested snapshot
        self.misused: dict[tuple[str, str, int], Key] = {}  # publications under ids of other publishers
        self.topics: dict[str, WireTopic] = {}


class Client:
    """A simulated client: publisher, subscriber, or both. `subscribes` and `publishes` are topics. Names are unique in
    a run. Effects of its core are checked, and what contradicts an invariant raises Violation."""

    def __init__(
        self, world: World, number: int, subscribes: tuple[str, ...], publishes: tuple[str, ...], codec: Codec
    ) -> None:
        self.world = world
        self.number = number
        self.name = f"client-{number}"
        self.publisher = f"p{number}"
        self.subscribes = subscribes
        self.publishes = publishes
        self.codec = codec
        self.random = Random(f"client {world.options.seed} {number}")
        self.links: dict[int, ClientLink] = {}
        self.stalled = False
        self.waiting: dict[str, list[Key]] = {topic: [] for topic in publishes}
        self.padding = b"|" + b"x" * world.options.padding if world.options.padding else b""
        self.last_id: dict[str, int] = dict.fromkeys(publishes, 0)
        self.answered_at: dict[str, float] = {}  # topic -> last acknowledgement: brokers know this publisher
        self.misused: set[str] = set()  # topics on which others use this publisher's ids
        self.final: set[Key] = set()  # publications that must be acknowledged before the run ends
        self.unknown: set[Key] = set()  # publications that wait, and that a broker refused with `outcome_unknown`
        self._extra = 0
        self._armed = inf
        tempo = world.options.tempo
        self.core = ClientCore(
            parse_servers([world.url(name) for name in world.options.brokers])[0],
            self.random.random,
            client=self.name,
            publisher=self.publisher,
            settings=Settings(
                connect_timeout=3.0 * tempo,
                first_retry=tempo,
                backoff_cap=4.0 * tempo,
                blacklist=8.0 * tempo,
                receipt_timeout=4.0 * tempo,
                ack_timeout=2.0 * tempo,
                publish_timeout=world.options.give_up,
                stable_after=2.0 * tempo,
                resend_cap=4.0 * tempo,
                recent_changes=LATELY * tempo,
            ),
        )

    # ---- actions of the run

    def start(self) -> None:
        """Subscribe and connect."""
        for topic in self.subscribes:
            self._want(topic, fresh=False)
        self.step(ev.Open())

    def _want(self, topic: str, *, fresh: bool) -> None:
        """Subscribe to a topic; by chance, as often as the options say, with a snapshot. With `fresh` the remembered
        position is ignored."""
        chance = self.world.options.snapshots
        snapshot = chance > 0.0 and self.random.random() < chance
        if snapshot:
            self.world.external.wants_snapshot(self.name, topic)
        self.step(ev.SubscribeTopic(topic, None, snapshot, fresh))

    def publish(self, topic: str, *, qos: int = 1, final: bool = False) -> None:
        """Publish a unique payload. Do nothing while the client is closed, or when eight publications on the topic wait
        already and it is not `final`. A `final` one is published again until it is acknowledged."""
        waiting = self.waiting[topic]
        if self.core.closed or (len(waiting) >= 8 and not final):
            return
        if qos == 0:
            self._extra += 1
            key = Key(self.publisher, topic, 0, self._extra)
        else:
            self.last_id[topic] += 1
            key = Key(self.publisher, topic, self.last_id[topic])
            waiting.append(key)
            if final:
                self.final.add(key)
        self.world.coverage["published"] += 1
        self.step(ev.Submit(key, topic, key.payload + self.padding, qos, self.world.scheduler.now))

    def give_up_something(self) -> None:
        """Give up a random publication that waits for an answer. Do nothing if none waits, or if it is a final one."""
        candidates = [keys for keys in self.waiting.values() if keys]
        if candidates:
            key = self.random.choice(self.random.choice(candidates))
            if key not in self.final:
                self._settle(key)
                self.world.coverage["given up"] += 1
                self.step(ev.GiveUp(key))

    def misuse(self, owner: Client, topic: str, random: Random) -> None:
        """Publish another payload under the name and a message id of the publisher `owner`: an old id, the last one, or
        the next one.

        Do nothing unless brokers must still know the publisher: an id of a publisher that they have forgotten may be
        used again.
        """
        link = self.links.get(self.core._current_number())
        known = self.world.scheduler.now - owner.answered_at.get(topic, -inf) < self.world.options.duplicate_window / 4
        if owner is self or link is None or not known:
            return
        last = owner.last_id[topic]
        number = random.choice((random.randint(1, last), last, last + 1))
        if (topic, owner.publisher, number) not in link.misused:
            self._extra += 1
            key = Key(owner.publisher, topic, number, 1000 * self.number + self._extra)
            link.misused[topic, owner.publisher, number] = key
            owner.misused.add(topic)
            self.world.coverage["ids misused"] += 1
            self._write(link, wire.Publish(topic, key.payload, 1, owner.publisher, number, number))

    def _check_misuse(self, link: ClientLink, answer: wire.Ack | wire.Nack) -> None:
        """Check the answer to a publication under another publisher's id, and ignore any other answer. It may be
        acknowledged only if its payload is committed. Raise Violation otherwise."""
        key = link.misused.pop((answer.topic, answer.publisher, answer.id), None)
        if key is not None and isinstance(answer, wire.Ack):
            self.world.coverage["misused ids stored"] += 1
            self.world.external.acknowledges(key, answer.position, self.world.internal.is_committed(key))

    def toggle(self, topic: str) -> None:
        """Unsubscribe from a topic, and subscribe to it again after up to 3 seconds, scaled by `Options.hurry`. The
        core then resumes at its position or, by chance, begins anew."""
        self.step(ev.UnsubscribeTopic(topic))
        away = self.random.uniform(0.0, 3.0) * self.world.options.hurry
        self.world.scheduler.after(away, self._want_again, topic)

    def _want_again(self, topic: str) -> None:
        """Subscribe to a topic again. By chance, as often as the options say, ignore the remembered position."""
        chance = self.world.options.snapshots
        fresh = chance > 0.0 and topic not in self.core.subscriptions.active and self.random.random() < chance
        if fresh:
            self.world.coverage["begun anew"] += 1
            self.world.external.leaves(self.name, topic)
        self._want(topic, fresh=fresh)

    def stall(self) -> None:
        """Stop reading from all connections until `flow`, also from later ones."""
        self.stalled = True
        for link in self.links.values():
            if link.connection is not None:
                link.connection.stall()

    def flow(self) -> None:
        """Read from all connections again."""
        self.stalled = False
        for link in list(self.links.values()):
            if link.connection is not None:
                link.connection.flow()

    @property
    def ready(self) -> bool:
        """Return whether the client is connected, all its subscriptions have receipts, and no final publication is
        unanswered."""
        return self.core.connected and not self.core.subscriptions.unanswered and not self.final

    @property
    def follows(self) -> Iterable[str]:
        return self.core.subscriptions.active

    # ---- the core

    def step(self, event: ev.Event) -> None:
        """Let the core handle an event, check and execute its effects, and arm its timer."""
        world = self.world
        if world.tracing:
            world.trace(self.name, "<-", event)
        effects = self.core.step(event, world.scheduler.now)
        if any(isinstance(effect, ev.PublishFailed) for effect in effects):
            self._check_sent_again(event, effects)
        for effect in effects:
            if world.tracing:
                world.trace(self.name, "=>", effect)
            self._execute(effect)
        deadline = self.core.deadline
        if deadline < self._armed:
            self._armed = deadline
            world.scheduler.at(deadline, self._tick, deadline)

    def _check_sent_again(self, event: ev.Event, effects: list[ev.Effect]) -> None:
        """Check a promise of the core: when a publication fails, the others of its topic that wait are sent again at
        once from the lowest, because the coordinator accepts none of them before it knows that an id was given up.
        Raise Violation otherwise. A failure at submission, and one without a connection, are not checked."""
        if isinstance(event, ev.Submit) or not self.core.connected:
            return
        ended: set[object] = set()
        due: dict[str, int] = {}  # topic -> the id that is to be sent next, as the mark
        for effect in effects:
            if isinstance(effect, (ev.PublishFailed, ev.Acknowledged)):
                key = effect.ticket
                ended.add(key)
                if isinstance(effect, ev.PublishFailed) and isinstance(key, Key) and key.id:
                    waiting = (other.id for other in self.waiting[key.topic] if other not in ended)
                    due[key.topic] = min(waiting, default=0)
            elif isinstance(effect, ev.Send):
                for message in effect.messages:
                    if isinstance(message, wire.Publish) and message.id == message.mark == due.get(message.topic):
                        del due[message.topic]
        if late := {topic: number for topic, number in due.items() if number}:
            raise Violation(7, f"{self.name}: earlier ids were given up, and the next ones are not sent: {late}")

    def _tick(self, armed: float) -> None:
        if armed == self._armed:
            self._armed = inf
            self.step(ev.Tick())

    def _execute(self, effect: ev.Effect) -> None:
        """Execute an effect of the core, or check what it shows to the application. Raise Violation for a refused
        subscription, a wrong delivery or answer, and problems that only a faulty core or broker reports."""
        if isinstance(effect, ev.Send):
            link = self.links.get(effect.link)
            if link is not None:
                for message in effect.messages:
                    self._note_request(link, message)
                    self._write(link, message)
        elif isinstance(effect, ev.Deliver):
            got = effect.message
            self.world.external.received(self.name, got.topic, got.position, got.payload, got.replayed, got.first)
        elif isinstance(effect, ev.Receipt):
            self._receipt(effect)
        elif isinstance(effect, ev.Acknowledged):
            key = effect.ticket
            assert isinstance(key, Key)
            if key.id:
                self._settle(key)
                self.answered_at[key.topic] = self.world.scheduler.now
                self.world.external.acknowledges(key, effect.position, self.world.internal.is_committed(key))
        elif isinstance(effect, ev.PublishFailed):
            self._failed(effect)
        elif isinstance(effect, ev.Dial):
            self._dial(effect)
        elif isinstance(effect, ev.Disconnect):
            link = self.links.pop(effect.link, None)
            if link is not None and link.connection is not None:
                link.connection.close_by_client()
        elif isinstance(effect, ev.SubscribeRefused):
            raise Violation(7, f"{self.name}: subscribing to {effect.topic} is refused: {effect.code} {effect.text}")
        elif isinstance(effect, ev.LinkDown):
            self.world.coverage["links lost"] += 1
            self.world.coverage[f"clients {effect.cause}"] += 1
            if effect.replaced:
                self.world.coverage["replaced before they were left"] += 1
                early = self.core.connected and self.core.subscriptions.unanswered > 0
                self.world.coverage["left before the receipts"] += early
        elif isinstance(effect, ev.Problem) and effect.code in ("bad_message", "unknown_op", "id_reused"):
            raise Violation(7, f"{self.name}: {effect.code}: {effect.text}")

    def _receipt(self, receipt: ev.Receipt) -> None:
        """Check a receipt that the core passes to the application. Raise Violation for a hole, for one without a
        position, and for one that contradicts the subscription."""
        if receipt.kind == "hole":
            raise Violation(2, f"{self.name} {receipt.topic}: {receipt.first}..{receipt.last} missing, not reported")
        if receipt.position is None:
            raise Violation(2, f"{self.name} {receipt.topic}: a receipt without a position")
        self.world.external.receipt(
            self.name, receipt.topic, receipt.kind, receipt.position, receipt.first, receipt.last
        )

    def _failed(self, failed: ev.PublishFailed) -> None:
        """Handle a publication that failed. Raise Violation for a code that cannot occur here, and publish a final one
        again."""
        key = failed.ticket
        assert isinstance(key, Key)
        if failed.code not in FINAL and not (failed.code == "id_reused" and key.topic in self.misused):
            raise Violation(7, f"{key} is refused: {failed.code} {failed.text}")
        if failed.code == "outcome_unknown" and key not in self.unknown:
            raise Violation(7, f"{key} is refused after it was sent before: {failed.text}")
        if not key.id:
            return
        self.world.coverage["given up"] += 1
        self.world.coverage["outcome unknown"] += failed.code == "outcome_unknown"
        again = key in self.final
        self._settle(key)
        if again:
            self.publish(key.topic, final=True)

    def _settle(self, key: Key) -> None:
        """Note that nobody waits for the answer to a publication any more."""
        if key in self.waiting[key.topic]:
            self.waiting[key.topic].remove(key)
        self.final.discard(key)
        self.unknown.discard(key)

    # ---- connections

    def _dial(self, dial: ev.Dial) -> None:
        link = self.links[dial.link] = ClientLink(dial.link, self.codec)
        world = self.world
        world.scheduler.after(self.random.uniform(1.0, 3.0) * world.options.client_delay, self._connect, link, dial.url)

    def _connect(self, link: ClientLink, url: str) -> None:
        """Connect a link to the process at `url`, unless the client has given it up. Without a process, the connection
        is refused."""
        if link.number not in self.links:
            return
        process = self.world.process_at(url)
        if process is None:
            self._lost(link, 1006, "refused")
        else:
            process.run(self._accepted, link, process)

    def _accepted(self, link: ClientLink, process: object) -> None:
        """Give a new connection to a random edge of the process. Do nothing if the client has given the link up, or the
        broker has no edge."""
        from migratory_simulation.process import Process

        assert isinstance(process, Process)
        if link.number not in self.links or not process.edges:
            return
        edge = self.random.choice(process.edges)
        link.connection = Connection(self.world, self, link, edge)
        if self.stalled:
            link.connection.stall()
        self.world.scheduler.after(self.world.options.client_delay, self._established, link)

    def _established(self, link: ClientLink) -> None:
        if link.number in self.links:
            self.step(ev.Connected(link.number))

    def connection_data(self, connection: Connection, data: bytes) -> None:
        """Parse bytes from the broker, check the messages as they were on the wire, and pass them to the core. Answer
        pings, and end the link at a close frame."""
        link = connection.link
        if link.number not in self.links:
            return
        for event in link.parser.feed(data):
            if isinstance(event, frames.MessageReceived):
                messages = link.codec.decode_broker(event.data)
                self._check_wire(link, messages)
                self.step(ev.Received(link.number, messages))
            elif isinstance(event, frames.PingReceived):
                connection.to_edge(frames.encode_frame(frames.PONG, event.data, MASK))
                self.step(ev.Received(link.number, []))
            elif isinstance(event, frames.CloseReceived):
                self.world.coverage[f"closed with {event.code}"] += 1
                connection.close_by_client()
                self._lost(link, event.code or 1005, event.reason)
                return

    def connection_closed(self, connection: Connection) -> None:
        self._lost(connection.link, 1006, "the connection was reset")

    def _lost(self, link: ClientLink, code: int, reason: str) -> None:
        if self.links.pop(link.number, None) is not None:
            self.step(ev.Disconnected(link.number, code, reason))

    def _write(self, link: ClientLink, message: wire.ClientMessage) -> None:
        if link.connection is not None:
            opcode = frames.BINARY if link.codec.binary else frames.TEXT
            link.connection.to_edge(frames.encode_frame(opcode, link.codec.encode(message), MASK))

    # ---- messages on the wire

    @staticmethod
    def _note_request(link: ClientLink, message: wire.ClientMessage) -> None:
        """Record from which positions a subscribe request asks to resume, and where it asks for snapshots."""
        if isinstance(message, wire.Subscribe):
            link.snapshots[message.request] = {topic.topic for topic in message.topics if topic.snapshot}
            link.asked[message.request] = {
                topic.topic: topic.after if isinstance(topic.after, Position) else None for topic in message.topics
            }

    def _check_wire(self, link: ClientLink, messages: list[wire.BrokerMessage]) -> None:
        """Check a broker's messages as they were on the wire, before the core sees them. Raise Violation for a wrong
        one."""
        for message in messages:
            if isinstance(message, wire.Message):
                self._check_message(link, message)
            elif isinstance(message, wire.Subscribed):
                for receipt in message.topics:
                    if receipt.receipt is not None and receipt.position is not None:
                        self._check_receipt(link, message.request, receipt, receipt.position)
            elif isinstance(message, (wire.Ack, wire.Nack)):
                self._check_misuse(link, message)
                if isinstance(message, wire.Nack) and message.code == "outcome_unknown":
                    self._check_unknown(message)
            elif isinstance(message, wire.Unsubscribed):
                for topic in message.topics:
                    link.topics.pop(topic, None)

    def _check_unknown(self, nack: wire.Nack) -> None:
        """Check that a publication of this client that waits is committed when a broker refuses it with
        `outcome_unknown`. Raise Violation otherwise. The core ends publications with this code for other refusals as
        well, which do not occur here."""
        key = Key(nack.publisher, nack.topic, nack.id)
        if key in self.waiting.get(key.topic, ()):  # a publication of another client does not wait here
            self.unknown.add(key)
            if key.topic not in self.misused:
                self.world.external.forgotten(key, self.world.internal.is_committed(key))

    def _check_message(self, link: ClientLink, message: wire.Message) -> None:
        """Check that a publication follows directly on the connection's position in the topic, and advance that
        position. Raise Violation otherwise."""
        stands = link.topics.get(message.topic)
        where = f"{self.name} link {link.number} {message.topic}"
        if stands is None:
            return  # in flight during an unsubscribe
        position, before = message.position, stands.position
        if stands.snapshot and position == before:
            stands.snapshot = False
            return
        if position <= before:
            raise Violation(2, f"{where}: {position} sent after {before}")
        first = message.first or position.sequence
        if first != before.sequence + 1 or first > position.sequence:
            raise Violation(2, f"{where}: {position} from {first} on sent after {before}: an unreported gap")
        stands.position = position

    def _check_receipt(self, link: ClientLink, request: int, receipt: wire.TopicReceipt, position: Position) -> None:
        """Check a receipt against the request or, if it is no answer (`request` is 0), against the connection's
        position. Set the connection's position in the topic from it. Raise Violation if they do not agree."""
        topic, where = receipt.topic, f"{self.name} link {link.number} {receipt.topic}"
        external = self.world.external
        external.named_current(where, topic, position)
        if request:
            after = link.asked.get(request, {}).get(topic)
        else:
            stands = link.topics.get(topic)
            if stands is None:
                raise Violation(2, f"{where}: {receipt.receipt} for a topic without a subscription")
            after = stands.position
        if receipt.receipt == "truncated":
            if after is None or receipt.first != after.sequence + 1 or receipt.last < receipt.first:
                raise Violation(2, f"{where}: truncated {receipt.first}..{receipt.last} after {after}")
            link.topics[topic] = WireTopic(Position(after.epoch, receipt.last))
        elif receipt.receipt == "complete" and after is not None:
            if not self._same(topic, after, position):
                raise Violation(2, f"{where}: complete at {position}, of another history than {after}")
            if position < after:
                raise Violation(2, f"{where}: complete at {position}, behind {after}")
            link.topics[topic] = WireTopic(after)
        else:
            if receipt.receipt == "reset" and not request and after is not None and self._same(topic, after, position):
                raise Violation(2, f"{where}: reset from {after} to {position}, unasked, in one history")
            asked = receipt.receipt == "complete" and topic in link.snapshots.get(request, ())
            link.topics[topic] = WireTopic(position, asked)

    def _same(self, topic: str, one: Position, other: Position) -> bool:
        """Return whether both positions of a topic belong to one history."""
        external = self.world.external
        return external.history_of(topic, one.epoch) == external.history_of(topic, other.epoch)
