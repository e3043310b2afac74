"""Admission, for the edge core: which clients an edge accepts, and when they must leave or move.

`AdmissionGate` decides whether a connection is refused, and when all connections must be closed; it also encodes
`welcome`. `Rebalancer` chooses the clients that are asked to move to another broker. A refusal carries the close code
that tells a client where to connect next (`migratory_protocol.errors`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import VERSION, Drain, Limits, Server, Welcome

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.formats import Format
from migratory_broker.core.edge.state import ClientConnection, State
from migratory_broker.core.logic.events import Admission, ClientCounts, MoveClients

# ---- accepting and draining ------------------------------------------------------------------------------------

DRAINED: Final = (CloseCode.DRAINING, "the broker is shutting down; its drain period has ended")

REFUSALS: Final = {
    "": (CloseCode.TRY_ANOTHER, "the broker accepts no clients at present"),
    "learning": (CloseCode.TRY_ANOTHER, "the broker is starting: it accepts no clients before it has the histories"),
    "draining": (CloseCode.TRY_ANOTHER, "the broker is draining: it accepts no new clients"),
    "drained": DRAINED,
    "fenced": (CloseCode.FENCED, "the broker is cut off from its cluster"),
    "stopping": (CloseCode.RESTARTING, "the broker is stopping"),
}
"""Close code and text that a client is refused or closed with, by the `reason` of an `Admission` that is not open."""


class AdmissionGate:
    """The state from which an edge decides whether it accepts clients, and the `welcome` that it sends them. The gate
    begins closed, with the reason "learning": a starting broker first copies the topics from the other brokers."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        self._welcomes: dict[Format, bytes] = {}
        self.admission = Admission(False, "learning")
        self.servers: tuple[Server, ...] = ()
        self.drained_at: float | None = None  # end of the drain period: remaining clients are closed then

    def refusal(self, clients: int) -> tuple[CloseCode, str] | None:
        """Return the close code and text with which to refuse a new client, or None to accept it.

        `clients` is the number of connections of the edge, the new one included. A client is refused while the broker's
        admission is closed, once this edge was asked to drain, and if `clients` is above `EdgeConfig.max_clients`.
        """
        if not self.admission.open:
            return REFUSALS[self.admission.reason]
        if self.drained_at is not None:
            return REFUSALS["draining"]
        if clients > self._config.max_clients:
            return CloseCode.TRY_ANOTHER, f"client limit reached ({self._config.max_clients})"
        return None

    def closing(self, now: float) -> tuple[CloseCode, str, str] | None:
        """Return the close code, text and metric label with which to close all clients now, or None while they may
        stay.

        All clients are closed when the broker's `Admission` has `ends` set, or when a drain is over: at the end of its
        period by this edge's clock (`now`), or earlier when the broker says so. In both cases of a drain, clients get
        the same code and text.
        """
        reason = self.admission.reason
        if self.admission.ends and reason != "drained":
            return *REFUSALS[reason], reason
        if reason == "drained" or (self.drained_at is not None and now >= self.drained_at):
            return *DRAINED, "draining"
        return None

    def set_servers(self, servers: tuple[Server, ...]) -> None:
        """Replace the server list that `welcome` names, and drop the cached `welcome` frames."""
        self.servers = servers
        self._welcomes.clear()

    def welcome(self, format: Format) -> bytes:
        """Return the encoded `welcome` in this format. If the format is shared, it is the same for every client, and
        cached until the server list changes."""
        data = self._welcomes.get(format)
        if data is None:
            config = self._config
            limits = Limits(
                config.max_payload, config.max_topic, config.subscriptions_per_client, config.queue_per_client
            )
            data = format.frame(
                Welcome(
                    VERSION,
                    config.cluster,
                    config.broker,
                    config.incarnation,
                    list(self.servers),
                    config.heartbeat,
                    limits,
                    config.duplicate_window,
                )
            )
            if format.shared:
                self._welcomes[format] = data
        return data


# ---- rebalancing -----------------------------------------------------------------------------------------------

ASKED: Final = 4
"""A value of `ClientConnection.moves` in place of a number of moves: this broker has already asked the client to move.
Smaller values are the number of moves that the client reported, 3 for three or more."""


class Rebalancer:
    """The counts of an edge's clients by the number of times that they moved, reported to the logic, and the choice of
    the clients that are asked to move.

    The logic decides how many clients move. The edge chooses first the clients that report the fewest moves, and among
    equals the longest connected. Clients that this broker has asked before are chosen last.
    """

    def __init__(self, number: int, delivery: EdgeDelivery) -> None:
        self._number = number
        self._delivery = delivery
        self._counts = [0] * (ASKED + 1)  # clients by number of moves
        self._reported = tuple(self._counts)

    def add(self, connection: ClientConnection, moves: int) -> None:
        """Count a client whose `connect` was accepted, and set its `moves`, at most 3. `moves` is the number of recent
        changes of its broker that it reported."""
        connection.moves = min(moves, ASKED - 1)
        self._counts[connection.moves] += 1

    def remove(self, connection: ClientConnection) -> None:
        self._counts[connection.moves] -= 1

    def report(self) -> None:
        """Send the counts to the logic as `ClientCounts`, if they have changed since the last report."""
        counts = tuple(self._counts)
        if counts != self._reported:
            self._reported = counts
            self._delivery.emit(ClientCounts(self._number, counts))

    def move(self, connections: Iterable[ClientConnection], event: MoveClients) -> None:
        """Ask up to `event.count` open clients to move to `event.server` within `event.period` seconds, by the message
        `drain`, and count them as asked. None is closed.

        Reads `connections`, which must be in the order in which they came, once per number of moves among the chosen
        clients, usually once.
        """
        chosen: list[ClientConnection] = []
        for moves, available in enumerate(self._counts):
            wanted = min(available, event.count - len(chosen))
            if wanted > 0:
                candidates = (
                    connection
                    for connection in connections
                    if connection.moves == moves and connection.state is State.OPEN
                )
                chosen += islice(candidates, wanted)
        for connection in chosen:
            self._counts[connection.moves] -= 1
            connection.moves = ASKED
        self._counts[ASKED] += len(chosen)
        self._delivery.broadcast(chosen, Drain(event.period, [event.server], closes=False))
