"""A small cluster without time: messages are delivered in an order that the caller chooses (`exhaust.py`).

The cores are the production ones, and `internal_checker.py` checks them after every step, as in a whole simulation.
Edges, client connections and random delays are left out, as they would only multiply states. Time stands still while
anything is in flight and advances by one tick when nothing is. So the clock never distinguishes two orders, and runs
that differ in nothing else reach the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, cast

from migratory_broker.core.logic import events as ev
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.logic import Logic
from migratory_protocol.messages import Ack, Nack
from migratory_protocol.peer import ForwardedPublication, Heartbeat, decode_peer, encode_peer
from migratory_testing.zookeeper_tree import children, parent_of

from migratory_simulation import final_checks
from migratory_simulation.coverage import Coverage
from migratory_simulation.external_checker import ExternalChecker, Key, Violation, key_of
from migratory_simulation.internal_checker import InternalChecker
from migratory_simulation.options import draw_options
from migratory_simulation.plans import Plan
from migratory_simulation.scheduler import Scheduler
from migratory_simulation.zookeeper import Ensemble, Session

if TYPE_CHECKING:
    from migratory_simulation.process import Process
    from migratory_simulation.world import World

TICK = 0.1
"""Virtual seconds by which time advances."""
TOPIC = "t0"
PUBLISHER = "p"
WALL = 1_700_000_000_000
DOWN = b""
"""The entry of a link's queue that reports the end of the link."""
BOUND = 30.0
"""Virtual seconds within which a run must be done."""

TEMPO = 0.25
"""The factor of the product's time limits."""
SCALED = (
    "session_timeout",
    "fencing",
    "progress_timeout",
    "bootstrap_wait",
    "resume_wait",
    "resume_limit",
    "heartbeat",
    "publish_wait",
    "publish_retry_after",
    "relist_delay",
    "balance_every",
    "refresh_interval",
)

Ask = ev.ZkGet | ev.ZkChildren | ev.ZkCommit
Answer = ev.ZkReply | ev.ZkChanged | ev.ZkSession

Choice = tuple[str, ...]
"""The next event: ("link", from, to), ("ask", broker), ("answer", broker) or ("publish",)."""


class Node:
    """One process of a broker: a production `Logic`, and the messages to and from it that are in flight."""

    def __init__(
        self,
        number: int,
        name: str,
        brokers: tuple[str, ...],
        copies: int,
        session: Session,
        local_now: Callable[[], float],
    ) -> None:
        self.number = number
        self.name = name
        self.label = f"{name}#{number}"
        self.running = True
        self.draining = False
        self.frozen = False
        self.admission = ev.Admission(False, "learning")
        self.wanted: dict[str, tuple[int, str]] = {}
        self.asks: deque[tuple[int, Ask]] = deque()
        self.answers: deque[tuple[int, Answer]] = deque()
        self.watches: set[tuple[str, bool]] = set()  # path, and whether it watches the children
        self.suspended = False
        self.steps = 0
        self.session = session
        self.local_now = local_now
        base = LogicConfig("small", name, brokers, min_copies=copies, groups=1)
        self.logic = Logic(
            replace(
                base, url=f"ws://{name}", peer=self.label, **{field: getattr(base, field) * TEMPO for field in SCALED}
            )
        )

    @property
    def incarnation(self) -> int:
        return InternalChecker.incarnation(self.logic)


class UntimedCluster:
    """Brokers with one topic. Publications go through the last of them. Unless `safe`, more than `copies - 1` of a
    list may be lost, and the history with them."""

    def __init__(self, brokers: int, copies: int, publications: int, restart: bool, safe: bool = True) -> None:
        names = tuple(f"b{number}" for number in range(brokers))
        drawn = draw_options(1, "short")
        self.options = replace(drawn, brokers=names, topics=(TOPIC,), groups=1, min_copies=copies, plan=Plan(safe, ()))
        self.on_history_loss = "reset"
        self.restart = restart
        self.coverage = Coverage()
        self.now = 0.0
        self.order = 0  # a number for each message in flight
        self.steps = 0
        self.processes: list[Node] = []
        self.links: dict[tuple[str, str], deque[tuple[int, bytes]]] = {}  # (from, to); both directions exist or neither
        self.ensemble = Ensemble(Scheduler(), Random(0), 4.0 * TEMPO)
        self.external = ExternalChecker(self.coverage)
        self.external.group_of[TOPIC] = 0
        self.internal = InternalChecker(cast("World", self))
        self.ensemble.on_commit.append(self._watched)
        self._there = set(self.ensemble.nodes)
        self._expiries: list[tuple[float, int]] = []  # sessions of crashed brokers
        self._later: list[tuple[str, str]] = []  # actions for when nothing is in flight: (action, broker)
        self._sink: Callable[[str], None] | None = None
        # the publisher
        self.contact = names[-1]
        self.waiting: list[int] = []
        self.outbox: deque[tuple[int, int]] = deque()  # (order, id)
        self._resend_at = 0.0
        self._left = publications
        for name in names:
            self.start(name)

    # ---- interface for the internal checker

    @property
    def time(self) -> float:
        return self.now

    def running(self) -> list[Node]:
        return [node for node in self.processes if node.running]

    def trace(self, who: str, how: str, what: object) -> None:
        if self._sink is not None:
            self._sink(f"{self.now:7.2f} {who:<10} {how} {what!r:.400}")

    def tell(self, sink: Callable[[str], None]) -> None:
        self._sink = sink

    # ---- brokers

    def node(self, name: str) -> Node | None:
        return next((node for node in self.processes if node.running and node.name == name), None)

    def start(self, name: str) -> None:
        options = self.options
        node = Node(
            len(self.processes), name, options.brokers, options.min_copies, self.open_session(), lambda: self.now
        )
        self.processes.append(node)
        self.trace(node.label, "**", "starts")
        self.step(node, ev.Start(WALL + int(self.now * 1000), node.number))
        self._answer(node, ev.ZkSession("connected", node.session.number))

    def step(self, node: Node, event: ev.Event) -> None:
        self.steps += 1
        node.steps += 1
        quiet = isinstance(event, (ev.Tick, ev.Flush))
        if not quiet:
            self.trace(node.label, "<-", event)
        effects = node.logic.step(event, self.now)
        self.internal.after_step(cast("Process", node))
        for effect in effects:
            self._execute(node, effect)
        if not isinstance(event, ev.Flush):
            self.step(node, ev.Flush())

    def _execute(self, node: Node, effect: ev.Effect) -> None:
        if isinstance(effect, ev.SendPeer):
            queue = self.links.get((node.name, effect.peer))
            if queue is not None:
                if not isinstance(effect.message, Heartbeat):
                    self.trace(node.label, f"-> {effect.peer}", effect.message)
                queue.append((self._next(), encode_peer(effect.message)))
        elif isinstance(effect, (ev.ZkGet, ev.ZkChildren, ev.ZkCommit)):
            if node.suspended:
                self._answer(node, ev.ZkReply(effect.request, "unknown"))
            else:
                node.asks.append((self._next(), effect))
        elif isinstance(effect, ev.ConnectPeers):
            node.wanted = dict(effect.peers)
        elif isinstance(effect, ev.Fanout):
            for publication in effect.publications:
                self.trace(node.label, "=>", publication)
                if self.external.shown(node.label, effect.topic, publication.position, publication.payload):
                    key = key_of(publication.payload)
                    self.internal.shown(cast("Process", node), effect.topic, publication.position, key)
        elif isinstance(effect, ev.PublishAnswers):
            self.trace(node.label, "=>", effect)
            for answer in effect.answers:
                self._answered(node, answer)
        elif isinstance(effect, ev.Admission):
            node.admission = effect
        elif isinstance(effect, ev.Stop):
            raise Violation(0, f"{node.label} stops: {effect.reason}")

    def _next(self) -> int:
        self.order += 1
        return self.order

    # ---- messages in flight

    def choices(self) -> list[Choice]:
        """Return the possible next events, the longest in flight first."""
        heads: list[tuple[int, Choice]] = []
        for (source, target), queue in self.links.items():
            if queue:
                heads.append((queue[0][0], ("link", source, target)))
        for node in self.processes:
            if node.running:
                if node.asks:
                    heads.append((node.asks[0][0], ("ask", node.name)))
                if node.answers:
                    heads.append((node.answers[0][0], ("answer", node.name)))
        if self.outbox:
            heads.append((self.outbox[0][0], ("publish",)))
        return [choice for _, choice in sorted(heads)]

    def take(self, choice: Choice) -> None:
        """Execute one of the possible next events."""
        if choice[0] == "publish":
            self._publish(self.outbox.popleft()[1])
            return
        if choice[0] == "link":
            self._deliver(choice[1], choice[2])
            return
        node = self.node(choice[1])
        assert node is not None
        if choice[0] == "answer":
            self.step(node, node.answers.popleft()[1])
        else:
            self._answer(node, self._asked(node, node.asks.popleft()[1]))

    def idle(self, choice: Choice) -> bool:
        """Return whether the order of an event does not matter: a heartbeat, or a broker's read of its own node."""
        if choice[0] == "link":
            data = self.links[choice[1], choice[2]][0][1]
            return data != DOWN and isinstance(decode_peer(data), Heartbeat)
        node = self.node(choice[1]) if choice[0] in ("ask", "answer") else None
        if node is None or choice[0] == "answer":
            return False
        ask = node.asks[0][1]
        return isinstance(ask, ev.ZkGet) and ask.path == f"/brokers/{node.name}" and len(node.asks) == 1

    def _deliver(self, source: str, target: str) -> None:
        data = self.links[source, target].popleft()[1]
        node = self.node(target)
        if node is None:
            return
        if data == DOWN:
            self._unlink(source, target)
            self.step(node, ev.PeerDown(source))
        else:
            self.step(node, ev.PeerReceived(source, (decode_peer(data),)))

    def _unlink(self, one: str, other: str) -> None:
        self.links.pop((one, other), None)
        self.links.pop((other, one), None)

    # ---- ZooKeeper

    def open_session(self) -> Session:
        self.ensemble._next_session += 1
        session = Session(self.ensemble._next_session, None, self.now)
        self.ensemble.sessions[session.number] = session
        return session

    def _answer(self, node: Node, answer: Answer) -> None:
        node.answers.append((self._next(), answer))

    def _asked(self, node: Node, ask: Ask) -> ev.ZkReply:
        if isinstance(ask, ev.ZkCommit):
            return self.ensemble.commit(node.session, ask)
        stored = self.ensemble.nodes.get(ask.path)
        if stored is None:
            return ev.ZkReply(ask.request, "ok")
        if ask.watch:
            node.watches.add((ask.path, isinstance(ask, ev.ZkChildren)))
        if isinstance(ask, ev.ZkGet):
            return ev.ZkReply(ask.request, "ok", node=ev.ZkNode(stored.data, stored.version, stored.owner))
        return ev.ZkReply(ask.request, "ok", children=children(self.ensemble.nodes, ask.path))

    def _watched(self, path: str, data: bytes | None, version: int) -> None:
        came_or_went = (path in self._there) != (data is not None)
        (self._there.discard if data is None else self._there.add)(path)
        parent = parent_of(path)
        for node in self.processes:
            for watch in ((path, False), (path, True), (parent, True)) if came_or_went else ((path, False),):
                if watch in node.watches and node.running:
                    node.watches.discard(watch)
                    self._answer(node, ev.ZkChanged(watch[0]))

    # ---- faults

    def crash(self, name: str, lost: bool) -> None:
        """End a process. What it sent arrives, or is `lost`."""
        node = self.node(name)
        assert node is not None
        self.trace(node.label, "**", f"crash{', all that it sent is lost' if lost else ''}")
        node.running = False
        self.internal.process_ended(cast("Process", node))
        self._expiries.append((self.now + 4.0 * TEMPO, node.session.number))
        for (source, target), queue in list(self.links.items()):
            if self.node(source) is None and self.node(target) is None:
                del self.links[source, target]  # both ends are gone
            elif source == name:
                if lost:
                    queue.clear()
                queue.append((self._next(), DOWN))
            elif target == name:
                queue.clear()
        if self.restart:
            self._later.append(("start", name))

    def break_link(self, one: str, other: str) -> None:
        """Reset a link: its messages are lost, and both ends are notified."""
        self.trace("network", "**", f"{one} and {other}: reset")
        for pair in ((one, other), (other, one)):
            self.links[pair].clear()
            self.links[pair].append((self._next(), DOWN))
        # Each end is notified at its own time; a new link is made after both.

    def expire(self, name: str) -> None:
        """Expire a session. Its broker learns of it at once and gets another session later."""
        node = self.node(name)
        assert node is not None
        self.trace(node.label, "**", "its session expires")
        self._disconnect(node)
        self.ensemble.expire(node.session.number)
        self._later.append(("new session", name))

    def lose_replies(self, name: str, carried_out: bool) -> None:
        """Break the connection to ZooKeeper under requests that were executed, or were not."""
        node = self.node(name)
        assert node is not None
        self.trace(node.label, "**", f"loses its connection; requests were {'' if carried_out else 'not '}carried out")
        if carried_out:
            for _, ask in node.asks:
                if isinstance(ask, ev.ZkCommit):
                    self.ensemble.commit(node.session, ask)
        self._disconnect(node)
        self._later.append(("connect", name))

    def _disconnect(self, node: Node) -> None:
        node.suspended = True
        node.watches.clear()
        lost = [ask.request for _, ask in node.asks]
        lost += [answer.request for _, answer in node.answers if isinstance(answer, ev.ZkReply)]
        node.asks.clear()
        node.answers.clear()
        self._answer(node, ev.ZkSession("suspended", node.session.number))
        for request in sorted(lost):
            self._answer(node, ev.ZkReply(request, "unknown"))

    # ---- the publisher

    def begin(self) -> None:
        """Publish everything at once."""
        for number in range(1, self._left + 1):
            self.waiting.append(number)
            self.external.publishes(Key(PUBLISHER, TOPIC, number), self.now)
        self._send_all()

    def publisher(self) -> tuple[object, ...]:
        """Return the state of the publisher, for comparing states."""
        return self.contact, self.waiting, self._resend_at, self._left, self._later, self._expiries

    def _send_all(self) -> None:
        self.outbox = deque((self._next(), number) for number in self.waiting)
        self._resend_at = self.now + 2.0 * TEMPO

    def _publish(self, number: int) -> None:
        node = self.node(self.contact)
        if node is not None and number in self.waiting:
            payload = Key(PUBLISHER, TOPIC, number).payload
            publication = ForwardedPublication(TOPIC, payload, 1, PUBLISHER, number, self.waiting[0])
            self.step(node, ev.PublishRequest(0, 1, [publication]))

    def _answered(self, node: Node, answer: Ack | Nack) -> None:
        if isinstance(answer, Ack):
            self.internal.acknowledged(
                cast("Process", node), answer.topic, answer.publisher, answer.id, answer.position
            )
            if answer.id in self.waiting:
                key = Key(PUBLISHER, TOPIC, answer.id)
                self.external.acknowledges(key, answer.position, self.internal.is_committed(key))
                self.waiting.remove(answer.id)
        elif answer.code not in ("retry", "gap"):
            raise Violation(7, f"{node.label} refuses id {answer.id}: {answer.code} {answer.text}")

    # ---- time

    def advance(self) -> None:
        """Advance the clock by a tick; call this only when nothing is in flight."""
        self.now = round(self.now + TICK, 6)
        later, self._later = self._later, []
        for what, name in later:
            node = self.node(name)
            if what == "start":
                self.start(name)
            elif node is not None:
                node.suspended = False
                if what == "new session":
                    node.session = self.open_session()
                    self._answer(node, ev.ZkSession("lost"))
                self._answer(node, ev.ZkSession("connected", node.session.number))
        for when, number in list(self._expiries):
            if when <= self.now:
                self._expiries.remove((when, number))
                self.trace("zookeeper", "**", f"session {number} expires")
                self.ensemble.expire(number)
        self._connect()
        for node in self.running():
            self.step(node, ev.Tick())
        if self.waiting and self.now >= self._resend_at:
            contact = self.node(self.contact)
            if contact is None or not contact.admission.open:
                names = [node.name for node in self.running() if node.admission.open]
                self.contact = names[0] if names else self.contact
            self._send_all()

    def _connect(self) -> None:
        running = self.running()
        for index, low in enumerate(running):
            for high in running[index + 1 :]:
                wanted = low.wanted.get(high.name, (0, ""))[1] == high.label
                wanted = wanted or high.wanted.get(low.name, (0, ""))[1] == low.label
                if wanted and (low.name, high.name) not in self.links and low.incarnation > 0 < high.incarnation:
                    self.links[low.name, high.name] = deque()
                    self.links[high.name, low.name] = deque()
                    self.step(low, ev.PeerUp(high.name, high.incarnation))
                    self.step(high, ev.PeerUp(low.name, low.incarnation))

    @property
    def ready(self) -> bool:
        """Return whether every broker that should run accepts clients."""
        running = self.running()
        return all(node.admission.open for node in running) and (
            len(running) == len(self.options.brokers) or not self.restart
        )

    @property
    def done(self) -> bool:
        """Return whether everything is answered and every broker has committed the end of the topic (0 in a new
        history)."""
        if self.waiting or not self.ready or self._later or self._expiries:
            return False
        committed = self.internal.committed.get((TOPIC, self.internal.latest[0].first))
        last = 0 if committed is None else committed.last
        logs = [node.logic.groups[0].replica.topics.get(TOPIC) for node in self.running()]
        return all((0 if log is None else log.committed) == last for log in logs)

    def check_time(self) -> None:
        """Raise a violation when the run takes too long."""
        if self.now > BOUND:
            raise Violation(
                7,
                f"not done after {self.now:.1f} s; ids {self.waiting} wait\n"
                + final_checks.describe(cast("World", self)),
            )
