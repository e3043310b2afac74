"""One process of a broker: a real `Logic` and real `Edge`s, and the execution of their effects.

Events come one at a time, and each turn ends with a `Flush`. A frozen process buffers its events and handles them in
order when it thaws; a slow one delays each event. A process that hangs is frozen, but its ZooKeeper session lives and
its watchdog runs. An edge runs in the logic's process or, as an I/O process, behind a delay of its own; then it gets
only topics that it asked for. It may be killed and replaced by an edge with a new number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, get_args

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.edge.core import Edge
from migratory_broker.core.edge.subscriptions import TopicInterest
from migratory_broker.core.logic import events as logic_events
from migratory_broker.core.logic.context import InvariantError
from migratory_broker.core.logic.logic import Logic
from migratory_broker.core.logic.replication.replica import Replica
from migratory_broker.core.logic.replication.topic_log import TopicLog
from migratory_broker.runtime.watchdog import WATCH_INTERVAL, LoopProgress, stall_limit
from migratory_protocol.messages import Ack
from migratory_protocol.peer import (
    BrokerId,
    EpochRefused,
    ForwardReplies,
    Promise,
    Publication,
    decode_peer,
    encode_peer,
)
from migratory_protocol.positions import Position

from migratory_simulation.external_checker import Violation, key_of
from migratory_simulation.network import End
from migratory_simulation.progress_checker import ProgressChecker
from migratory_simulation.receipt_checker import ReceiptChecker
from migratory_simulation.zookeeper import ZkClient

if TYPE_CHECKING:
    from migratory_simulation.connections import Connection
    from migratory_simulation.world import World

TICK = 0.1
"""Virtual seconds between two ticks of the logic."""
LOGIC_REQUESTS = (*get_args(edge_events.LogicRequest), edge_events.Detach)
PROBING_EDGE = -1
"""The number of an edge that does not exist, which asks for subscriptions from made-up positions."""
_FLUSH = logic_events.Flush()
_TICK = logic_events.Tick()


class EdgeProcess:
    """An edge from its start to its end. Its `number` is not used again in the process. `delay` is the mean time of a
    message between logic and edge in seconds, 0 for an edge in the logic's process."""

    def __init__(self, process: Process, number: int, delay: float) -> None:
        self.process = process
        self.number = number
        self.delay = delay
        self.running = True
        self.core = Edge(process.world.edge_config(process.name, process.incarnation), number)
        self.connections: dict[int, Connection] = {}
        self._last_in = self._last_out = 0.0

    def to_edge(self, effect: logic_events.EdgeEffect) -> None:
        """Deliver an effect of the logic to the edge, in order, after the edge's delay."""
        if self.delay == 0.0:
            self.step(effect)
            return
        scheduler = self.process.world.scheduler
        self._last_in = max(self._last_in, scheduler.now + self.process.world.random.uniform(0.2, 1.8) * self.delay)
        scheduler.at(self._last_in, self.process.run, self.step, effect)

    def step(self, event: edge_events.Event) -> None:
        """Let the edge handle an event and execute its effects. Do nothing if the edge or the process has ended."""
        if not self.running or not self.process.running:
            return
        process = self.process
        for effect in self.core.step(event, process.world.scheduler.now + process.offset):
            if isinstance(effect, edge_events.Multicast):
                for number in effect.recipients.connections:
                    connection = self.connections.get(number)
                    if connection is not None:
                        connection.to_client(effect.data)
            elif isinstance(effect, edge_events.Send):
                connection = self.connections.get(effect.connection)
                if connection is not None:
                    connection.to_client(effect.data)
            elif isinstance(effect, edge_events.Close):
                connection = self.connections.pop(effect.connection, None)
                if connection is not None:
                    connection.closed_by_broker(effect.abort)
            elif isinstance(effect, LOGIC_REQUESTS):
                self._to_logic(effect)
            elif isinstance(effect, edge_events.More):
                scheduler = self.process.world.scheduler
                scheduler.at(scheduler.now, self.process.run, self.step, effect)
            elif isinstance(effect, edge_events.Later):
                process.world.coverage["batches" if process.world.options.batch_delay else "intervals"] += 1
                scheduler = self.process.world.scheduler
                at = max(scheduler.now, effect.at - process.offset)
                scheduler.at(at, self.process.run, self.step, effect)
            elif not isinstance(effect, edge_events.Hold):  # the simulation keeps reading: the edge must tolerate it
                self.process.observe(effect)

    def _to_logic(self, event: edge_events.LogicRequest | edge_events.Detach) -> None:
        """Deliver a request of the edge to the logic, in order, after the edge's delay."""
        scheduler = self.process.world.scheduler
        self._last_out = max(self._last_out, scheduler.now + self.process.world.random.uniform(0.2, 1.8) * self.delay)
        # Scheduled, as the effects of the logic's current step come first.
        scheduler.at(self._last_out, self.process.run, self._arrived, event)

    def _arrived(self, event: edge_events.LogicRequest | edge_events.Detach) -> None:
        """Let the logic handle a request of the edge. Add the edge's interest in a topic at an `Attach`; at a `Detach`
        only remove it. Do nothing if the edge has ended."""
        if not self.running:
            return
        if isinstance(event, edge_events.Detach):
            self.process.interest.remove(event.edge, event.topic)
            return
        if isinstance(event, logic_events.Attach):
            self.process.interest.add(event.edge, event.topic)
            self.process.receipts.asks(event)
        self.process.step(event)

    def hears(self, effect: logic_events.EdgeEffect) -> bool:
        """Return whether this edge gets an effect of the logic. An I/O process gets fan-outs and gaps only of topics
        that it asked for."""
        if self.delay == 0.0 or not isinstance(effect, (logic_events.Fanout, logic_events.Gap)):
            return True
        return self.number in self.process.interest.edges_of(effect.topic)

    def stop(self, *, abort: bool) -> None:
        """End the edge and its connections. With `abort` their clients may lose bytes in flight."""
        self.running = False
        self.process.interest.remove_edge(self.number)
        for connection in list(self.connections.values()):
            connection.closed_by_broker(abort)
        self.connections.clear()


class Process:
    """A broker process. `number` is unique in the run; `name` is the broker's and shared by its later processes.
    Creating it starts it."""

    def __init__(self, world: World, number: int, name: str) -> None:
        random = world.random
        self.world = world
        self.number = number
        self.name = name
        self.label = f"{name}#{number}"
        self.address = f"{name}.{number}:1"
        self.running = True
        self.frozen = False
        self.hung = False  # frozen, while its other threads run
        self.slow = 0.0  # seconds per event
        self.started = world.scheduler.now
        self.offset = random.uniform(10.0, 5000.0)
        self.wall_skew = random.uniform(-0.2, 0.2) + world.wall_skews.get(name, 0.0)
        self.logic = Logic(world.logic_config(name, self.address))
        self.stall_limit = stall_limit(self.logic.config.session_timeout, self.logic.config.fencing)
        self._progress = LoopProgress(self.local_now())
        self.wanted: dict[str, tuple[int, str]] = {}
        self.confirmed: dict[str, int] = {}  # incarnations that ZooKeeper has named
        self.admission = logic_events.Admission(False, "learning")
        self.servers: logic_events.ServerList | None = None
        self.fenced = False
        self.draining = False
        self.receipts = ReceiptChecker(self)
        self.progress = ProgressChecker(self)
        self.interest = TopicInterest()
        self.replaced = False  # a newer process of this name was started while this one runs
        self._ticks = 0
        self._busy_until = 0.0
        self._backlog: deque[tuple[object, tuple[object, ...]]] = deque()
        self._flush_due = False
        self._next_edge = 0
        self._probes = 0
        self.edges: list[EdgeProcess] = []
        for _ in range(world.options.edges):
            self.add_edge()
        self.step(logic_events.Start(world.wall_ms(self), random.getrandbits(63)))
        self.zk = ZkClient(world.ensemble, self._from_zookeeper, lambda: self.hung or not self.frozen, random)
        self.zk.delay = world.options.zookeeper_delay
        self.zk.lag = world.options.zookeeper_lag
        world.scheduler.after(random.uniform(0.0, TICK), self._tick)

    # ---- state

    @property
    def incarnation(self) -> int:
        """Return the broker's incarnation, -1 before it has registered."""
        return self.logic.ctx.incarnation or -1

    @property
    def identity(self) -> BrokerId:
        return self.name, self.incarnation

    def replica(self, group: int) -> Replica:
        return self.logic.groups[group].replica

    def log(self, topic: str) -> TopicLog | None:
        return self.replica(self.world.external.group_of[topic]).topics.get(topic)

    @property
    def connections(self) -> list[Connection]:
        """Return the connections of clients at all edges."""
        return [connection for edge in self.edges for connection in edge.connections.values()]

    @property
    def clients(self) -> int:
        """The number of connections of clients at all edges."""
        return sum(len(edge.connections) for edge in self.edges)

    def local_now(self) -> float:
        """Return the time of the process's own monotonic clock, in seconds."""
        return self.world.scheduler.now + self.offset

    def wants(self, other: End) -> bool:
        """Return whether the logic wants a link to the other process."""
        entry = self.wanted.get(other.name)
        return entry is not None and isinstance(other, Process) and entry[1] == other.address

    def confirms(self, other: End) -> bool:
        """Return whether ZooKeeper has named the other process's incarnation to this one, and no newer one."""
        return self.confirmed.get(other.name) == other.incarnation

    # ---- events

    def run(self, action: object, *arguments: object) -> None:
        """Run an action as this process: now, later if it is slow, or when it thaws. Do nothing if it has ended."""
        if not self.running:
            return
        if self.frozen:
            self._backlog.append((action, arguments))
            return
        if self.slow or self._busy_until > self.world.scheduler.now:
            self._busy_until = max(self._busy_until, self.world.scheduler.now) + self.slow
            self.world.scheduler.at(self._busy_until, self._run_now, action, arguments)
            return
        action(*arguments)  # type: ignore[operator]

    def _run_now(self, action: object, arguments: tuple[object, ...]) -> None:
        if self.frozen:
            self._backlog.append((action, arguments))
        elif self.running:
            action(*arguments)  # type: ignore[operator]

    def step(self, event: logic_events.Event) -> None:
        """Let the logic handle an event, check the result, and execute its effects. Do nothing if the process has
        ended. Raise Violation if an invariant breaks."""
        if not self.running:
            return
        world = self.world
        world.steps += 1
        if world.tracing:
            world.trace(self.label, "<-", event)
        effects = self.logic.step(event, world.scheduler.now + self.offset)
        if event is not _FLUSH:  # a flush only sends earlier results
            world.internal.after_step(self)
        if type(event) is logic_events.ZkReply:
            world.internal.heard(self)
        elif event is _TICK:
            self.progress.ticked()
        for effect in effects:
            self._execute(effect)
            if not self.running:
                return  # it crashed between two effects
        if event is not _FLUSH and not self._flush_due and self.logic.has_output:
            self._flush_due = True
            world.scheduler.after(world.random.random() * 0.002, self.run, self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        self.step(_FLUSH)

    def _tick(self) -> None:
        """Let logic and edges check their time limits, and schedule the next tick. A frozen process misses its
        ticks."""
        if not self.running:
            return
        if not self.frozen:
            self.run(self.step, _TICK)
            self._ticks += 1
            if self._ticks % 4 == 0:  # an edge's shortest limit is a second
                for edge in self.edges:
                    self.run(edge.step, _TICK)
        self.world.scheduler.after(TICK, self._tick)

    def _from_zookeeper(self, answer: logic_events.ZkReply | logic_events.ZkChanged | logic_events.ZkSession) -> None:
        self.run(self.step, answer)

    def peer_up(self, peer: str, incarnation: int) -> None:
        self.run(self.step, logic_events.PeerUp(peer, incarnation))

    def peer_down(self, peer: str) -> None:
        self.run(self.step, logic_events.PeerDown(peer))

    def peer_refused(self, peer: str, incarnation: int) -> None:
        self.run(self.step, logic_events.PeerRefused(peer, incarnation))

    def peer_received(self, peer: str, data: bytes) -> None:
        self.run(self._peer_received, peer, data)

    def _peer_received(self, peer: str, data: bytes) -> None:
        message = decode_peer(data)
        if isinstance(message, Promise):
            self.world.internal.answered(self, message)
        self.step(logic_events.PeerReceived(peer, (message,)))

    # ---- effects

    def _execute(self, effect: logic_events.Effect) -> None:
        """Check an effect of the logic, and execute it: on the network, ZooKeeper or the edges. Raise Violation for one
        that breaks an invariant, and InvariantError if the logic refuses a message of a peer."""
        world = self.world
        if isinstance(effect, logic_events.SendPeer):
            if isinstance(effect.message, ForwardReplies):
                world.coverage["duplicates answered"] += sum(not reply.code for reply in effect.message.replies)
            elif isinstance(effect.message, EpochRefused):
                self.progress.refuses(effect.message)
            if world.tracing:
                world.trace(self.label, "->", effect)
            world.network.send(self, effect.peer, encode_peer(effect.message))
            if world.injector.ambushes:
                world.injector.passing(self, type(effect.message).__name__, effect.peer)
            return
        if world.tracing:
            world.trace(self.label, "=>", effect)
        if isinstance(effect, logic_events.Observe):
            self.observe(effect)
        elif isinstance(effect, logic_events.Fanout):
            self._shows(effect.topic, effect.publications)
            self._to_edges(effect)
        elif isinstance(effect, (logic_events.Attached, logic_events.Page, logic_events.PublishAnswers)):
            if isinstance(effect, logic_events.Page):
                world.coverage["pages"] += 1
            self._check_answer(effect)
            for edge in self.edges:
                if edge.number == effect.edge:
                    edge.to_edge(effect)
        elif isinstance(effect, (logic_events.ZkGet, logic_events.ZkChildren, logic_events.ZkCommit)):
            if isinstance(effect, logic_events.ZkCommit):
                self.progress.commits(effect)
            self.zk.request(effect)
            if world.injector.ambushes and isinstance(effect, logic_events.ZkCommit):
                world.injector.passing(self, "ZkCommit", "")
        elif isinstance(effect, logic_events.ConnectPeers):
            self.wanted = dict(effect.peers)
            self.confirmed.update((name, incarnation) for name, (incarnation, _) in effect.peers.items())
            world.network.close_unwanted(self)
        elif isinstance(effect, logic_events.RefusePeer):
            raise InvariantError(f"{self.label} refuses a message of {effect.peer}: {effect.text}")
        elif isinstance(effect, logic_events.Stop):
            world.coverage["stops"] += 1
            self.world.scheduler.after(0.0, world.process_ends, self, f"stop: {effect.reason}")
        elif isinstance(effect, logic_events.Note):
            self.observe(effect)
        else:
            if isinstance(effect, logic_events.Admission):
                if effect.reason == "fenced" and self.admission.reason != "fenced":
                    world.coverage["fences"] += 1
                self.admission = effect
                if effect.open:
                    world.internal.ready(self)
            elif isinstance(effect, logic_events.ServerList):
                self.servers = effect
            elif isinstance(effect, logic_events.Gap):
                world.coverage["live gaps"] += 1
                if effect.receipt == "truncated":
                    self.receipts.truncated(effect)
            elif isinstance(effect, logic_events.DrainClients):
                self.progress.drains_clients(effect)
            self._to_edges(effect)

    def _check_answer(self, effect: logic_events.Attached | logic_events.Page | logic_events.PublishAnswers) -> None:
        """Check an answer of the logic to an edge's request, and count it, before the edge gets it. Raise Violation for
        a wrong one."""
        internal = self.world.internal
        if isinstance(effect, logic_events.PublishAnswers):
            self.progress.answered(effect.answers)
            for answer in effect.answers:
                if isinstance(answer, Ack):
                    internal.acknowledged(self, answer.topic, answer.publisher, answer.id, answer.position)
                else:
                    self.world.coverage["gap answers" if answer.code == "gap" else f"{answer.code} answers"] += 1
            return
        self._shows(effect.topic, effect.publications)
        if isinstance(effect, logic_events.Attached):
            self.world.coverage["resumes"] += 1
            internal.named_current(self, effect.topic, effect.position)
            self.receipts.attached(effect)
        elif effect.receipt == "truncated":
            self.receipts.truncated(effect)

    def _shows(self, topic: str, publications: Iterable[Publication]) -> None:
        """Check that the publications which the broker shows as committed are committed. Raise Violation otherwise."""
        world = self.world
        for publication in publications:
            if world.external.shown(self.label, topic, publication.position, publication.payload):
                world.internal.shown(self, topic, publication.position, key_of(publication.payload))

    def observe(self, effect: edge_events.Effect | logic_events.Effect) -> None:
        """Count a note or metric. Raise Violation for a note that reports a fault of the broker."""
        if isinstance(effect, logic_events.Note):
            self.world.coverage[f"note {effect.event}"] += 1
            self.progress.noted(effect)
            if effect.event == "record_written":
                self.world.coverage[f"record {effect.fields['reason']}"] += 1
            if effect.event == "history_lost_halted":
                self.world.halts(self, int(str(effect.fields["group"])))
            if effect.event.startswith("unreported") or effect.event == "entries_without_source":
                # The edge repairs it for its clients; it is still a mistake of the logic.
                raise Violation(2, f"{self.label}: {effect.event} {effect.fields}")
        elif not isinstance(effect, logic_events.Observe):
            raise TypeError(f"no handler for {effect}")
        elif not effect.metric.endswith(("seconds", "bytes")):
            self.world.coverage[f"metric {effect.metric}"] += 1

    def _to_edges(self, effect: logic_events.EdgeEffect) -> None:
        """Deliver an effect of the logic to all edges that get it."""
        for edge in self.edges:
            if isinstance(effect, logic_events.MoveClients) and effect.edge != edge.number:
                continue
            if edge.hears(effect):
                edge.to_edge(effect)

    # ---- edges and faults

    def add_edge(self) -> EdgeProcess:
        """Start and return an edge, and send it the broker's admission and server list."""
        edge = EdgeProcess(self, self._next_edge, self.world.options.edge_delay)
        self._next_edge += 1
        self.edges.append(edge)
        # As the runtime does with a new I/O process.
        edge.to_edge(self.admission)
        if self.servers is not None:
            edge.to_edge(self.servers)
        return edge

    def restart_edge(self, index: int) -> None:
        """Kill the edge at this index with its connections, and start another one."""
        edge = self.edges.pop(index)
        edge.stop(abort=True)
        self.run(self.step, logic_events.ClientCounts(edge.number))
        self.add_edge()

    def drop_clients(self) -> bool:
        """Break the connections of all clients. Return False when there are none."""
        connections = self.connections
        for connection in connections:
            connection.cut()
        return bool(connections)

    def freeze(self) -> None:
        """Stop the whole process until `thaw`, as SIGSTOP does: its events are buffered, and it sends no heartbeats to
        ZooKeeper."""
        self._turn()
        self.frozen = True

    def hang(self) -> None:
        """Stop the event loop only, until `thaw` or until the watchdog ends the process. The ZooKeeper session
        lives."""
        self._turn()
        self.frozen = self.hung = True
        self.world.scheduler.after(WATCH_INTERVAL, self._watch)

    def thaw(self) -> None:
        """End a freeze or hang: handle the buffered events and go on. End the process instead if it was frozen for
        longer than the watchdog allows. Do nothing if it is not frozen."""
        if not self.frozen or not self.running:
            return
        if not self.hung and self._hangs():  # the watchdog may run before the loop
            self._end_hung()
            return
        self.frozen = self.hung = False
        self._turn()
        backlog, self._backlog = self._backlog, deque()
        for action, arguments in backlog:
            self._run_now(action, arguments)
        self.run(self.step, _TICK)

    def _turn(self) -> None:
        """Note a turn of the event loop, as the watchdog sees it."""
        self._progress.turn()
        self._progress.observe(self.local_now())

    def _hangs(self) -> bool:
        """Return whether the event loop has stood still for longer than the watchdog allows."""
        return self._progress.observe(self.local_now()) > self.stall_limit

    def _watch(self) -> None:
        """Check the loop as the watchdog's thread does: end the process if it hangs for too long, otherwise check
        again later. Where a safe plan forbids the end, thaw."""
        if not self.running or not self.hung:
            return
        if not self._hangs():
            self.world.scheduler.after(WATCH_INTERVAL, self._watch)
        elif self.world.options.plan.safe and not self.world.internal.may_lose(self):
            self.thaw()  # at the last moment
        else:
            self._end_hung()

    def _end_hung(self) -> None:
        self.world.coverage["hung processes ended"] += 1
        self.world.process_ends(self, "its loop hung", restart=0.5 * self.world.options.tempo)

    def drain(self, period: float) -> None:
        """Begin a planned stop that may last `period` seconds."""
        self.draining = True
        self.run(self._drain, logic_events.DrainRequest(period))

    def _drain(self, request: logic_events.DrainRequest) -> None:
        self.progress.drains(request.period)
        self.step(request)

    def probe(self, topic: str, after: Position) -> None:
        """Ask for a subscription from any position, as a client may, for an edge that does not exist. The answer is
        checked and dropped."""
        self._probes += 1
        event = logic_events.Attach(PROBING_EDGE, self._probes, topic, after)
        self.receipts.asks(event)
        self.step(event)

    def end(self) -> None:
        """End the process at once, with its memory, edges, links and connection to ZooKeeper. Its session is left to
        expire."""
        self.running = False
        for edge in self.edges:
            edge.stop(abort=True)
        self.zk.close()
        self.world.network.remove(self)
