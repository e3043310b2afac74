"""Who leads the ZooKeeper ensemble, asked of each member with `srvr`: a roll takes the leader last.

A hint and no more: a member that does not answer, because a network policy keeps the operator from it or because it is
down, has no mode, and the roll goes on without.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from migratory_operator.names import ZOOKEEPER_PORT, Object

_SECONDS = 2.0
_log = logging.getLogger(__name__)


async def modes(pods: Sequence[Object], port: int = ZOOKEEPER_PORT) -> dict[str, str]:
    """leader, follower or standalone, by pod's name."""
    addresses = {str(pod["metadata"]["name"]): pod.get("status", {}).get("podIP") for pod in pods}
    asked = {name: str(address) for name, address in addresses.items() if address}
    found = await asyncio.gather(*(_mode(name, address, port) for name, address in asked.items()))
    return {name: mode for name, mode in zip(asked, found, strict=True) if mode}


async def _mode(name: str, address: str, port: int) -> str:
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(b"srvr")
                answer = await reader.read()  # to its end: a member closes after it
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        _log.debug("%s does not say whether it leads: %r", name, error)
        return ""
    lines = answer.decode("ascii", "replace").splitlines()
    return next((line.removeprefix("Mode: ").strip() for line in lines if line.startswith("Mode: ")), "")
