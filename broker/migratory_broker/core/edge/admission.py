"""Admission: which clients an edge accepts, what they may do, and when they must leave or move.

`ClientAuthorizer` is the interface of authentication and permission checks, of which this release has only one that
allows everything. `AdmissionGate` accepts or refuses connections and closes them at the end of a drain. `Rebalancer`
chooses the clients that are asked to move to another broker. A refusal carries the close code that tells a client where
to connect next (`migratory_protocol.errors`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import VERSION, Drain, Limits, Server, Welcome

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.formats import Format
from migratory_broker.core.edge.state import ClientConnection, State
from migratory_broker.core.logic.events import Admission, ClientCounts, MoveClients

# ---- authorization ---------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Grant:
    """An authenticated identity, valid for `lifetime` seconds from now (None: without limit)."""

    identity: str = ""
    lifetime: float | None = None


@dataclass(slots=True, frozen=True)
class Denial:
    """A refused `connect`. `text` is sent to the client."""

    text: str


class ClientAuthorizer(Protocol):
    """The checks of identity and permission that every connect, subscribe and publish passes.

    It is called inside the core: it decides by what it already holds (keys, rules) and must not do I/O.
    """

    def connect(self, client: str, token: str | None, remote: str) -> Grant | Denial:
        """Authenticate a client. `remote` is its address as HOST:PORT, or "" when a connected client renews its
        token."""

    def subscribe(self, identity: str, topic: str) -> bool: ...

    def publish(self, identity: str, topic: str, publisher: str) -> bool: ...


class AllowAllClients:
    """The authorizer of a cluster without one of its own: allows everything, without a time limit."""

    _grant = Grant()

    def connect(self, client: str, token: str | None, remote: str) -> Grant | Denial:
        return self._grant

    def subscribe(self, identity: str, topic: str) -> bool:
        return True

    def publish(self, identity: str, topic: str, publisher: str) -> bool:
        return True


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
"""Close code and text by the reason of an `Admission` that is not open."""


class AdmissionGate:
    """The decision whether an edge accepts clients. It begins closed: a broker first learns the histories."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        self._welcomes: dict[Format, bytes] = {}
        self.admission = Admission(False, "learning")
        self.servers: tuple[Server, ...] = ()
        self.drained_at: float | None = None  # end of the drain period: remaining clients are closed then

    def refusal(self, clients: int) -> tuple[CloseCode, str] | None:
        """Return close code and text of the refusal of a new client, or None to accept it. `clients` is the number of
        clients with the new one."""
        if not self.admission.open:
            return REFUSALS[self.admission.reason]
        if self.drained_at is not None:
            return REFUSALS["draining"]
        if clients > self._config.max_clients:
            return CloseCode.TRY_ANOTHER, f"client limit reached ({self._config.max_clients})"
        return None

    def closing(self, now: float) -> tuple[CloseCode, str, str] | None:
        """Return code, text and metric label with which all clients are closed now, or None to keep them.

        A drain ends after its period by this edge's clock, or earlier when the broker says so. Clients get the same
        code and text in both cases.
        """
        reason = self.admission.reason
        if self.admission.ends and reason != "drained":
            return *REFUSALS[reason], reason
        if reason == "drained" or (self.drained_at is not None and now >= self.drained_at):
            return *DRAINED, "draining"
        return None

    def set_servers(self, servers: tuple[Server, ...]) -> None:
        """Replace the server list of `welcome`."""
        self.servers = servers
        self._welcomes.clear()

    def welcome(self, format: Format) -> bytes:
        """Return the frame of `welcome`, which is the same for every client and so encoded once per format."""
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
                    config.duplicate_window,
                )
            )
        return data


# ---- rebalancing -----------------------------------------------------------------------------------------------

ASKED: Final = 4
"""In place of the number of moves: this broker has already asked the client to move. Smaller values are the number of
moves that the client reported, 3 for three or more."""


class Rebalancer:
    """The choice of clients to move to another broker, and the client counts that the logic needs for it.

    The logic decides how many clients move. The edge chooses the clients that changed their broker least often by
    their own report, and among those the longest connected. Clients that were asked before come last, whether they
    could not move or did not.
    """

    def __init__(self, number: int, delivery: EdgeDelivery) -> None:
        self._number = number
        self._delivery = delivery
        self._counts = [0] * (ASKED + 1)  # clients by number of moves
        self._reported = tuple(self._counts)

    def add(self, connection: ClientConnection, moves: int) -> None:
        """Count a client that sent `connect` and reported its number of moves."""
        connection.moves = min(moves, ASKED - 1)
        self._counts[connection.moves] += 1

    def remove(self, connection: ClientConnection) -> None:
        self._counts[connection.moves] -= 1

    def report(self) -> None:
        """Send the logic the counts, if they have changed since the last tick."""
        counts = tuple(self._counts)
        if counts != self._reported:
            self._reported = counts
            self._delivery.emit(ClientCounts(self._number, counts))

    def move(self, connections: Iterable[ClientConnection], event: MoveClients) -> None:
        """Ask `event.count` clients to move. Passes over `connections` once per number of moves, usually once."""
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
