"""Links over aiohttp: the one file of the client that imports it.

A link is two tasks: one dials and reads, one writes. What happens is posted as events of the core; nothing is
decided here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus

import aiohttp
from migratory_protocol.codec import BadMessage, Codec
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import ClientMessage

from migratory_client.events import Connected, Event, Lost, Received
from migratory_client.farewells import refusal
from migratory_client.outgoing import contents

_MAX_FRAME = 6 * 64 * 1024 * 1024 + 64 * 1024
"""Bytes: the largest payload that any cluster takes, all of it escaped in JSON. A broker may send long frames, but not
without end."""

_CLOSE_TIMEOUT = 2.0  # seconds for the closing handshake


def why_not_connected(error: Exception) -> str:
    """The system's own few words for a failed connection, such as "connection refused", where it has any."""
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status != HTTPStatus.SWITCHING_PROTOCOLS:
        return refusal(error.status)
    tls = isinstance(error, ssl.SSLError | aiohttp.ClientSSLError)  # their numbers are OpenSSL's
    number = error.errno if isinstance(error, OSError) and not tls else None
    if number is not None and number > 0:  # aiohttp's text repeats the address, and says "ssl:default" for plain links
        return os.strerror(number).lower()
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return str(error.os_error.strerror or "the host's name is not known").lower()
    return str(error) or type(error).__name__


class _Link:
    """One WebSocket connection."""

    def __init__(self, number: int, url: str, transport: Transport) -> None:
        self.number = number
        self.url = url
        self._transport = transport
        self._queue: list[bytes] = []
        self._wake = asyncio.Event()
        self._ending = False  # hung up: nothing is posted any more
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self.task = asyncio.create_task(self._run(), name=f"migratory-link-{number}")

    def send(self, data: list[bytes]) -> None:
        self._queue.extend(data)
        self._wake.set()

    def hang_up(self, abort: bool) -> None:
        """Forget the link. `abort`: at once; else after what is queued, with a closing handshake."""
        self._ending = True
        if self._socket is None:
            self.task.cancel()
        elif abort:
            self._shut()
            self.task.cancel()
        else:
            self._wake.set()

    def _shut(self) -> None:
        """End the TCP connection without waiting for a peer that does not answer."""
        plain = self._socket.get_extra_info("socket") if self._socket is not None else None
        if plain is not None:
            # Through a second descriptor: the sockets that some loops show (uvloop's) can't be shut down themselves.
            # It may be gone already, which is what is wanted.
            with suppress(OSError), socket.socket(fileno=os.dup(plain.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)

    async def _run(self) -> None:
        code, reason = 1006, ""
        try:
            code, reason = await self._connect()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = why_not_connected(error)
        finally:
            self._transport.forget(self)
        if not self._ending:
            self._transport.post(Lost(self.number, code, reason))

    async def _connect(self) -> tuple[int, str]:
        transport = self._transport
        async with transport.session.ws_connect(
            self.url,
            protocols=[transport.codec.subprotocol],
            max_msg_size=_MAX_FRAME,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT),
            ssl=transport.ssl,
        ) as connection:
            if connection.protocol != transport.codec.subprotocol:
                await connection.close(code=CloseCode.PROTOCOL_ERROR)
                return CloseCode.PROTOCOL_ERROR, f"the server does not speak {transport.codec.subprotocol}"
            self._socket = connection
            transport.post(Connected(self.number))
            writer = asyncio.create_task(self._write(connection), name=f"migratory-writer-{self.number}")
            try:
                return await self._read(connection)
            finally:
                writer.cancel()
                await asyncio.wait([writer])

    async def _read(self, connection: aiohttp.ClientWebSocketResponse) -> tuple[int, str]:
        codec = self._transport.codec
        expected = aiohttp.WSMsgType.BINARY if codec.binary else aiohttp.WSMsgType.TEXT
        while True:
            frame = await connection.receive()
            if frame.type is expected:
                data: bytes = frame.data if codec.binary else frame.data.encode()
                try:
                    messages = codec.decode_broker(data)
                except BadMessage as error:
                    await connection.close(code=CloseCode.BAD_MESSAGE)
                    return CloseCode.TRY_ANOTHER, f"the broker sent what is not a message: {error}"
                if not self._ending:
                    self._transport.post(Received(self.number, messages))
            elif frame.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                await connection.close(code=CloseCode.UNSUPPORTED_DATA)
                return CloseCode.TRY_ANOTHER, "the broker sent the other kind of frame"
            else:  # closed, by either side, or broken
                return int(connection.close_code or 1006), str(frame.extra or "")

    async def _write(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        send = connection.send_bytes if self._transport.codec.binary else connection.send_str
        text = not self._transport.codec.binary
        while True:
            while self._queue:
                queue, self._queue = self._queue, []  # what comes while these are sent leaves together, behind them
                for data in contents(self._transport.codec, queue):
                    try:
                        await send(data.decode() if text else data)  # type: ignore[arg-type]
                    except (aiohttp.ClientError, ConnectionError):
                        return  # the reader sees the end as well, and tells
            if self._ending:
                await connection.close(code=CloseCode.NORMAL)  # the reader ends with it
                return
            self._wake.clear()
            await self._wake.wait()


class Transport:
    """All links of one client; to be made and used within one running event loop."""

    def __init__(
        self,
        codec: Codec,
        post: Callable[[Event], None],
        *,
        ssl_context: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.codec = codec
        self.post = post
        self.ssl: ssl.SSLContext | bool = True if ssl_context is None else ssl_context
        timeout = aiohttp.ClientTimeout(total=None)  # the core watches the time
        self.session = aiohttp.ClientSession(headers=headers, timeout=timeout)
        self._links: dict[int, _Link] = {}
        self._ending: set[_Link] = set()

    def dial(self, number: int, url: str) -> None:
        self._links[number] = _Link(number, url, self)

    def send(self, number: int, messages: list[ClientMessage]) -> None:
        """No effect on a link that has ended: its `Lost` was posted."""
        link = self._links.get(number)
        if link is not None:
            link.send([self.codec.encode(message) for message in messages])

    def hang_up(self, number: int, abort: bool) -> None:
        link = self._links.pop(number, None)
        if link is not None:
            self._ending.add(link)
            link.hang_up(abort)

    def forget(self, link: _Link) -> None:
        self._links.pop(link.number, None)
        self._ending.discard(link)

    async def close(self) -> None:
        """Wait for links that were hung up, a bounded time; then nothing is left, no task and no socket."""
        for number in list(self._links):
            self.hang_up(number, abort=False)
        tasks = [link.task for link in self._ending]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=2 * _CLOSE_TIMEOUT)
        finally:
            for task in tasks:
                task.cancel()  # no effect on those that have ended
            if tasks:
                await asyncio.wait(tasks)
            await self.session.close()
