"""What brokers say about themselves, asked on their administration listener."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any

import aiohttp

from migratory_operator.names import ADMIN_PORT, Object
from migratory_operator.observe import BrokerPage

_SECONDS = 3.0
_LARGEST_PAGE = 64 * 2**20
"""Ten thousand topic groups of a dozen brokers make some ten million bytes."""
_log = logging.getLogger(__name__)


class Brokers:
    """Asks by pod address: a name would be found only after the pod's Service has heard of it."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS), trust_env=False)

    async def pages(self, pods: Iterable[Object]) -> dict[str, BrokerPage]:
        """By pod's name; those that don't answer are missing."""
        addresses = {pod["metadata"]["name"]: pod.get("status", {}).get("podIP") for pod in pods}
        asked = {name: address for name, address in addresses.items() if address}
        answers = await asyncio.gather(*(self._page(name, address) for name, address in asked.items()))
        return {name: page for name, page in zip(asked, answers, strict=True) if page is not None}

    async def _page(self, name: str, address: str) -> BrokerPage | None:
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{ADMIN_PORT}/v1/status") as answer:
                answer.raise_for_status()
                page: Any = await asyncio.to_thread(json.loads, await _whole(answer.content))
                return BrokerPage.read(page)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            _log.debug("%s does not answer: %r", name, error)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("%s: /v1/status is not as expected: %r", name, error)
        return None

    async def close(self) -> None:
        await self._session.close()


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """To its end: one read gives what has come so far, which a network may make any part of the page.

    :raises ValueError: it is too long.
    """
    data = bytearray()
    async for part in content.iter_any():
        data += part
        if len(data) > _LARGEST_PAGE:
            raise ValueError(f"it has more than {_LARGEST_PAGE} bytes")
    return bytes(data)
