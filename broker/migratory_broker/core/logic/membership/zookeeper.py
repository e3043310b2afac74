"""Requests of the logic to ZooKeeper, their replies, and the time at which ZooKeeper was last heard.

Each request has a number and a function that receives the reply. The reply may have the outcome `unknown`: the caller
then reads again. The broker's own small read of `/brokers/<me>` shows, by its sending time, when ZooKeeper was last
heard, and whether a newer incarnation of this name lives. The newest record of each group that was read or written in
the present data is remembered, for ROLLED-BACK.
"""

from __future__ import annotations

from collections.abc import Callable

from migratory_broker.core.logic.context import Context, must
from migratory_broker.core.logic.events import (
    ZkCheck,
    ZkChildren,
    ZkCommit,
    ZkCreate,
    ZkGet,
    ZkOperation,
    ZkReply,
    ZkSession,
    ZkWrite,
)
from migratory_broker.core.logic.membership.records import (
    GROUPS,
    IDENTITY,
    BadRecord,
    GroupRecord,
    decode_group,
    group_number,
)

Continuation = Callable[[ZkReply], None]


class ZkRequests:
    """The state of the session with ZooKeeper, and the requests that wait for a reply. A request is an effect, and its
    function is called later, when a step brings the reply."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.identity = ""  # of the data in ZooKeeper that this broker takes part in; "" before the first session
        self.recorded: dict[int, GroupRecord] = {}  # group -> its newest record that was read or written in that data
        self.session_open = False
        self.connected = False  # the session is open, and ZooKeeper's data is of `identity` and complete
        self.session = 0
        self._verified_session = 0
        self.heard_at = float("-inf")  # sending time of the last own read that was answered
        self._next = 1
        self._waiting: dict[int, Continuation] = {}

    def age(self) -> float:
        """Return the seconds since the last own read was sent that ZooKeeper has answered; infinity if there is
        none."""
        return self.ctx.now - self.heard_at

    def get(self, path: str, receive: Continuation, watch: bool = False) -> None:
        """Request a node's data; `receive` is called with the reply. `watch`: `ZkChanged` comes at the node's next
        change. A group's record that is read is remembered before."""

        def read(reply: ZkReply) -> None:
            if reply.node is not None:
                self._record(path, reply.node.data)
            receive(reply)

        self.ctx.emit(ZkGet(self._register(read), path, watch))

    def children(self, path: str, receive: Continuation, watch: bool = False) -> None:
        self.ctx.emit(ZkChildren(self._register(receive), path, watch))

    def commit(self, operations: list[ZkOperation], receive: Continuation) -> None:
        """IDENTITY-GUARD: request a transaction, which is refused when ZooKeeper's data is of another identity;
        `receive` is called with the reply. Groups' records that it has written are remembered before."""

        def committed(reply: ZkReply) -> None:
            if reply.outcome == "ok":
                for operation in operations:
                    if isinstance(operation, (ZkCreate, ZkWrite)):
                        self._record(operation.path, operation.data)
            receive(reply)

        self.commit_unguarded([*operations, ZkCheck(f"{IDENTITY}/{self.identity}", -1)], committed)

    def commit_unguarded(self, operations: list[ZkOperation], receive: Continuation) -> None:
        """Request a transaction that does not check the identity, because it creates, replaces or confirms it;
        `receive` is called with the reply."""
        self.ctx.emit(ZkCommit(self._register(receive), tuple(operations)))

    def _record(self, path: str, data: bytes) -> None:
        """Remember the content of the node at `path` if that is a group's record, and newer than the one remembered.
        Data that is no record is ignored."""
        parent, _, name = path.rpartition("/")
        number = group_number(name) if parent == GROUPS else None
        if number is None:
            return
        try:
            record = decode_group(data)
        except BadRecord:
            return  # the election reports it
        before = self.recorded.get(number)
        if before is None or (record.epoch, record.activated) > (before.epoch, before.activated):
            self.recorded[number] = record

    def _register(self, receive: Continuation) -> int:
        """Return the number of a new request, to whose reply `receive` is called."""
        number = self._next
        self._next += 1
        self._waiting[number] = receive
        return number

    def reply(self, event: ZkReply) -> None:
        """Pass a reply to the function that waits for it. Raise InvariantError if no request of its number waits."""
        must(event.request in self._waiting, "ONE-REPLY: every request is answered once")
        self._waiting.pop(event.request)(event)

    def update_session(self, event: ZkSession) -> None:
        """Record the state of the session. ZooKeeper counts as away, even with an open session, until its data is
        verified (`verified`)."""
        self.session_open = event.state == "connected"
        self.connected = False
        if self.session_open:
            self.session = event.session

    def verified(self) -> bool:
        """Record that the data of the open session is of `identity`, so that ZooKeeper counts as connected. Return
        whether the session is another one than at the last verification: the ephemerals must then be created again."""
        self.connected = True
        fresh = self.session != self._verified_session
        self._verified_session = self.session
        return fresh
