"""What can be set about a client, each with its reason. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from migratory_protocol import limits


@dataclass(frozen=True, slots=True)
class Settings:
    """One object may be shared by any number of clients."""

    asks_token: bool = False  # `AskToken` before each connect, instead of the fixed token
    connect_timeout: float = 10.0  # from dialling to welcome; the broker's own handshake limit
    first_retry: float = 1.0  # the first retry comes after a random part of this: a killed broker's clients spread
    backoff_cap: float = 30.0  # the longest wait between two attempts
    blacklist: float = 60.0  # how long a server that failed is avoided, unless all are
    stable: float = 5.0  # a link that stood this long was a success: waits begin anew
    receipt_timeout: float = 10.0  # a subscribe without answer is sent again; the broker may take 2 s by rights
    publish_timeout: float = 60.0  # then a publication is given up; must be well below the duplicate window (2 min)
    ack_timeout: float = 2.0  # without an answer, all waiting publications of the topic are sent again
    resend_cap: float = 8.0  # the longest wait between two such rounds
    max_waiting: int = 1000  # publications waiting for their answer
    max_payload: int = limits.PAYLOAD  # until a broker's welcome says what holds there
    remembered: int = 1000  # positions kept of topics that were unsubscribed
    lately: float = 600.0  # changes of broker that long ago count when whom to move is chosen: a rollout takes less
    subscribe_batch: int = 500  # topics in one subscribe message: 500 names of 255 bytes stay below a frame's limit


DEFAULTS: Final = Settings()
