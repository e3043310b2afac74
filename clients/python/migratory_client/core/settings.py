"""Limits and times of a client, each with its reason. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from migratory_protocol import limits


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and times of one client. Immutable: any number of clients may share one object."""

    request_token: bool = False
    """Emit `RequestToken` before each connect, instead of sending the fixed token."""

    # ---- connecting

    connect_timeout: float = 10.0
    """From dialling to `welcome`. The broker's own limit for a handshake."""

    first_retry: float = 1.0
    """Upper bound of the first, random wait before a reconnect. It spreads the clients of a broker that was killed."""

    backoff_cap: float = 30.0
    """Longest wait between two attempts. A cluster that returns has its clients back within this time."""

    blacklist: float = 60.0
    """How long a server that failed is avoided, unless all servers failed."""

    stable_after: float = 5.0
    """A link that was up for this long counts as a success: the backoff starts again with `first_retry`."""

    recent_changes: float = 600.0
    """Age up to which changes of broker are reported to the next broker, which moves clients with few recent changes
    first. A rolling update takes less."""

    # ---- subscribing

    receipt_timeout: float = 10.0
    """A subscribe request without an answer for this long ends the link. A broker may take 2 s."""

    subscribe_batch: int = 500
    """Topics in one subscribe request. 500 names of 255 bytes fit into a frame."""

    remembered_positions: int = 1000
    """Positions kept of topics that were unsubscribed."""

    # ---- publishing

    publish_timeout: float = 60.0
    """Then a publication is given up. Must be well below the duplicate window of 120 s."""

    ack_timeout: float = 2.0
    """Without an answer for this long, all pending publications of the topic are sent again."""

    resend_cap: float = 8.0
    """Longest wait between two resends of a topic."""

    max_waiting: int = 1000
    """Publications that may await their answers at once."""

    max_payload: int = limits.PAYLOAD
    """Bytes of a payload, until a broker's `welcome` says what the cluster allows."""


DEFAULTS: Final = Settings()
"""The settings of a client that gives none."""
