"""The place where identity and permission are checked. Every connect, subscribe and publish passes it.

A cluster without an authorizer of its own allows all. An authorizer is called inside the core: it decides on what it
holds already (keys, rules), and never asks anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True, frozen=True)
class Grant:
    """Who a client is, and for how many seconds from now that may be believed (None: for good)."""

    identity: str = ""
    lifetime: float | None = None


@dataclass(slots=True, frozen=True)
class Refusal:
    """`text` is told to the client."""

    text: str


class Authorizer(Protocol):
    def connect(self, client: str, token: str | None, remote: str) -> Grant | Refusal:
        """`remote`: the client's address as HOST:PORT; "" when it was let in already and brings a fresh token."""

    def subscribe(self, identity: str, topic: str) -> bool: ...

    def publish(self, identity: str, topic: str, publisher: str) -> bool: ...


class AllowAll:
    """Everybody may do everything, for ever."""

    _grant = Grant()

    def connect(self, client: str, token: str | None, remote: str) -> Grant | Refusal:
        return self._grant

    def subscribe(self, identity: str, topic: str) -> bool:
        return True

    def publish(self, identity: str, topic: str, publisher: str) -> bool:
        return True
