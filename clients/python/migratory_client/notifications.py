"""Notifications of a `Client`: the application's callbacks, and log lines for conditions that a person should read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import assert_never

from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import Message

from migratory_client.core import events as ev
from migratory_client.core.links import describe_close

Status = ev.LinkUp | ev.LinkDown | ev.Ready | ev.Problem

_log = logging.getLogger("migratory_client")

_MAX_LOGGED_PROBLEMS = 100
"""The largest number of problems that are remembered as logged; further ones are logged each time. It bounds the
memory: texts may contain changing values."""


class Notifier:
    """The callbacks and the log of one client, for use in its event loop. `last_problem` is the latest problem, None
    before the first one."""

    def __init__(
        self,
        on_status: Callable[[Status], None] | None,
        on_receipt: Callable[[ev.Receipt], None] | None,
        on_delivery: Callable[[Message, float | None], None] | None,
    ) -> None:
        self._on_status = on_status
        self._on_receipt = on_receipt
        self._on_delivery = on_delivery
        self._logged: set[str] = set()  # problems logged since the last connection: repeated attempts fail alike
        self.last_problem: ev.Problem | None = None

    def delivery(self, message: Message) -> None:
        """Call `on_delivery`, if given, with the message and its latency. The latency is the seconds from the
        publisher's wall clock to this one, and None if the publisher gave no time."""
        if self._on_delivery is not None:
            latency = None if message.sent is None else time.time() - message.sent
            _call(self._on_delivery, message, latency)

    def receipt(self, receipt: ev.Receipt) -> None:
        """Call `on_receipt` with the receipt, if the application gave that callback."""
        if self._on_receipt is not None:
            _call(self._on_receipt, receipt)

    def status(self, status: Status) -> None:
        """Log a change of connection or a problem, and then call `on_status`, if given. `Ready` is not logged. A
        problem is stored as `last_problem`, and logged as a warning; one with the same text that was logged since the
        last connection is logged only at level DEBUG."""
        match status:
            case ev.LinkUp():
                self._logged.clear()
                _log.info("connected to %s at %s", status.broker, status.url)
            case ev.LinkDown(replaced=True):
                _log.info("moved to another broker (%s)", status.cause)
            case ev.LinkDown():
                level = logging.WARNING if status.code == CloseCode.SLOW_CONSUMER else logging.INFO
                _log.log(level, "left the broker: %s (%s)", describe_close(status.code, status.reason), status.code)
            case ev.Problem():
                self.last_problem = status
                line = f"{status.code}: {status.text}"
                _log.log(logging.DEBUG if line in self._logged else logging.WARNING, "%s", line)
                if len(self._logged) < _MAX_LOGGED_PROBLEMS:
                    self._logged.add(line)
            case ev.Ready():
                pass
            case _:
                assert_never(status)
        if self._on_status is not None:
            _call(self._on_status, status)


def _call(function: Callable[..., None], *args: object) -> None:
    """Call the application's function. An exception that it raises goes to the event loop's exception handler, and does
    not stop the client."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - reported by the loop's handler
        context = {"message": f"{function!r} raised", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
