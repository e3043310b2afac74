"""A model of a ZooKeeper ensemble and of its client library, as the logic sees both.

It keeps the rules of the real one. Requests and answers of a session are in order. A watch fires once, before any
answer that shows the change; it is set only by a read that found its node, and is gone with the connection. A
transaction is all or nothing. Sessions expire in whole ticks, only while a majority of servers runs, and get their
whole time again from a new leader; a client learns of the expiry only when it reaches the ensemble again. Reads come
from the server that the client is connected to: they may be stale, but never older than what this client has seen or
written. When a connection ends, requests in flight end as `unknown`: a prefix of them is executed, perhaps after the
client got that outcome, but never after it has connected again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from migratory_broker.core.logic.events import (
    ZkChanged,
    ZkCheck,
    ZkChildren,
    ZkCommit,
    ZkGet,
    ZkNode,
    ZkReply,
    ZkSession,
)
from migratory_testing.zookeeper_tree import Refused, Stored, children, parent_of, staged

from migratory_simulation.scheduler import Scheduler

Request = ZkGet | ZkChildren | ZkCommit
Answer = ZkReply | ZkChanged | ZkSession


@dataclass(slots=True)
class Session:
    """A client's session at the ensemble; `heard` is the moment of its last heartbeat. `client` is None once the
    client's process has ended."""

    number: int
    client: ZkClient | None
    heard: float


class Ensemble:
    """The servers as one. `on_commit` callbacks get every committed change: (path, data or None when deleted,
    version)."""

    def __init__(self, scheduler: Scheduler, random: Random, session_timeout: float, tick: float = 0.5) -> None:
        self.tick = tick
        self.scheduler = scheduler
        self.random = random
        self.session_timeout = session_timeout
        self.available = True
        self.nodes: dict[str, Stored] = {"/": Stored(b"", 0, 0)}
        self.sessions: dict[int, Session] = {}
        self.clients: list[ZkClient] = []
        self.on_commit: list[Callable[[str, bytes | None, int], None]] = []
        self.backups: deque[tuple[float, dict[str, Stored], set[int]]] | None = None
        """The last states of the data: (moment, nodes, sessions). None: none are made."""
        self._next_session = 1000
        scheduler.after(self.tick, self._tick)

    # ---- sessions

    def open_session(self, client: ZkClient) -> Session:
        """Begin a session for a client and return it."""
        self._next_session += 1
        session = Session(self._next_session, client, self.scheduler.now)
        self.sessions[session.number] = session
        return session

    def set_available(self, available: bool) -> None:
        """Set whether a majority of the servers runs. A new leader gives every session its whole time again."""
        if available == self.available:
            return
        self.available = available
        if available:
            for session in self.sessions.values():
                session.heard = self.scheduler.now
        for client in list(self.clients):
            client.reachability_changed()

    def keep_backups(self) -> None:
        """Make a backup of the data at each tick from now on, while a majority of the servers runs. The last 60 seconds
        of them are kept."""
        self.backups = deque(maxlen=int(60.0 / self.tick))

    def lose_data(self, age: float | None) -> None:
        """Replace the data by a backup that is at least `age` seconds old, or by none. Call it while the servers do not
        run: no client notices before it connects again. Sessions that the backup does not have are gone."""
        nodes: dict[str, Stored] = {"/": Stored(b"", 0, 0)}
        sessions: set[int] = set()
        for moment, old, numbers in reversed(self.backups or ()):
            if age is not None and self.scheduler.now - moment >= age:
                nodes, sessions = dict(old), numbers
                break
        self.nodes = nodes
        now = self.scheduler.now
        clients = {client.session.number: client for client in self.clients if client.session is not None}
        self.sessions = {number: Session(number, clients.get(number), now) for number in sessions}
        for client in self.clients:
            client.data_replaced()

    def expire(self, number: int) -> None:
        """End a session: delete its ephemerals and fire watches. Disconnect its client, which learns of the end when it
        connects again."""
        session = self.sessions.pop(number, None)
        if session is None:
            return
        for path in [path for path, node in self.nodes.items() if node.owner == number]:
            del self.nodes[path]
            self._changed(path, None)
        if session.client is not None:
            session.client.session_gone(number)

    def _tick(self) -> None:
        """Note the heartbeats of sessions, expire those that were silent for too long, and make a backup if that is
        wanted. While the servers do not run, do nothing."""
        now = self.scheduler.now
        if self.backups is not None and self.available:
            self.backups.append((now, dict(self.nodes), set(self.sessions)))
        if self.available:
            for number, session in list(self.sessions.items()):
                if session.client is not None and session.client.heartbeats(number):
                    session.heard = now
                elif now - session.heard > self.session_timeout:
                    self.expire(number)
        self.scheduler.after(self.tick, self._tick)

    # ---- requests at the servers

    def commit(self, session: Session, request: ZkCommit) -> ZkReply:
        """Execute a transaction, or refuse it as a whole. Return the reply."""
        try:
            changes, versions = staged(self.nodes, session.number, request.operations)
        except Refused as refusal:
            return ZkReply(request.request, "refused", error=str(refusal))
        for path, stored in changes.items():
            if stored is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = stored
        for operation in request.operations:
            if not isinstance(operation, ZkCheck):
                self._changed(operation.path, changes[operation.path])
        return ZkReply(request.request, "ok", versions=versions)

    def _changed(self, path: str, stored: Stored | None) -> None:
        """Tell each client's server and each `on_commit` callback that a node has changed."""
        for client in self.clients:
            client.replicate(path, stored)
        for notify in self.on_commit:
            notify(path, None if stored is None else stored.data, -1 if stored is None else stored.version)


class ZkClient:
    """A model of the ZooKeeper client library in one broker process. It passes its events to `deliver`, in order.
    `alive` returns whether the process runs. `cut`, `delay` and `lag` are set by faults."""

    def __init__(
        self, ensemble: Ensemble, deliver: Callable[[Answer], None], alive: Callable[[], bool], random: Random
    ) -> None:
        self.ensemble = ensemble
        self.scheduler = ensemble.scheduler
        self.random = random
        self.deliver = deliver
        self.alive = alive  # False while the process is frozen: it sends no heartbeats then
        self.cut = False  # only this process cannot reach the ensemble
        self.delay = 0.002
        self.lag = 0.0  # seconds by which the server that this client is connected to is behind
        self.connected = False
        self.closed = False
        self.session: Session | None = None
        self.lost_replies = 0
        self.served_at = float("-inf")  # when a request was last carried out
        self._generation = 0
        self._under_way: list[Request] = []  # sent and not yet answered, in order
        self._carried_out: set[int] = set()
        self._late_allowed: set[int] = set()
        self._last_send = 0.0
        self._last_answer = 0.0
        self._seen: dict[str, Stored] = {}  # the nodes as that server has them
        self._to_come: deque[tuple[str, Stored | None]] = deque()
        self._data_watches: set[str] = set()
        self._child_watches: set[str] = set()
        ensemble.clients.append(self)
        self.scheduler.after(random.uniform(0.001, 0.05), self._try_connect, 0)

    # ---- called by the process

    def request(self, request: Request) -> None:
        """Send a request, whose answer comes later. Without a connection its outcome is `unknown`."""
        if not self.connected:
            # The library refuses at once, but the process may only learn that the outcome is unknown.
            self.scheduler.after(0.0, self._deliver_if_open, ZkReply(request.request, "unknown"))
            return
        self._under_way.append(request)
        self._last_send = max(self._last_send, self.scheduler.now + self.random.uniform(0.3, 1.7) * self.delay)
        self.scheduler.at(self._last_send, self._arrive, self._generation, request)

    def close(self) -> None:
        """Close the connection because the process has ended. Its session is left to expire."""
        self.closed = True
        self.connected = False
        self._generation += 1
        if self.session is not None:
            self.session.client = None
        self.ensemble.clients.remove(self)

    def heartbeats(self, number: int) -> bool:
        """Return whether the client keeps this session alive: it is connected with it, and its process runs."""
        return self.connected and self.alive() and self.session is not None and self.session.number == number

    def expire_session(self) -> bool:
        """Let the ensemble end the session. Return False when there is none."""
        if self.session is None:
            return False
        self.ensemble.expire(self.session.number)
        return True

    def set_cut(self, cut: bool) -> None:
        self.cut = cut
        self.reachability_changed()

    def lose_connection(self) -> None:
        """Break the connection under requests in flight, which end as `unknown`. The client connects again by itself,
        soon. Do nothing without a connection."""
        if self.connected:
            self._disconnect()
            self.scheduler.after(self.random.uniform(0.01, 0.6), self._try_connect, self._generation)

    # ---- called by the ensemble

    @property
    def reachable(self) -> bool:
        return self.ensemble.available and not self.cut and not self.closed

    def reachability_changed(self) -> None:
        """Disconnect if the ensemble cannot be reached any more, or connect again, soon, if it can."""
        if not self.reachable and self.connected:
            self._disconnect()
        if self.reachable and not self.connected:
            self.scheduler.after(self.random.uniform(0.01, 0.4), self._try_connect, self._generation)

    def data_replaced(self) -> None:
        """Forget the nodes that the client's last server had, because the ensemble's data was replaced."""
        self._seen = {}
        self._to_come.clear()
        self._late_allowed.clear()

    def session_gone(self, number: int) -> None:
        """Disconnect because the session expired at the servers."""
        if self.closed or self.session is None or self.session.number != number or not self.connected:
            return
        self._disconnect()
        self.scheduler.after(self.random.uniform(0.005, 0.2), self._try_connect, self._generation)

    def answer_later(self, answer: Answer) -> None:
        """Send an answer or event to the client, after the earlier ones. It is lost if the connection ends before."""
        if self.connected:
            self._last_answer = max(self._last_answer, self.scheduler.now + self.random.uniform(0.3, 1.7) * self.delay)
            self.scheduler.at(self._last_answer, self._answer, self._generation, answer)

    def replicate(self, path: str, stored: Stored | None) -> None:
        """Queue a change for the server of this client. The server applies it at once or after its lag; while the
        client is disconnected, not before it connects again."""
        self._to_come.append((path, stored))
        if not self.connected:
            return  # the next server has at least what this client has seen
        if self.lag:
            self.scheduler.after(self.random.random() * self.lag, self._apply, self._generation, len(self._to_come))
        else:
            self._apply(self._generation, len(self._to_come))

    def _apply(self, generation: int, count: int) -> None:
        """Apply at most `count` pending changes in order, and fire watches."""
        if generation != self._generation:
            return
        for _ in range(min(count, len(self._to_come))):
            path, stored = self._to_come.popleft()
            before = self._seen.get(path)
            if stored is None:
                self._seen.pop(path, None)
            else:
                self._seen[path] = stored
            if path in self._data_watches:
                self._data_watches.discard(path)
                self.answer_later(ZkChanged(path))
            if (before is None) != (stored is None):
                parent = parent_of(path)
                for watched in (parent, path) if stored is None else (parent,):
                    if watched in self._child_watches:
                        self._child_watches.discard(watched)
                        self.answer_later(ZkChanged(watched))

    def _execute(self, session: Session, request: Request) -> ZkReply:
        """Execute a request at the server of this client, set the watch that it asks for, and return the reply."""
        if isinstance(request, ZkCommit):
            reply = self.ensemble.commit(session, request)
            self._apply(self._generation, len(self._to_come))  # it sees its own write, and so everything before it
            return reply
        node = self._seen.get(request.path)
        if node is None:
            return ZkReply(request.request, "ok")
        if isinstance(request, ZkGet):
            if request.watch:
                self._data_watches.add(request.path)
            return ZkReply(request.request, "ok", node=ZkNode(node.data, node.version, node.owner))
        if request.watch:
            self._child_watches.add(request.path)
        return ZkReply(request.request, "ok", children=children(self._seen, request.path))

    def _try_connect(self, generation: int) -> None:
        """Connect if the ensemble can be reached: with the old session, or with a new one if that has expired, which is
        reported first. Do nothing if the client connected or disconnected since this was scheduled. A frozen process
        tries again later."""
        if generation != self._generation or not self.reachable or self.connected:
            return
        if not self.alive():
            self.scheduler.after(0.2, self._try_connect, generation)
            return
        self._generation += 1
        self._late_allowed.clear()
        self.connected = True
        if self.session is not None and self.session.number not in self.ensemble.sessions:
            self.session = None
            self._deliver_if_open(ZkSession("lost"))
        if self.session is None:
            self.session = self.ensemble.open_session(self)
        self.session.heard = self.scheduler.now
        if not self._seen:
            self._seen = dict(self.ensemble.nodes)
            self._to_come.clear()
        elif self.lag:
            self.scheduler.after(self.random.random() * self.lag, self._apply, self._generation, len(self._to_come))
        else:
            self._apply(self._generation, len(self._to_come))
        self._deliver_if_open(ZkSession("connected", self.session.number))

    def _disconnect(self) -> None:
        """End the connection: drop its watches, report that the session is suspended, and end the requests in flight as
        `unknown`. A random prefix of those that have not arrived may still be executed."""
        self.connected = False
        self._generation += 1
        session = self.session
        # Some libraries report lost watches as changes, some do not: the logic must handle both.
        watched = sorted(self._data_watches | self._child_watches)
        self._data_watches.clear()
        self._child_watches.clear()
        if self.random.random() < 0.5:
            for path in watched:
                self._deliver_if_open(ZkChanged(path))
        lost, self._under_way = self._under_way, []
        not_yet = [request for request in lost if request.request not in self._carried_out]
        self._late_allowed = {request.request for request in not_yet[: self.random.randint(0, len(not_yet))]}
        self._carried_out.clear()
        self._deliver_if_open(ZkSession("suspended", session.number if session is not None else 0))
        for request in lost:
            self.lost_replies += 1
            self._deliver_if_open(ZkReply(request.request, "unknown"))

    def _arrive(self, generation: int, request: Request) -> None:
        """Execute a request that has arrived at the servers, and send the answer. A request of an ended connection is
        executed without an answer, if it was chosen for that."""
        session = self.session
        if session is None or session.number not in self.ensemble.sessions or not self.ensemble.available:
            return
        if generation != self._generation:
            # Sent over a closed connection: executed only if it may still have reached the servers.
            if request.request in self._late_allowed and isinstance(request, ZkCommit) and not self.connected:
                self.ensemble.commit(session, request)
            return
        reply = self._execute(session, request)
        self.served_at = self.scheduler.now
        self._carried_out.add(request.request)
        self.answer_later(reply)

    def _answer(self, generation: int, answer: Answer) -> None:
        """Pass an answer on to the process, unless its connection has ended."""
        if generation != self._generation:
            return
        if isinstance(answer, ZkReply):
            self._carried_out.discard(answer.request)
            self._under_way = [request for request in self._under_way if request.request != answer.request]
        self._deliver_if_open(answer)

    def _deliver_if_open(self, answer: Answer) -> None:
        if not self.closed:
            self.deliver(answer)
