"""The Python client, for applications. Begin with `client.py`; scripts without an event loop use `sync_client.py`.

    async with Client(["ws://127.0.0.1:8800/ws"]) as client:
        async for message in client.subscribe("quotes/eur"):
            print(message.position, message.payload)

`core/` is the sans-I/O core, which decides everything: reconnects, positions, gaps, resends. `driver.py` and
`transport.py` run it on asyncio and aiohttp; other programs may run it with a driver of their own. Names are imported
when they are first used, so that the core can be imported without aiohttp.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from migratory_protocol.messages import Message
    from migratory_protocol.positions import Position, parse_position

    from migratory_client.client import Client, Subscription
    from migratory_client.core.events import LinkDown, LinkUp, Problem, Ready, Receipt
    from migratory_client.core.session import ClientCore
    from migratory_client.core.settings import Settings
    from migratory_client.errors import (
        Closed,
        ConnectError,
        GapError,
        MigratoryError,
        NotConnected,
        OutcomeUnknown,
        PublishError,
        PublishTimeout,
        SubscribeError,
        TooManyWaiting,
    )
    from migratory_client.sync_client import SyncClient

_MODULES = {
    "Client": "migratory_client.client",
    "ClientCore": "migratory_client.core.session",
    "Closed": "migratory_client.errors",
    "ConnectError": "migratory_client.errors",
    "GapError": "migratory_client.errors",
    "LinkDown": "migratory_client.core.events",
    "LinkUp": "migratory_client.core.events",
    "Message": "migratory_protocol.messages",
    "MigratoryError": "migratory_client.errors",
    "NotConnected": "migratory_client.errors",
    "Position": "migratory_protocol.positions",
    "Problem": "migratory_client.core.events",
    "PublishError": "migratory_client.errors",
    "OutcomeUnknown": "migratory_client.errors",
    "PublishTimeout": "migratory_client.errors",
    "Ready": "migratory_client.core.events",
    "Receipt": "migratory_client.core.events",
    "Settings": "migratory_client.core.settings",
    "SubscribeError": "migratory_client.errors",
    "Subscription": "migratory_client.client",
    "SyncClient": "migratory_client.sync_client",
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
    "OutcomeUnknown",
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
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    """Return the module's names in alphabetical order, including those that are not imported yet."""
    return sorted({*globals(), *__all__})
