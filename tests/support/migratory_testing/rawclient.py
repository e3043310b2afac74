"""A client that writes WebSocket bytes itself and takes answers apart itself, without the product's own code.

So that a mistake that both ends of the product share is seen, and so that a test can send what no client would.
`RawClient.open(address)` makes the handshake only; `RawClient.join(broker)` says `connect` as well. A test file's
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
KEY = bytes.fromhex("37fa213d")
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

# Fields of MessagePack messages in their order, as docs/reference/protocol.md lists them.
_RECEIPT = ("topic", "receipt", "position", "first", "last", "code", "text")
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


class Ended(Exception):
    """The connection is over; `code` and `reason` are those of the close frame, 1006 without one."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Frame(NamedTuple):
    """One frame as it came; `header` are the bytes before the payload."""

    header: bytes
    opcode: int
    payload: bytes


def frame(opcode: int, payload: bytes, *, fin: bool = True, rsv1: bool = False, masked: bool = True) -> bytes:
    """A client's frame, its length in the shortest form."""
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
    key = (KEY * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(len(payload), "big")


def request(
    path: str = "/ws", host: str = "localhost", wire: str = "json", deflate: bool = False, *headers: tuple[str, str]
) -> bytes:
    """The HTTP request of a handshake."""
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
    """Status, headers (names in lower case) and body of the answer to any bytes; the connection must end by itself."""
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
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


_opened: list[RawClient] = []


async def close_all() -> None:
    """Every connection that was opened since the last time."""
    opened = _opened[:]
    _opened.clear()
    for client in opened:
        client.writer.transport.abort()
        try:
            await client.writer.wait_closed()
        except ConnectionError:
            continue  # it was gone already


class RawClient:
    """One connection. `receive` takes the next message of some operations and keeps the others in `kept`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: str) -> None:
        self.reader = reader
        self.writer = writer
        self.wire = wire
        self.kept: list[Message] = []
        _opened.append(self)

    @classmethod
    async def open(
        cls, address: tuple[str, int], wire: str = "json", *, deflate: bool = False, receive_buffer: int = 0
    ) -> Self:
        """After the handshake. `receive_buffer` bytes in the kernel (0: as many as it likes). Nothing is left open of
        what fails or is given up."""
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
        """Connected to the broker, as a client of that name."""
        client = await cls.open(broker.address("clients"), wire, **options)
        try:
            await client.connect(name)
        except BaseException:
            client.writer.transport.abort()
            raise
        return client

    async def _handshake(self, deflate: bool) -> None:
        self.writer.write(request(wire=self.wire, deflate=deflate))
        async with asyncio.timeout(LIMIT):
            status, headers = await _head(self.reader)
        assert status == 101, headers
        assert headers["sec-websocket-accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, 1.3
        assert ("sec-websocket-extensions" in headers) is deflate

    async def connect(self, name: str = "raw") -> Message:
        self.say("connect", version=1, client=name)
        return await self.receive("welcome")

    # ---- out -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def say(self, op: str, **fields: Any) -> None:
        """One message of the table, in a frame of its own; in MessagePack the fields are in the order of the table."""
        if self.wire == "json":
            self.write(frame(TEXT, json.dumps({"op": op, **fields}, separators=(",", ":")).encode()))
        else:
            number = ("connect", "subscribe", "unsubscribe", "publish", "ping", "bye").index(op) + 1
            self.write(frame(BINARY, msgspec.msgpack.encode([number, *fields.values()])))

    async def subscribe(self, topic: str, after: object = None, number: int = 1) -> Message:
        """The topic's receipt."""
        asked = {"topic": topic, "after": after} if self.wire == "json" else [topic, after]
        self.say("subscribe", request=number, topics=[asked])
        receipt: Message = (await self.receive("subscribed"))["topics"][0]
        return receipt

    def send_publish(self, topic: str, payload: bytes, number: int, publisher: str = "raw") -> None:
        """QoS 1, nothing before it waiting."""
        if self.wire == "json":
            data = {"data64": base64.b64encode(payload).decode()}
            self.say("publish", topic=topic, **data, qos=1, publisher=publisher, id=number, mark=number)
        else:
            self.say("publish", topic=topic, payload=payload, qos=1, publisher=publisher, id=number, mark=number)

    async def publish(self, topic: str, payload: bytes, number: int, publisher: str = "raw") -> Any:
        """The position, as it stands in the acknowledgement; sent again after `retry`, as a client has to."""
        async with asyncio.timeout(LIMIT):
            while True:
                self.send_publish(topic, payload, number, publisher)
                found = await self.receive("ack", "nack")
                assert (found["topic"], found["publisher"], found["id"]) == (topic, publisher, number)
                if found["op"] == "ack":
                    return found["position"]
                assert found["code"] in ("retry", "gap"), found
                await asyncio.sleep(found.get("retry_after") or 0.1)

    # ---- in ------------------------------------------------------------------------------------------------------

    async def frame(self, limit: float = LIMIT) -> Frame:
        """The next frame, whatever it is. Raises Ended where the connection ends."""
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
            raise Ended(1006, "") from None

    async def messages(self, limit: float = LIMIT) -> list[Message]:
        """Those of the next frame that has any. Pings are answered; a close frame is, and raises Ended."""
        while True:
            found = await self.frame(limit)
            if found.opcode == PING:
                self.write(frame(PONG, found.payload))
            elif found.opcode == CLOSE:
                self.write(frame(CLOSE, found.payload[:2]))
                code = int.from_bytes(found.payload[:2], "big") if found.payload else 1005
                raise Ended(code, found.payload[2:].decode())
            elif found.opcode in (TEXT, BINARY):
                return self.decode(found.payload)

    def decode(self, payload: bytes) -> list[Message]:
        if self.wire == "json":
            found = json.loads(payload)
            return found if isinstance(found, list) else [found]
        items = msgspec.msgpack.decode(payload)
        return [_named(item) for item in (items if isinstance(items[0], list) else [items])]

    async def receive(self, *operations: str, limit: float = LIMIT) -> Message:
        """The next message of one of these operations."""
        async with asyncio.timeout(limit):
            while True:
                for index, message in enumerate(self.kept):
                    if message["op"] in operations:
                        return self.kept.pop(index)
                self.kept += await self.messages(limit)

    async def ended(self, limit: float = LIMIT) -> Ended:
        """How the connection ends: the close frame is answered, this side is closed, and the other must be as well.
        Messages that come before are in `kept`."""
        async with asyncio.timeout(limit):
            while True:
                try:
                    self.kept += await self.messages(limit)
                except Ended as error:
                    if error.code != 1006:
                        self.writer.write_eof()
                        assert await self.reader.read() == b"", "nothing comes behind a close frame"
                    self.writer.close()
                    return error

    async def ping(self) -> None:
        """Whether the connection lives: returns when the broker has answered."""
        self.say("ping")
        await self.receive("pong")

    def reset(self) -> None:
        """The connection is gone, as after a broken network: no close frame, and RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def payload(message: Message) -> bytes:
    """Of a delivery, in either format."""
    if "payload" in message:
        return bytes(message["payload"])
    if "data64" in message:
        return base64.b64decode(message["data64"])
    return str(message["data"]).encode()


def position(value: object) -> tuple[int, int]:
    """(epoch, sequence), in either format."""
    if isinstance(value, str):
        epoch, _, sequence = value.partition(":")
        return int(epoch), int(sequence)
    assert isinstance(value, list)
    return value[0], value[1]


def _named(item: list[Any]) -> Message:
    op, *names = _FIELDS[item[0]]
    message = {"op": op, **dict(zip(names, item[1:], strict=False))}
    if op == "subscribed":
        message["topics"] = [dict(zip(_RECEIPT, receipt, strict=False)) for receipt in message["topics"]]
    return message
