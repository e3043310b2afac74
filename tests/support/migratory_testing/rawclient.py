"""The raw client: it builds WebSocket frames and parses answers itself, without the product's code.

It is the one client for tests that need exact bytes. It detects mistakes that both ends of the product share, and can
send what no client would. All other tests use the product's client, the load generator, or a client core.

`RawClient.open(address)` completes the handshake only, `RawClient.join(broker)` also sends `connect`. A test file's
conftest.py has a fixture that calls `close_all` at the end of each test.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from typing import Any, NamedTuple, Self

import msgspec

from migratory_testing.processes import Broker

LIMIT = 20.0
"""Seconds to wait for an answer."""

KEY = bytes.fromhex("37fa213d")
"""The mask of all frames, as in the examples of RFC 6455, 5.7."""

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

# Fields of MessagePack messages in their order, as docs/reference/protocol.md lists them.
_RECEIPT = ("topic", "receipt", "position", "first", "last", "code", "text", "retry_after")
_FIELDS: dict[int, tuple[str, ...]] = {
    32: ("welcome", "version", "cluster", "broker", "incarnation", "servers", "heartbeat", "limits"),
    33: ("subscribed", "request", "topics"),
    34: ("unsubscribed", "request", "topics"),
    35: ("message", "topic", "position", "payload", "sent", "time", "replayed", "first"),
    36: ("ack", "topic", "publisher", "id", "position"),
    37: ("nack", "topic", "publisher", "id", "code", "text", "retry_after"),
    38: ("servers", "servers"),
    39: ("drain", "period", "servers", "closes"),
    40: ("error", "code", "text", "request", "topic", "closes"),
    41: ("pong",),
}

Message = dict[str, Any]


class ConnectionEnded(Exception):
    """The connection has ended; `code` and `reason` are those of the close frame, 1006 without one."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Frame(NamedTuple):
    """A received frame; `header` are the bytes before the payload."""

    header: bytes
    opcode: int
    payload: bytes


def frame(opcode: int, payload: bytes, *, fin: bool = True, rsv1: bool = False, masked: bool = True) -> bytes:
    """Return a client's WebSocket frame, with its length in the shortest form. `fin`, `rsv1` and `masked` set those
    bits; the mask is `KEY`."""
    first = opcode | (0x80 if fin else 0) | (0x40 if rsv1 else 0)
    mask = 0x80 if masked else 0
    if len(payload) < 126:
        header = bytes((first, mask | len(payload)))
    elif len(payload) < 65536:
        header = struct.pack("!BBH", first, mask | 126, len(payload))
    else:
        header = struct.pack("!BBQ", first, mask | 127, len(payload))
    return header + KEY + masking(payload) if masked else header + payload


def masking(payload: bytes) -> bytes:
    """Return the payload masked with `KEY`, or unmasked again."""
    key = (KEY * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(len(payload), "big")


def request(
    path: str = "/ws", host: str = "localhost", wire: str = "json", deflate: bool = False, *headers: tuple[str, str]
) -> bytes:
    """Return the HTTP request of a WebSocket handshake. `wire` is "json" or "msgpack"."""
    lines = [
        f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: migratory.v1.{wire}",
    ]  # fmt: skip
    if deflate:
        lines.append("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits")
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def answer(address: tuple[str, int], data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send any bytes, and return status, headers (names in lower case) and body of the HTTP answer. The server must end
    the connection, except after status 101, whose body is empty. Raise TimeoutError after `LIMIT` seconds."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        async with asyncio.timeout(LIMIT):
            status, headers = await _head(reader)
            body = b"" if status == 101 else await reader.read()
        return status, headers, body
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read the head of an HTTP response. Return its status and headers, with names in lower case."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


_opened: list[RawClient] = []


async def close_all() -> None:
    """Abort all connections that were opened since the last call, and wait for their end."""
    opened = _opened[:]
    _opened.clear()
    for client in opened:
        client.writer.transport.abort()
        try:
            await client.writer.wait_closed()
        except ConnectionError:
            continue  # it had ended already


class RawClient:
    """A test client's WebSocket connection to a broker. `receive` returns the next message of the given operations,
    and adds other messages to `buffered`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: str) -> None:
        self.reader = reader
        self.writer = writer
        self.wire = wire
        self.buffered: list[Message] = []
        _opened.append(self)

    @classmethod
    async def open(
        cls, address: tuple[str, int], wire: str = "json", *, deflate: bool = False, receive_buffer: int = 0
    ) -> Self:
        """Connect and complete the handshake. `receive_buffer` is the size of the kernel's buffer in bytes, 0 for its
        default. After an error or cancellation nothing is left open."""
        sock = socket.socket()
        try:
            if receive_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, address)
            reader, writer = await asyncio.open_connection(sock=sock, limit=4096 if receive_buffer else 2**22)
        except BaseException:
            sock.close()
            raise
        client = cls(reader, writer, wire)
        try:
            await client._handshake(deflate)
        except BaseException:
            writer.transport.abort()
            raise
        return client

    @classmethod
    async def join(cls, broker: Broker, wire: str = "json", *, name: str = "raw", **options: Any) -> Self:
        """Connect to a broker, complete the handshake, send `connect` as the client `name`, and wait for the
        welcome."""
        client = await cls.open(broker.address("clients"), wire, **options)
        try:
            await client.connect(name)
        except BaseException:
            client.writer.transport.abort()
            raise
        return client

    async def _handshake(self, deflate: bool) -> None:
        """Do the WebSocket handshake. Raise AssertionError if the broker refuses it, computes another accept key, or
        does not answer with or without compression as requested."""
        self.writer.write(request(wire=self.wire, deflate=deflate))
        async with asyncio.timeout(LIMIT):
            status, headers = await _head(self.reader)
        assert status == 101, headers
        assert headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, 1.3
        assert ("sec-websocket-extensions" in headers) is deflate

    async def connect(self, name: str = "raw") -> Message:
        """Send `connect`. Return the welcome."""
        self.send("connect", version=1, client=name)
        return await self.receive("welcome")

    # ---- out -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Write any bytes."""
        self.writer.write(data)

    def send(self, op: str, **fields: Any) -> None:
        """Send a message of the protocol in a frame of its own. MessagePack has the fields in the given order."""
        if self.wire == "json":
            self.write(frame(TEXT, json.dumps({"op": op, **fields}, separators=(",", ":")).encode()))
        else:
            number = ("connect", "subscribe", "unsubscribe", "publish", "ping", "bye").index(op) + 1
            self.write(frame(BINARY, msgspec.msgpack.encode([number, *fields.values()])))

    async def subscribe(self, topic: str, after: object = None, number: int = 1) -> Message:
        """Subscribe to a topic, after the position `after` in the wire format's form. Return the topic's receipt."""
        entry = {"topic": topic, "after": after} if self.wire == "json" else [topic, after]
        self.send("subscribe", request=number, topics=[entry])
        receipt: Message = (await self.receive("subscribed"))["topics"][0]
        return receipt

    def send_publish(self, topic: str, payload: bytes, number: int, publisher: str = "raw") -> None:
        """Send a publication with QoS 1 whose message id and mark are `number`, as if it were the only unanswered
        one of its topic."""
        if self.wire == "json":
            data = {"data64": base64.b64encode(payload).decode()}
            self.send("publish", topic=topic, **data, qos=1, publisher=publisher, id=number, mark=number)
        else:
            self.send("publish", topic=topic, payload=payload, qos=1, publisher=publisher, id=number, mark=number)

    async def publish(
        self, topic: str, payload: bytes, number: int, publisher: str = "raw", limit: float = LIMIT
    ) -> Any:
        """Publish with QoS 1, and again after each refusal with `retry` or `gap`, as a client must. Return the
        acknowledged position in the wire format's form. Raise AssertionError after another refusal, TimeoutError after
        `limit` seconds."""
        async with asyncio.timeout(limit):
            while True:
                self.send_publish(topic, payload, number, publisher)
                answer = await self.receive("ack", "nack")
                assert (answer["topic"], answer["publisher"], answer["id"]) == (topic, publisher, number)
                if answer["op"] == "ack":
                    return answer["position"]
                assert answer["code"] in ("retry", "gap"), answer
                await asyncio.sleep(answer.get("retry_after") or 0.1)

    # ---- in ------------------------------------------------------------------------------------------------------

    async def frame(self, limit: float = LIMIT) -> Frame:
        """Return the next frame of any kind. Raise ConnectionEnded at the end of the connection, TimeoutError after
        `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                header = await self.reader.readexactly(2)
                length = header[1]
                assert length < 128, "a broker does not mask"
                if length >= 126:
                    more = await self.reader.readexactly(2 if length == 126 else 8)
                    header += more
                    length = int.from_bytes(more, "big")
                return Frame(header, header[0] & 15, await self.reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ConnectionEnded(1006, "") from None

    async def messages(self, limit: float = LIMIT) -> list[Message]:
        """Return the messages of the next frame that has any. Answer pings before it. Answer a close frame and raise
        ConnectionEnded. Raise TimeoutError when no frame of any kind arrives for `limit` seconds."""
        while True:
            received = await self.frame(limit)
            if received.opcode == PING:
                self.write(frame(PONG, received.payload))
            elif received.opcode == CLOSE:
                self.write(frame(CLOSE, received.payload[:2]))
                code = int.from_bytes(received.payload[:2], "big") if received.payload else 1005
                raise ConnectionEnded(code, received.payload[2:].decode())
            elif received.opcode in (TEXT, BINARY):
                return self.decode(received.payload)

    def decode(self, payload: bytes) -> list[Message]:
        """Decode a frame's payload, and return its messages as JSON has them, with named fields."""
        if self.wire == "json":
            data = json.loads(payload)
            return data if isinstance(data, list) else [data]
        items = msgspec.msgpack.decode(payload)
        return [_named(item) for item in (items if isinstance(items[0], list) else [items])]

    async def receive(self, *operations: str, limit: float = LIMIT) -> Message:
        """Remove and return the next message of one of these operations. Keep other messages in `buffered`, in order.
        Raise TimeoutError after `limit` seconds, ConnectionEnded at the end of the connection."""
        async with asyncio.timeout(limit):
            while True:
                for index, message in enumerate(self.buffered):
                    if message["op"] in operations:
                        return self.buffered.pop(index)
                self.buffered += await self.messages(limit)

    async def wait_ended(self, limit: float = LIMIT) -> ConnectionEnded:
        """Wait up to `limit` seconds for the end of the connection and return it. Answer the close frame, close this
        side, and check that the broker closes its side. Messages that arrive before are added to `buffered`."""
        async with asyncio.timeout(limit):
            while True:
                try:
                    self.buffered += await self.messages(limit)
                except ConnectionEnded as error:
                    if error.code != 1006:
                        self.writer.write_eof()
                        assert await self.reader.read() == b"", "data after a close frame"
                    self.writer.close()
                    return error

    async def ping(self) -> None:
        """Send the protocol's `ping` message, and return when the broker has answered."""
        self.send("ping")
        await self.receive("pong")

    def reset(self) -> None:
        """End the connection with RST instead of FIN and without a close frame, as a broken network does."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def payload(message: Message) -> bytes:
    """Return the payload of a delivery in either wire format."""
    if "payload" in message:
        return bytes(message["payload"])
    if "data64" in message:
        return base64.b64decode(message["data64"])
    return str(message["data"]).encode()


def position(value: object) -> tuple[int, int]:
    """Return (epoch, sequence) of a position in either wire format."""
    if isinstance(value, str):
        epoch, _, sequence = value.partition(":")
        return int(epoch), int(sequence)
    assert isinstance(value, list)
    return value[0], value[1]


def _named(item: list[Any]) -> Message:
    """Return a MessagePack message as JSON has it, with named fields."""
    op, *names = _FIELDS[item[0]]
    message = {"op": op, **dict(zip(names, item[1:], strict=False))}
    if op == "subscribed":
        message["topics"] = [dict(zip(_RECEIPT, receipt, strict=False)) for receipt in message["topics"]]
    return message
