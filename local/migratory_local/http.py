"""Small GET requests, mostly to the processes on this machine."""

from __future__ import annotations

import aiohttp

from migratory_local.ports import HOST


class Http:
    """One session for all requests. `get` answers None for what is not there, as processes come and go.

    No pooling of connections: a frozen process must not block the next request, a restarted one begins anew.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def get(self, port: int, path: str) -> tuple[int, str] | None:
        """From a port of this machine; as `get_from`."""
        return await self.get_from(f"{HOST}:{port}", path)

    async def get_from(self, address: str, path: str) -> tuple[int, str] | None:
        """Status and text from `host:port`; None when there was no answer in time."""
        if self._session is None:
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector, trust_env=False)
        try:
            async with self._session.get(f"http://{address}{path}") as response:
                return response.status, await response.text()
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
