"""WebSocket connections over aiohttp, for the driver: the only module of the client that imports aiohttp.

A connection is two tasks: one connects and reads, one writes. The transport posts what happens as events of the core,
and decides nothing itself.
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

from migratory_client.core.events import Connected, Disconnected, Event, Received
from migratory_client.core.links import describe_refusal, frame_contents

_MAX_FRAME = 6 * 64 * 1024 * 1024 + 64 * 1024
"""Bytes of the largest frame that is read: the largest payload that a cluster can allow, with every byte escaped in
JSON, and its envelope. Brokers may send long frames; the limit bounds the memory."""

_CLOSE_TIMEOUT = 2.0
"""Seconds that the closing handshake may take. The connection is of no more use by then, so nothing is lost at the
limit."""


def describe_connect_error(error: Exception) -> str:
    """Return the reason of a failed connection in a few words, such as "connection refused". For a server that refused
    the WebSocket handshake, it names the HTTP status."""
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status != HTTPStatus.SWITCHING_PROTOCOLS:
        return describe_refusal(error.status)
    tls = isinstance(error, ssl.SSLError | aiohttp.ClientSSLError)  # their numbers are OpenSSL's
    number = error.errno if isinstance(error, OSError) and not tls else None
    if number is not None and number > 0:  # aiohttp's text repeats the address, and says "ssl:default" for plain links
        return os.strerror(number).lower()
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return str(error.os_error.strerror or "the host's name is not known").lower()
    return str(error) or type(error).__name__


class _Connection:
    """One WebSocket connection, known to the core as the link `number`. Creating it begins to connect to `url`."""

    def __init__(self, number: int, url: str, transport: Transport) -> None:
        self.number = number
        self.url = url
        self._transport = transport
        self._queue: list[bytes] = []
        self._wake = asyncio.Event()
        self._ending = False  # the core has disconnected: post no more events
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self.task = asyncio.create_task(self._run(), name=f"migratory-link-{number}")

    def send(self, data: list[bytes]) -> None:
        """Queue encoded messages. The writer task sends them in order, once connected."""
        self._queue.extend(data)
        self._wake.set()

    def disconnect(self, abort: bool) -> None:
        """End the connection, and post no more events.

        With `abort`, or while it is still connecting, end it at once and drop the queued messages. Otherwise first
        write them, and then do the closing handshake.
        """
        self._ending = True
        if self._socket is None:
            self.task.cancel()
        elif abort:
            self._shut_down()
            self.task.cancel()
        else:
            self._wake.set()

    def _shut_down(self) -> None:
        """End the TCP connection at once, without the closing handshake, to which a broker that hangs would not answer.
        Nothing happens if it is not connected."""
        plain = self._socket.get_extra_info("socket") if self._socket is not None else None
        if plain is not None:
            # Through a second descriptor, because the socket objects of uvloop have no `shutdown`. The socket may be
            # closed already, which is the aim.
            with suppress(OSError), socket.socket(fileno=os.dup(plain.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)

    async def _run(self) -> None:
        """Connect, and read until the connection ends. Then remove it from the transport, and post `Disconnected`
        unless `disconnect` was called. The close code is 1006 when connecting failed."""
        code, reason = 1006, ""
        try:
            code, reason = await self._connect()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = describe_connect_error(error)
        finally:
            self._transport.remove(self)
        if not self._ending:
            self._transport.post(Disconnected(self.number, code, reason))

    async def _connect(self) -> tuple[int, str]:
        """Connect, post `Connected`, and read until the connection ends. Return the close code and the reason. For a
        server that does not speak the protocol, post nothing and return PROTOCOL_ERROR. Errors of connecting are raised
        as aiohttp raises them."""
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
        """Post the messages of each frame until the connection ends. Return the close code, 1006 without a close frame,
        and the reason. For an invalid message or the wrong kind of frame, close the connection and return
        TRY_ANOTHER."""
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
                    return CloseCode.TRY_ANOTHER, f"the broker sent an invalid message: {error}"
                if not self._ending:
                    self._transport.post(Received(self.number, messages))
            elif frame.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                await connection.close(code=CloseCode.UNSUPPORTED_DATA)
                return CloseCode.TRY_ANOTHER, "the broker sent the other kind of frame"
            else:  # closed, by either side, or broken
                return int(connection.close_code or 1006), str(frame.extra or "")

    async def _write(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        """Send what is queued, in as few frames as the limits of a frame allow, and wait for more. Return when the
        connection breaks, or after the closing handshake when `disconnect` was called."""
        send = connection.send_bytes if self._transport.codec.binary else connection.send_str
        text = not self._transport.codec.binary
        while True:
            while self._queue:
                queue, self._queue = self._queue, []  # messages queued during the sends leave together afterwards
                for data in frame_contents(self._transport.codec, queue):
                    try:
                        await send(data.decode() if text else data)  # type: ignore[arg-type]
                    except (aiohttp.ClientError, ConnectionError):
                        return  # the reader sees the end as well, and posts it
            if self._ending:
                await connection.close(code=CloseCode.NORMAL)  # the reader ends with it
                return
            self._wake.clear()
            await self._wake.wait()


class Transport:
    """All WebSocket connections of one client, created and used within one running event loop. `post` receives the
    events. `ssl_context` is for wss:// URLs, None for Python's default. `headers` are added to the HTTP request of each
    handshake."""

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
        timeout = aiohttp.ClientTimeout(total=None)  # the core enforces the time limits
        self.session = aiohttp.ClientSession(headers=headers, timeout=timeout)
        self._connections: dict[int, _Connection] = {}
        self._ending: set[_Connection] = set()

    def dial(self, number: int, url: str) -> None:
        """Begin to connect to `url`, as the link `number`. `Connected` or `Disconnected` is posted later, unless
        `disconnect` is called before."""
        self._connections[number] = _Connection(number, url, self)

    def send(self, number: int, messages: list[ClientMessage]) -> None:
        """Encode messages and queue them on the link `number`. They are dropped if the link has ended, by itself
        (`Disconnected` was posted) or by `disconnect`."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.send([self.codec.encode(message) for message in messages])

    def disconnect(self, number: int, abort: bool) -> None:
        """End the link `number` and post no more events about it. Queued messages are sent first, and then the closing
        handshake is done; with `abort`, or while still connecting, neither. Nothing happens if the link has ended."""
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._ending.add(connection)
            connection.disconnect(abort)

    def remove(self, connection: _Connection) -> None:
        """Forget a connection that has ended. An unknown one is ignored."""
        self._connections.pop(connection.number, None)
        self._ending.discard(connection)

    async def close(self) -> None:
        """End all links and the HTTP session. Wait at most 4 s for queued messages and closing handshakes, also those
        of links that are ending already, then cancel them. No task and no socket is left."""
        for number in list(self._connections):
            self.disconnect(number, abort=False)
        tasks = [connection.task for connection in self._ending]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=2 * _CLOSE_TIMEOUT)
        finally:
            for task in tasks:
                task.cancel()  # no effect on those that have ended
            if tasks:
                await asyncio.wait(tasks)
            await self.session.close()
