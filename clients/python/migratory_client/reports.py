"""What the application and the log hear of a client: its callbacks, and a line for what a person should read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import assert_never

from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import Message

from migratory_client import events as ev
from migratory_client.farewells import describe_end

Status = ev.LinkUp | ev.LinkDown | ev.Ready | ev.Problem

_log = logging.getLogger("migratory_client")
_LOGGED = 100  # problems that are remembered as logged: texts may differ for ever


class Reports:
    """Used within the client's event loop. `last_problem` is the newest, of whatever kind."""

    def __init__(
        self,
        on_status: Callable[[Status], None] | None,
        on_receipt: Callable[[ev.Receipt], None] | None,
        on_delivery: Callable[[Message, float | None], None] | None,
    ) -> None:
        self._on_status = on_status
        self._on_receipt = on_receipt
        self._on_delivery = on_delivery
        self._logged: set[str] = set()  # problems, since the last connection: attempts repeat, and fail alike
        self.last_problem: ev.Problem | None = None

    def delivery(self, message: Message) -> None:
        if self._on_delivery is not None:
            latency = None if message.sent is None else time.time() - message.sent
            _call(self._on_delivery, message, latency)

    def receipt(self, receipt: ev.Receipt) -> None:
        if self._on_receipt is not None:
            _call(self._on_receipt, receipt)

    def status(self, status: Status) -> None:
        match status:
            case ev.LinkUp():
                self._logged.clear()
                _log.info("connected to %s at %s", status.broker, status.url)
            case ev.LinkDown(replaced=True):
                _log.info("moved to another broker (%s)", status.cause)
            case ev.LinkDown():
                level = logging.WARNING if status.code == CloseCode.SLOW_CONSUMER else logging.INFO
                _log.log(level, "left the broker: %s (%s)", describe_end(status.code, status.reason), status.code)
            case ev.Problem():
                self.last_problem = status
                line = f"{status.code}: {status.text}"
                _log.log(logging.DEBUG if line in self._logged else logging.WARNING, "%s", line)
                if len(self._logged) < _LOGGED:
                    self._logged.add(line)
            case ev.Ready():
                pass
            case _:
                assert_never(status)
        if self._on_status is not None:
            _call(self._on_status, status)


def _call(function: Callable[..., None], *args: object) -> None:
    """The application's code: what it raises must not stop the client, and must not be hidden."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - handed to the loop's handler, which reports it
        context = {"message": f"{function!r} raised", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
