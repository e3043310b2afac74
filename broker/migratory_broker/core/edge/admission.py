"""Who is let in: whether this broker takes clients now, what it tells them of others, and its drain.

A refusal carries the close code that tells a client where to go next (`migratory_protocol.errors`).
"""

from __future__ import annotations

from typing import Final

from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import VERSION, Limits, Server, Welcome

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.formats import Format
from migratory_broker.core.logic.events import Admission

DRAINED: Final = (CloseCode.DRAINING, "this broker leaves; its drain period is over")

REFUSALS: Final = {
    "": (CloseCode.TRY_ANOTHER, "this broker takes no clients now"),
    "learning": (CloseCode.TRY_ANOTHER, "this broker is learning the histories; it takes no clients yet"),
    "draining": (CloseCode.TRY_ANOTHER, "this broker is about to leave"),
    "drained": DRAINED,
    "fenced": (CloseCode.FENCED, "this broker is cut off from its cluster"),
    "stopping": (CloseCode.RESTARTING, "this broker stops"),
}


class Gate:
    """A broker learns before it takes anybody: it begins closed."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        self._welcomes: dict[Format, bytes] = {}
        self.admission = Admission(False, "learning")
        self.servers: tuple[Server, ...] = ()
        self.drained_at: float | None = None  # clients that are still here then are closed

    def refusal(self, clients: int) -> tuple[CloseCode, str] | None:
        """Why a new client isn't taken beside `clients` others, None when it is."""
        if not self.admission.open:
            return REFUSALS[self.admission.reason]
        if self.drained_at is not None:
            return REFUSALS["draining"]
        if clients > self._config.max_clients:
            return CloseCode.TRY_ANOTHER, f"this broker has its {self._config.max_clients} clients"
        return None

    def ending(self, now: float) -> tuple[CloseCode, str, str] | None:
        """Why connected clients must go as well, now; last what they are counted as. A drain is over when its period
        is, by this edge's clock, or when the broker says so: whichever comes first, clients are told the same."""
        reason = self.admission.reason
        if self.admission.ends and reason != "drained":
            return *REFUSALS[reason], reason
        if reason == "drained" or (self.drained_at is not None and now >= self.drained_at):
            return *DRAINED, "draining"
        return None

    def set_servers(self, servers: tuple[Server, ...]) -> None:
        self.servers = servers
        self._welcomes.clear()

    def welcome(self, format: Format) -> bytes:
        """The same for every client, so it is made once."""
        data = self._welcomes.get(format)
        if data is None:
            config = self._config
            limits = Limits(
                config.max_payload, config.max_topic, config.subscriptions_per_client, config.queue_per_client
            )
            data = self._welcomes[format] = format.frame(
                Welcome(
                    VERSION,
                    config.cluster,
                    config.broker,
                    config.incarnation,
                    list(self.servers),
                    config.heartbeat,
                    limits,
                )
            )
        return data
