"""`Settings`, the limits and times of a client that an application may change, each with its reason. Times are
seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from migratory_protocol import limits


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits and times of one client. Immutable: any number of clients may share one object."""

    request_token: bool = False
    """True if the core emits `RequestToken` after each connection is made and before a token expires, instead of
    sending the fixed token."""

    # ---- connecting

    connect_timeout: float = 10.0
    """Seconds from dialling to `welcome`, after which an attempt to connect has failed. The same as the broker's own
    limit for a handshake."""

    first_retry: float = 1.0
    """Upper bound, in seconds, of the first random wait before a reconnect, which spreads the clients of a killed
    broker. The upper bounds of later waits are never below it."""

    backoff_cap: float = 30.0
    """Seconds that the waits of two whole rounds through the server list may take together, so that clients find a
    cluster soon after it returns. The attempts take up to `connect_timeout` each in addition, and lists of more than 15
    servers exceed it, because no wait has an upper bound below `first_retry`. Also the longest wait that a broker may
    ask for before the next publication, or before a topic is requested again."""

    blacklist: float = 60.0
    """Seconds for which a server that failed or that leaves is avoided, unless no other server is left to try."""

    stable_after: float = 5.0
    """Seconds after which a link counts as a success: when it ends, the backoff starts again with `first_retry`."""

    recent_changes: float = 600.0
    """Age in seconds up to which changes of broker are reported to the next broker, which moves clients with few recent
    changes first. A rolling update takes less."""

    # ---- subscribing

    receipt_timeout: float = 10.0
    """Seconds without an answer to a subscribe request after which the link ends. They begin anew with each answer
    while others are awaited. A broker that hears the topic's coordinator takes 2 s at most."""

    subscribe_batch: int = 500
    """The largest number of topics in one subscribe request. 500 names of 255 bytes fit into a frame."""

    remembered_positions: int = 1000
    """The largest number of positions that are remembered of topics that were unsubscribed."""

    # ---- publishing

    publish_timeout: float = 60.0
    """Seconds after which an unanswered publication is given up, or earlier at the end of the cluster's duplicate
    window. Must be well below that window, which is 120 s by default."""

    ack_timeout: float = 2.0
    """Seconds without an answer after which the pending publications of a topic are sent again. They double with each
    resend, up to `resend_cap`, until an answer arrives."""

    resend_cap: float = 8.0
    """Seconds of the longest wait between two resends of a topic, also if a broker asks for a longer one with
    `retry`."""

    max_waiting: int = 1000
    """The largest number of QoS 1 publications that may await their answers at once, in all topics together. Further
    ones are refused."""

    max_payload: int = limits.PAYLOAD
    """Bytes of the largest payload, until a broker's `welcome` says what the cluster allows."""


DEFAULTS: Final = Settings()
"""The settings of a client whose application gives none."""
