"""The identities of an edge's clients: checked at `connect`, valid for a time or until revoked, replaced by another
`connect`. The module also counts and logs the operations that permissions refuse.

Without an authorizer every client has the access None, and nothing here costs a delivery anything. With one, a client
gets a notice before its access ends (`token_expiring`).

Refusals are logged: the client, what it wanted, and why. docs/how-to/secure.md lists the events.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from migratory_protocol import errors
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import Connect, TokenExpiring

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.events import Credentials, KeysNeeded
from migratory_broker.core.edge.state import ClientConnection
from migratory_broker.core.logic.events import Note, Observe
from migratory_broker.core.security.authorizer import Authorizer, ClientAccess, Denial
from migratory_broker.core.security.rules import Operation
from migratory_broker.core.security.tokens import RefusalKind

KEYS_FRESH: Final = 10.0
"""Seconds after new keys were fetched in which a token is refused for good if its key was unknown before and still is.
Otherwise its key may have been published since: the client is asked to try again, and the keys are fetched."""

MAX_MISSING_KEYS: Final = 100
"""Ids of unknown keys that are remembered until the next fetch. Invented ones push each other out."""

CONNECT_COST: Final = 20
"""The number of messages as which a turn counts a `connect` where tokens are checked: a signature takes 0.1 ms, and a
token without a key id is tried with several keys."""

LOG_INTERVAL: Final = 1.0
"""Seconds between two log lines of one event, so that a flood of refused requests does not fill the log."""

REFUSALS: Final[dict[RefusalKind, tuple[str, CloseCode]]] = {
    "unauthenticated": (errors.UNAUTHENTICATED, CloseCode.UNAUTHENTICATED),
    "token_expired": (errors.TOKEN_EXPIRED, CloseCode.TOKEN_EXPIRED),
    "unknown_key": (errors.RETRY, CloseCode.TRY_ANOTHER),
}
"""Error code and close code of a refused `connect`: final, retried with a new token, retried."""


class IdentityChecks:
    """The checks of identities and permissions of all connections of an edge. `connect_cost` is the number of messages
    as which a turn counts a `connect`."""

    def __init__(self, config: EdgeConfig, delivery: EdgeDelivery, authorizer: Authorizer | None) -> None:
        self._config = config
        self._delivery = delivery
        self._authorizer = authorizer
        self.connect_cost = 0 if authorizer is None else CONNECT_COST
        self.wall_offset = 0.0  # from the edge's clock to the wall clock, in seconds
        self._fetched_at = float("-inf")
        self._keys_requested = False
        self._missing: dict[str, float] = {}  # unknown key -> when a token named it, the oldest first
        self._not_allowed: Counter[Operation] = Counter()  # since the last tick
        self._logged: dict[str, tuple[float, int]] = {}  # event -> time of its last line, and how many since

    def authenticate(self, connection: ClientConnection, message: Connect) -> ClientAccess | Denial | None:
        """Return the access of a client that sends `connect`, with the times of its notice and its end by the edge's
        clock, or its refusal; None where everything is allowed. The token is that of the message, or without one that
        of the request. A refusal is logged, at most one in `LOG_INTERVAL`, and may request the remote keys."""
        if self._authorizer is None:
            return None
        now = self._delivery.now
        token = connection.token if message.token is None else message.token
        result = self._authorizer.connect(token, now + self.wall_offset)
        if isinstance(result, Denial):
            return self._refuse(connection, message, result)
        if result.lifetime is not None:
            result.expires_at = now + result.lifetime
            result.notice_at = result.expires_at - min(self._config.expiry_notice, result.lifetime / 4)
        return result

    def _refuse(self, connection: ClientConnection, message: Connect, denial: Denial) -> Denial:
        """Log the refusal of a `connect`, and return it, with an unknown key as `_refuse_unknown_key` decides."""
        if denial.kind == "unknown_key":
            denial = self._refuse_unknown_key(denial)
        self._record("client_not_authenticated", connection, client=message.client, reason=denial.text)
        return denial

    def _record(self, event: str, connection: ClientConnection, **fields: object) -> None:
        """Log a refusal, at most one of each `event` in `LOG_INTERVAL`. The line has `fields`, and says how many
        `others` were not logged since the one before."""
        now = self._delivery.now
        logged_at, others = self._logged.get(event, (float("-inf"), 0))
        if now - logged_at < LOG_INTERVAL:
            self._logged[event] = logged_at, others + 1
            return
        self._logged[event] = now, 0
        line = {"client": connection.client, "connection": connection.number, **fields, "others": others}
        self._delivery.emit(Note("warning", event, line, connection.number))

    def _refuse_unknown_key(self, denial: Denial) -> Denial:
        """Return the refusal of a token with an unknown key. It is final ("unauthenticated") if keys were fetched since
        a token first named the key, and less than `KEYS_FRESH` ago. Otherwise return `denial`, which lets the client
        try again, remember the key, and emit `KeysNeeded` unless that is unanswered."""
        now, missing = self._delivery.now, self._missing
        asked_at = missing.pop(denial.key, now)
        if asked_at < self._fetched_at:
            if now - self._fetched_at < KEYS_FRESH:
                missing[denial.key] = asked_at
                return Denial("unauthenticated", "the token's key is not accepted")
            asked_at = now
        missing[denial.key] = asked_at
        if len(missing) > MAX_MISSING_KEYS:
            del missing[next(iter(missing))]
        if not self._keys_requested:
            self._keys_requested = True
            self._delivery.emit(KeysNeeded())
        return denial

    def notify_expiring(self, connection: ClientConnection) -> bool:
        """Send a client the notice that its token expires, once, when it is due. Return whether the token has expired.
        False for a client whose access has no end."""
        access, now = connection.access, self._delivery.now
        if access is None or access.expires_at is None:
            return False
        if access.notice_at is not None and access.notice_at <= now < access.expires_at:
            access.notice_at = None
            self._delivery.reply(connection, TokenExpiring(round(access.expires_at - now, 3)))
        return now >= access.expires_at

    def record_not_allowed(self, connection: ClientConnection, operation: Operation, topic: str) -> None:
        """Count an operation that permissions refused, for /metrics, and log it, at most one in `LOG_INTERVAL`."""
        assert connection.access is not None, "without an access everything is allowed"
        self._not_allowed[operation] += 1
        subject = connection.access.subject
        self._record("client_not_allowed", connection, subject=subject, operation=operation, topic=topic)

    def record_revoked(self, connection: ClientConnection) -> None:
        """Log that a connection ends because its token was revoked, at most one in `LOG_INTERVAL`."""
        assert connection.access is not None, "a token without an access"
        self._record("client_revoked", connection, subject=connection.access.subject)

    def update(self, event: Credentials) -> None:
        """Replace the keys and the revocations. A request for remote keys (`KeysNeeded`) counts as answered. Raises
        ValueError for malformed ones, which the runtime does not send."""
        assert self._authorizer is not None, "credentials without an authorizer"
        self._authorizer.update(event.documents, event.revoked)
        if event.fetched:
            self._fetched_at = self._delivery.now
        self._keys_requested = False

    def is_revoked(self, connection: ClientConnection) -> bool:
        """Return whether the token with which the connection last connected has been revoked. False without an access
        or a token."""
        access = connection.access
        return access is not None and self._authorizer is not None and self._authorizer.is_revoked(access)

    def tick(self) -> None:
        """Emit the refused operations since the last tick as samples of `migratory_not_allowed_total`."""
        for operation, count in self._not_allowed.items():
            self._delivery.emit(Observe("migratory_not_allowed_total", float(count), operation))
        self._not_allowed.clear()
