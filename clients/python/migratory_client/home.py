"""Where a client belongs: the process, the event loop that opened it, and the thread that runs it. Nothing of asyncio
may be touched from elsewhere: it would mostly work, and now and then hang or send half of something."""

from __future__ import annotations

import asyncio
import os
import threading


class Home:
    """Made within the loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._process = os.getpid()

    def lives(self) -> bool:
        """False when the loop has ended, and took links and timers with it, or goes on in the process that this one
        was forked from. Raises RuntimeError when called from elsewhere while it goes on here."""
        if os.getpid() != self._process:
            return False
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None  # between two runs of the loop, say
        if threading.get_ident() == self._thread and running in (None, self.loop):
            return not self.loop.is_closed()
        if not self.loop.is_closed():
            raise RuntimeError(
                "the client belongs to the event loop that opened it, and can't be used from another one or another "
                "thread (loop.call_soon_threadsafe or SyncClient can)"
            )
        return False
