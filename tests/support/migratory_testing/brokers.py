"""Several logics in memory, connected by perfect peer links and a ZooKeeper that answers at once: for tests of single
rules.

Time moves only in `run`. Every peer message is encoded and decoded. A test may hold messages (`hold`), cut links,
crash and restart brokers, expire sessions, and disconnect ZooKeeper. Random faults belong to the simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from migratory_broker.core.logic import events as ev
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.logic import Logic
from migratory_broker.core.logic.membership.records import GroupRecord, decode_group
from migratory_broker.core.logic.replication.topic_log import TopicLog
from migratory_protocol.messages import Ack
from migratory_protocol.peer import (
    ClientLoad,
    ForwardedPublication,
    ForwardReply,
    Heartbeat,
    PeerMessage,
    Publication,
    decode_peer,
    encode_peer,
)
from migratory_protocol.positions import Position

from migratory_testing.zookeeper_tree import Store

WALL_MS = 0
"""The wall clock of every start, in milliseconds. Zero: incarnations count from 1, unless a test sets `wall_ms`."""


class CommitRecorder:
    """A listener of a single replica that records committed publications and ignores all other calls."""

    def __init__(self) -> None:
        self.publications: list[Publication] = []

    def committed(self, group: int, log: TopicLog, publications: list[Publication]) -> None:
        self.publications += publications

    def reply(self, contact: str | None, reply: ForwardReply) -> None:
        pass

    def synced(self, group: int) -> None:
        pass

    def activated(self, group: int, epoch: int, coordinator: str) -> None:
        pass


E = TypeVar("E")
M = TypeVar("M")


def both_ends(one: str, other: str) -> tuple[str, str]:
    """Return the two names in alphabetical order: the key of a link or cut, the same from either end."""
    return (one, other) if one <= other else (other, one)


@dataclass
class Broker:
    """A broker of the test cluster: its logic, its ZooKeeper session, and all effects that the logic emitted so far.
    `wanted` are the peers to which it wants links. `zookeeper` is True while it is connected to ZooKeeper."""

    name: str
    logic: Logic
    session: int
    effects: list[ev.Effect] = field(default_factory=list)
    wanted: dict[str, tuple[int, str]] = field(default_factory=dict)
    confirmed: dict[str, int] = field(default_factory=dict)  # incarnations that ZooKeeper has named
    running: bool = True
    zookeeper: bool = True
    lacks: set[str] = field(default_factory=set)  # nodes that its ZooKeeper server lacks until the broker writes them

    def of(self, kind: type[E]) -> list[E]:
        """Return the effects of a kind that the broker emitted so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def notes(self, event: str) -> list[ev.Note]:
        """Return the log notes with this event that the broker emitted so far."""
        return [note for note in self.of(ev.Note) if note.event == event]


class Cluster:
    """A cluster in the test's own thread: the logic of several brokers, their links and a ZooKeeper, all under the
    test's clock `now`, in seconds. Creating it starts no broker.

    `hold` decides by sender, receiver and message which peer messages are held back in `held`. `unknown`, `lost` and
    `unread` decide which of ZooKeeper's replies are lost. `sent` has all peer messages so far, and `config` are fields
    of the brokers' `LogicConfig`.
    """

    def __init__(self, names: tuple[str, ...] = ("a", "b", "c"), groups: int = 1, **config: object) -> None:
        self.names = names
        self.groups = groups
        self.config = {"session_timeout": 4.0, **config}
        self.now = 10.0
        self.wall_ms = WALL_MS
        self.store = Store()
        self.brokers: dict[str, Broker] = {}
        self.links: set[tuple[str, str]] = set()
        self.cuts: set[tuple[str, str]] = set()
        self.hold: Callable[[str, str, PeerMessage], bool] = lambda sender, receiver, message: False
        self.held: list[tuple[str, str, PeerMessage]] = []
        self.unknown: Callable[[str, ev.ZkCommit], bool] = lambda broker, commit: False  # executed, reply lost
        self.lost: Callable[[str, ev.ZkCommit], bool] = lambda broker, commit: False  # not executed, reply lost
        self.unread: Callable[[str, str], bool] = lambda broker, path: False  # a read of that path, reply lost
        self.answers: dict[int, ForwardReply] = {}  # the last answer by the request's reference
        self.sent: list[tuple[str, str, PeerMessage]] = []
        self._queue: deque[tuple[Broker, ev.Event]] = deque()
        self._session = 100
        self._reference = 0

    # ---- brokers ---------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Broker:
        return self.brokers[name]

    def logic(self, name: str) -> Logic:
        return self.brokers[name].logic

    def start(self, *names: str) -> None:
        """Queue the start of these brokers, all by default, each with a new ZooKeeper session. `run` or `settle`
        handles it."""
        for name in names or self.names:
            config = LogicConfig("test", name, self.names, f"ws://{name}", name, groups=self.groups, **self.config)  # type: ignore[arg-type]
            self._session += 1
            self.brokers[name] = Broker(name, Logic(config), self._session)
            self.give(name, ev.Start(self.wall_ms, self._session))
            self.give(name, ev.ZkSession("connected", self._session))

    def up(self, seconds: float = 3.0) -> Cluster:
        """Start all brokers, run for `seconds`, and return the cluster. Raise AssertionError if one of them is not
        ready then."""
        self.start()
        self.run(seconds)
        assert all(broker.logic.membership.ready for broker in self.brokers.values())
        return self

    def crash(self, name: str, *, expire: bool = True) -> None:
        """Stop a broker: drop its queued events, close its links and notify its peers. Expire its session unless
        `expire` is false."""
        broker = self.brokers[name]
        broker.running = False
        self._queue = deque((other, event) for other, event in self._queue if other is not broker)
        for one, other in sorted(self.links):
            if name in (one, other):
                self.disconnect(one, other)
        if expire:
            self.store.expire(broker.session)
            self._watches()

    def restart(self, name: str) -> None:
        """Crash a broker, expire its session, and queue its start as a new incarnation."""
        self.crash(name)
        self.start(name)

    # ---- links -----------------------------------------------------------------------------------------------

    def disconnect(self, one: str, other: str) -> None:
        """Close the link of two brokers, if there is one: drop its messages in transit, and notify both. The next `run`
        may connect them again; `cut` prevents that."""
        pair = both_ends(one, other)
        if pair in self.links:
            self.links.discard(pair)
            self._queue = deque(
                (to, event)
                for to, event in self._queue
                if not (isinstance(event, ev.PeerReceived) and {to.name, event.peer} == {one, other})
            )
            for me, peer in (pair, pair[::-1]):
                self.give(me, ev.PeerDown(peer))

    def cut(self, one: str, other: str) -> None:
        """Close the link of two brokers and keep it closed until `heal`."""
        self.cuts.add(both_ends(one, other))
        self.disconnect(one, other)

    def isolate(self, name: str) -> None:
        """Cut a broker from all others."""
        for other in self.names:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        """Remove all cuts, and connect the running brokers again."""
        self.cuts.clear()
        self._connect()

    def _connect(self) -> None:
        """Connect each pair of running brokers that want a link, know each other's incarnation, and are not cut off."""
        running = {name: broker for name, broker in self.brokers.items() if broker.running}
        for name, broker in running.items():
            for peer, (incarnation, _) in broker.wanted.items():
                pair = both_ends(name, peer)
                other = running.get(peer)
                if (
                    other is None
                    or pair in self.cuts
                    or pair in self.links
                    or not broker.logic.incarnation
                    or other.logic.incarnation != incarnation
                    or other.confirmed.get(name) != broker.logic.incarnation
                ):
                    continue
                self.links.add(pair)
                self.give(name, ev.PeerUp(peer, incarnation))
                self.give(peer, ev.PeerUp(name, broker.logic.incarnation))

    # ---- ZooKeeper -------------------------------------------------------------------------------------------

    def expire(self, name: str) -> None:
        """Expire the ZooKeeper session of a broker, notify the broker, and connect it with a new session."""
        broker = self.brokers[name]
        self.store.expire(broker.session)
        self._watches()
        self._session += 1
        broker.session = self._session
        self.give(name, ev.ZkSession("lost"))
        self.give(name, ev.ZkSession("connected", broker.session))

    def zookeeper(self, there: bool, *names: str) -> None:
        """Connect these brokers (all by default) to ZooKeeper if `there` is true, or disconnect them."""
        for name in names or tuple(self.brokers):
            broker = self.brokers[name]
            broker.zookeeper = there
            if broker.running:
                self.give(name, ev.ZkSession("connected", broker.session) if there else ev.ZkSession("suspended"))

    def record(self, group: int = 0) -> GroupRecord:
        """Return the ZooKeeper record of a group."""
        return decode_group(self.store.nodes[f"/groups/{group}"].data)

    def _zookeeper(self, broker: Broker, effect: ev.ZkGet | ev.ZkChildren | ev.ZkCommit) -> None:
        """Execute a request of a broker on the store and queue its reply. The reply is `unknown` if the broker is not
        connected, or the test lets it be lost. Then queue the fired watches."""
        commit = effect if isinstance(effect, ev.ZkCommit) else None
        reply = ev.ZkReply(effect.request, "unknown")
        if broker.zookeeper and not self._goes_lost(broker.name, effect):
            answer = self._lacking(broker, effect, self.store.answer(broker.name, broker.session, effect))
            if commit is None or not self.unknown(broker.name, commit):
                reply = answer
        self._queue.append((broker, reply))
        self._watches()

    @staticmethod
    def _lacking(broker: Broker, effect: ev.ZkGet | ev.ZkChildren | ev.ZkCommit, answer: ev.ZkReply) -> ev.ZkReply:
        """Return the answer as a ZooKeeper server gives it that has not yet seen the nodes in `broker.lacks`. A write
        of the broker makes it see them."""
        if isinstance(effect, ev.ZkCommit):
            if answer.outcome == "ok":
                broker.lacks.difference_update(operation.path for operation in effect.operations)
            return answer
        if isinstance(effect, ev.ZkGet):
            return ev.ZkReply(answer.request, "ok") if effect.path in broker.lacks else answer
        there = tuple(name for name in answer.children or () if f"{effect.path}/{name}" not in broker.lacks)
        return ev.ZkReply(answer.request, answer.outcome, children=None if answer.children is None else there)

    def _goes_lost(self, broker: str, effect: ev.ZkGet | ev.ZkChildren | ev.ZkCommit) -> bool:
        return self.lost(broker, effect) if isinstance(effect, ev.ZkCommit) else self.unread(broker, effect.path)

    def _watches(self) -> None:
        """Queue the fired watches for the running brokers that are connected to ZooKeeper. For all others they are
        lost."""
        fired, self.store.fired = self.store.fired, []
        for name, path in fired:
            other = self.brokers.get(name)
            if other is not None and other.running and other.zookeeper:
                self._queue.append((other, ev.ZkChanged(path)))

    def messages(self, sender: str, kind: type[M]) -> list[tuple[str, M]]:
        """Return (receiver, message) of each message of a kind that a broker sent so far, also of those that were
        dropped because there was no link."""
        return [(to, message) for by, to, message in self.sent if by == sender and isinstance(message, kind)]

    def hears_load(self, name: str, peer: str, load: ClientLoad | None) -> None:
        """Deliver to the broker `name` a heartbeat of `peer` that reports `load`, even while the test holds messages,
        and handle all queued events."""
        hold, self.hold = self.hold, lambda sender, receiver, message: False
        self._execute(self[peer], ev.SendPeer(name, Heartbeat(0.0, [], [], True, True, load)))
        self.settle()
        self.hold = hold

    # ---- time and events -------------------------------------------------------------------------------------

    def give(self, name: str, event: ev.Event) -> None:
        """Queue an event for a broker; `run` or `settle` handles it."""
        self._queue.append((self.brokers[name], event))

    def step(self, name: str, event: ev.Event) -> list[ev.Effect]:
        """Step the broker's logic with one event now, execute the effects and return them. Unlike `settle`, do not step
        it with `Flush` afterwards."""
        broker = self.brokers[name]
        effects = broker.logic.step(event, self.now)
        broker.effects.extend(effects)
        for effect in effects:
            self._execute(broker, effect)
        return effects

    def next_event(self) -> tuple[str, ev.Event]:
        """Remove and return the oldest queued event and its broker, for a test that stops in the middle of `settle`."""
        broker, event = self._queue.popleft()
        return broker.name, event

    def settle(self) -> None:
        """Handle all queued events in order until there are none, each followed by a `Flush`. Drop those of brokers
        that do not run. Raise AssertionError when it does not end."""
        for _ in range(200_000):
            if not self._queue:
                return
            broker, event = self._queue.popleft()
            if broker.running:
                self.step(broker.name, event)
                if not isinstance(event, ev.Flush):
                    self.step(broker.name, ev.Flush())
        raise AssertionError("the brokers do not settle")

    def run(self, seconds: float) -> None:
        """Handle all queued events, then let `seconds` of the cluster's clock pass: every 0.1 s, connect the brokers
        that want a link, tick each running broker and handle all events."""
        end = self.now + seconds - 1e-9
        self.settle()
        while self.now < end:
            self.now = round(self.now + 0.1, 6)
            self._connect()
            for name in sorted(self.brokers):
                if self.brokers[name].running:
                    self.give(name, ev.Tick())
            self.settle()

    def _execute(self, broker: Broker, effect: ev.Effect) -> None:
        """Execute an effect of a broker's logic: deliver or hold a message, ask ZooKeeper, change links, record an
        answer, or stop the broker. Ignore other effects."""
        if isinstance(effect, ev.SendPeer):
            pair = both_ends(broker.name, effect.peer)
            message = decode_peer(encode_peer(effect.message))
            self.sent.append((broker.name, effect.peer, message))
            if pair not in self.links:
                return
            if self.hold(broker.name, effect.peer, message):
                self.held.append((broker.name, effect.peer, message))
            else:
                self.give(effect.peer, ev.PeerReceived(broker.name, (message,)))
        elif isinstance(effect, (ev.ZkGet, ev.ZkChildren, ev.ZkCommit)):
            self._zookeeper(broker, effect)
        elif isinstance(effect, ev.ConnectPeers):
            broker.wanted = dict(effect.peers)
            broker.confirmed.update((peer, incarnation) for peer, (incarnation, _) in effect.peers.items())
            for peer in self.names:
                if peer not in broker.wanted and peer != broker.name:
                    other = self.brokers.get(peer)
                    if other is None or broker.name not in other.wanted:
                        self.disconnect(broker.name, peer)
            self._connect()
        elif isinstance(effect, ev.PublishAnswers):
            for answer in effect.answers:
                told = (answer.topic, answer.publisher, answer.id)
                if isinstance(answer, Ack):
                    self.answers[effect.reference] = ForwardReply(*told, "", answer.position)
                else:
                    self.answers[effect.reference] = ForwardReply(
                        *told, answer.code, None, answer.text, answer.retry_after or 0.0
                    )
        elif isinstance(effect, ev.RefusePeer):
            self.disconnect(broker.name, effect.peer)  # `run` connects them again
        elif isinstance(effect, ev.Stop):
            self.crash(broker.name, expire=False)

    def release(self) -> None:
        """Stop holding messages, and deliver those that are held in order, except those whose links are closed. Handle
        all queued events."""
        self.hold = lambda sender, receiver, message: False
        held, self.held = self.held, []
        for sender, receiver, message in held:
            if both_ends(sender, receiver) in self.links:
                self.give(receiver, ev.PeerReceived(sender, (message,)))
        self.settle()

    # ---- clients ---------------------------------------------------------------------------------------------

    def publish(
        self,
        name: str,
        topic: str,
        payload: str,
        publisher: str = "p",
        id: int = 0,
        mark: int | None = None,
    ) -> int:
        """Publish at the broker `name`: with QoS 1 if there is an `id`, whose default mark is the id, otherwise with
        QoS 0.

        Handle all queued events. Return the reference under which `answers` has the answer, once there is one.
        """
        self._reference += 1
        publication = ForwardedPublication(
            topic,
            payload.encode(),
            1 if id else 0,
            publisher if id else "",
            id,
            id if mark is None else mark,
        )
        self.give(name, ev.PublishRequest(0, self._reference, [publication]))
        self.settle()
        return self._reference

    def attach(
        self,
        name: str,
        topic: str,
        after: tuple[int, int] | None = None,
        *,
        snapshot: bool = False,
        max_bytes: int = 65536,
        wait: float = 0.0,
    ) -> ev.Attached | None:
        """Subscribe at the broker `name` to the publications after the position `after`, and run for `wait` seconds.
        Return the answer, or None if there is none yet. `max_bytes` limits the first page of the replay."""
        self._reference += 1
        position = None if after is None else Position(*after)
        self.give(name, ev.Attach(0, self._reference, topic, position, snapshot, max_bytes))
        self.run(wait) if wait else self.settle()
        found = [attached for attached in self[name].of(ev.Attached) if attached.reference == self._reference]
        return found[0] if found else None

    def page(self, name: str, topic: str, after: tuple[int, int], max_bytes: int = 65536) -> ev.Page:
        """Request the page of a replay that begins after the position `after`, and return it."""
        self._reference += 1
        effects = self.step(name, ev.NextPage(0, self._reference, topic, Position(*after), max_bytes))
        (page,) = [effect for effect in effects if isinstance(effect, ev.Page)]
        return page

    def delivered(self, name: str, topic: str) -> list[tuple[int, str]]:
        """Return (sequence number, payload) of each publication of a topic that the broker's logic passed to its
        edges so far."""
        return [
            (publication.sequence, publication.payload.decode())
            for fanout in self[name].of(ev.Fanout)
            if fanout.topic == topic
            for publication in fanout.publications
        ]

    def coordinators(self, group: int = 0) -> list[str]:
        """Return the running brokers that consider themselves the group's coordinator; one that is cut off may be
        among them."""
        return [
            name
            for name, broker in self.brokers.items()
            if broker.running and (term := broker.logic.groups[group].term) is not None and term.active
        ]

    def coordinator(self, group: int = 0) -> str:
        """Return the group's coordinator. Raise AssertionError unless exactly one running broker considers itself
        coordinator."""
        names = self.coordinators(group)
        assert len(names) == 1, names
        return names[0]

    def others(self, group: int = 0) -> list[str]:
        """Return the names of all brokers, running or not, except the group's coordinator."""
        return [name for name in self.names if name != self.coordinator(group)]

    def running(self) -> list[str]:
        """Return the names of the running brokers."""
        return [name for name, broker in self.brokers.items() if broker.running]

    def fenced(self) -> list[str]:
        """Return the names of the running brokers that have fenced themselves."""
        return [name for name in self.running() if self.logic(name).ctx.fenced]
