"""Holds many connections and reads whatever comes, with as little work as Python allows: the same receiver for every
server, so that the servers alone differ.

receiver.py PORT CONNECTIONS TOPICS [raw|product]
`product` does the WebSocket handshake, subscribes connection i to topic i modulo TOPICS, and says `ping` to the broker
every 12 s, as a client must. Prints "ready", then "BYTES" for each line on stdin; ends with it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK
from migratory_protocol.frames import FrameParser, MessageReceived, binary_frame
from migratory_protocol.handshake import Response, client_request, parse_response

PING_EVERY = 12.0
AT_ONCE = 200  # connections that are being opened at the same time


def connect(port: int) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=30)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def masked(message: wire.ClientMessage) -> bytes:
    return binary_frame(MSGPACK.encode(message), os.urandom(4))


def subscribe(batch: list[tuple[int, socket.socket]], port: int, topics: int, names: list[str]) -> None:
    """Handshake, connect and subscribe of several connections; returns when each has its receipt."""
    nonces = [os.urandom(16) for _ in batch]
    for (number, opened), nonce in zip(batch, nonces, strict=True):
        opened.sendall(client_request(f"127.0.0.1:{port}", "/ws", nonce, (MSGPACK.subprotocol,)))
        opened.sendall(masked(wire.Connect(client=f"idle-{number}")))
        opened.sendall(masked(wire.Subscribe(1, [wire.TopicRequest(names[number % topics])])))
    for (number, opened), nonce in zip(batch, nonces, strict=True):
        head = b""
        response: Response | None = None
        while response is None:
            head += receive(opened, number)
            response = parse_response(head, nonce, (MSGPACK.subprotocol,))
        parser = FrameParser("client", 2**24)
        data = response.rest
        subscribed = False
        while not subscribed:
            for event in parser.feed(data):
                if not isinstance(event, MessageReceived):
                    raise SystemExit(f"connection {number}: {event}")
                for message in MSGPACK.decode_broker(event.data):
                    if isinstance(message, wire.Error):
                        raise SystemExit(f"connection {number}: {message.code}: {message.text}")
                    subscribed = subscribed or isinstance(message, wire.Subscribed)
            if not subscribed:
                data = receive(opened, number)


def receive(opened: socket.socket, number: int) -> bytes:
    data = opened.recv(65536)
    if not data:
        raise SystemExit(f"connection {number} was closed by the broker")
    return data


def main(port: int, connections: int, topics: int, kind: str) -> None:
    names = [f"bench/{topic:0{len(str(topics - 1))}d}" for topic in range(topics)]
    sockets: list[socket.socket] = []
    for first in range(0, connections, AT_ONCE):
        batch = [(number, connect(port)) for number in range(first, min(first + AT_ONCE, connections))]
        if kind == "product":
            subscribe(batch, port, topics, names)
        sockets += [opened for _, opened in batch]
    poll = select.epoll()
    for opened in sockets:
        opened.setblocking(False)
        poll.register(opened, select.EPOLLIN)
    poll.register(sys.stdin, select.EPOLLIN)
    by_number = {opened.fileno(): opened for opened in sockets}
    print("ready", flush=True)
    buffer = bytearray(65536)
    received = 0
    ping = masked(wire.Ping())
    pinged, next_ping = 0, time.monotonic()
    while True:
        for number, _ in poll.poll(0.02, 512):
            found = by_number.get(number)
            if found is None:
                if not sys.stdin.readline():
                    return
                print(received, flush=True)
                continue
            count = found.recv_into(buffer)
            if not count:
                raise SystemExit("a connection was closed by the server")
            received += count
        if kind == "product" and time.monotonic() >= next_ping:
            for _ in range(8):
                sockets[pinged % connections].send(ping)
                pinged += 1
            next_ping += 8 * PING_EVERY / connections
            next_ping = max(next_ping, time.monotonic() - 1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "raw")
