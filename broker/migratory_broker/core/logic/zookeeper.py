"""Requests to ZooKeeper and what is known of its being there.

Each request has a number and a continuation. An `unknown` outcome is given to the continuation as it is: the caller
reads again. The broker's own small read of `/brokers/<me>` tells by its sending time when ZooKeeper was last heard,
and whether a newer incarnation of this name lives.
"""

from __future__ import annotations

from collections.abc import Callable

from migratory_broker.core.logic.context import Context, must
from migratory_broker.core.logic.events import ZkChildren, ZkCommit, ZkGet, ZkOperation, ZkReply, ZkSession

Continuation = Callable[[ZkReply], None]


class ZooKeeper:
    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.connected = False
        self.session = 0
        self.heard = float("-inf")  # sending time of the last own read that was answered
        self._next = 1
        self._waiting: dict[int, Continuation] = {}

    def age(self) -> float:
        """Seconds since ZooKeeper was last heard for certain."""
        return self.ctx.now - self.heard

    def get(self, path: str, then: Continuation, watch: bool = False) -> None:
        self.ctx.emit(ZkGet(self._number(then), path, watch))

    def children(self, path: str, then: Continuation, watch: bool = False) -> None:
        self.ctx.emit(ZkChildren(self._number(then), path, watch))

    def commit(self, operations: list[ZkOperation], then: Continuation) -> None:
        self.ctx.emit(ZkCommit(self._number(then), tuple(operations)))

    def _number(self, then: Continuation) -> int:
        number = self._next
        self._next += 1
        self._waiting[number] = then
        return number

    def reply(self, event: ZkReply) -> None:
        must(event.request in self._waiting, "ONE-REPLY: every request is answered once")
        self._waiting.pop(event.request)(event)

    def state(self, event: ZkSession) -> bool:
        """Whether this is a session other than the one before: ephemerals must be made again."""
        self.connected = event.state == "connected"
        if not self.connected:
            return False
        fresh = event.session != self.session
        self.session = event.session
        return fresh
