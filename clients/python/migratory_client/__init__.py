"""The Python client. Start with `client.py`; scripts without an event loop take `sync.py`.

    async with Client(["ws://127.0.0.1:8800/ws"]) as client:
        async for message in client.subscribe("quotes/eur"):
            print(message.position, message.payload)

Below the two faces lies a core without I/O, `session.ClientCore`, that others may drive with a transport of their
own: its events and effects are in `events.py`. Names are loaded when they are used, so that the core does not import
aiohttp.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from migratory_protocol.messages import Message
    from migratory_protocol.positions import Position, parse_position

    from migratory_client.client import Client, Subscription
    from migratory_client.errors import (
        Closed,
        ConnectError,
        GapError,
        MigratoryError,
        NotConnected,
        PublishError,
        PublishTimeout,
        SubscribeError,
        TooManyWaiting,
    )
    from migratory_client.events import LinkDown, LinkUp, Problem, Ready, Receipt
    from migratory_client.session import ClientCore
    from migratory_client.settings import Settings
    from migratory_client.sync import SyncClient

_HOME = {
    "Client": "migratory_client.client",
    "ClientCore": "migratory_client.session",
    "Closed": "migratory_client.errors",
    "ConnectError": "migratory_client.errors",
    "GapError": "migratory_client.errors",
    "LinkDown": "migratory_client.events",
    "LinkUp": "migratory_client.events",
    "Message": "migratory_protocol.messages",
    "MigratoryError": "migratory_client.errors",
    "NotConnected": "migratory_client.errors",
    "Position": "migratory_protocol.positions",
    "Problem": "migratory_client.events",
    "PublishError": "migratory_client.errors",
    "PublishTimeout": "migratory_client.errors",
    "Ready": "migratory_client.events",
    "Receipt": "migratory_client.events",
    "Settings": "migratory_client.settings",
    "SubscribeError": "migratory_client.errors",
    "Subscription": "migratory_client.client",
    "SyncClient": "migratory_client.sync",
    "TooManyWaiting": "migratory_client.errors",
    "parse_position": "migratory_protocol.positions",
}

__all__ = [
    "Client",
    "ClientCore",
    "Closed",
    "ConnectError",
    "GapError",
    "LinkDown",
    "LinkUp",
    "Message",
    "MigratoryError",
    "NotConnected",
    "Position",
    "Problem",
    "PublishError",
    "PublishTimeout",
    "Ready",
    "Receipt",
    "Settings",
    "SubscribeError",
    "Subscription",
    "SyncClient",
    "TooManyWaiting",
    "parse_position",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """For who looks around: the names, whether they were loaded or not."""
    return sorted({*globals(), *__all__})
