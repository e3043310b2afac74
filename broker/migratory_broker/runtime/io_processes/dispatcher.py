"""New connections, each to the I/O process that has fewest. They wait in the kernel's backlog while none takes any."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from migratory_broker.runtime.accepting.limits import AcceptRate
from migratory_broker.runtime.accepting.listener import Acceptor
from migratory_broker.runtime.io_processes.handle import IoProcessHandle
from migratory_broker.runtime.logs import Log

NONE_READY_DELAY = 0.05
"""Seconds until a connection is taken, when no process takes any now."""


class SocketDispatcher:
    """`lives` are those that were told which edge they are; `rate` is the pace of what they may be given."""

    def __init__(
        self,
        listening: socket.socket,
        lives: Callable[[], Iterable[IoProcessHandle]],
        clock: Callable[[], float],
        rate: AcceptRate,
        log: Log,
    ) -> None:
        self._lives = lives
        self._clock = clock
        self._rate = rate
        self._nobody = False
        self._acceptor = Acceptor(listening, self._pass_on, log, admission=self, room=self._room)

    @property
    def refused(self) -> int:
        return self._acceptor.refused

    def close(self) -> None:
        self._acceptor.close()

    def fewest(self) -> IoProcessHandle | None:
        """Who gets the next connection."""
        now = self._clock()
        takes = [life for life in self._lives() if life.takes(now)]
        return min(takes, key=lambda life: (life.load - life.room >= 0, life.load, life.given), default=None)

    def _pass_on(self, accepted: socket.socket) -> None:
        life = self.fewest()
        if life is None or not life.give(accepted):
            accepted.close()  # it died in this very moment; its client tries again

    def _room(self) -> int:
        """Connections that the one with most room can still hold; one, so that they wait, before there is any."""
        return max((life.room - life.load for life in self._lives()), default=1)

    # ---- as the acceptor's pace ----------------------------------------------------------------------------------

    def take(self) -> bool:
        self._nobody = self.fewest() is None
        return not self._nobody and self._rate.take()

    def wait(self) -> float:
        return NONE_READY_DELAY if self._nobody else self._rate.wait()
