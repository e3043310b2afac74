"""The raw loop of rawsend.c in Python: `socket.send` of prepared bytes. It takes the same arguments and lines. With the
files of a certificate and its key as two more arguments, each send is a TLS record."""

from __future__ import annotations

import selectors
import socket
import ssl
import sys
import time
from pathlib import Path


def accept(listening: socket.socket, connections: int, context: ssl.SSLContext | None) -> list[socket.socket]:
    """Return all connections, with TLS if there is a context. Clients begin their handshakes in any order."""
    accepted: list[socket.socket] = []
    with selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        while len(accepted) < connections:
            for key, _ in waiting.select():
                if key.fileobj is listening:
                    opened, _ = listening.accept()
                    opened.setblocking(False)
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if context is None:
                        accepted.append(opened)
                    else:
                        secured = context.wrap_socket(opened, server_side=True, do_handshake_on_connect=False)
                        waiting.register(secured, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, ssl.SSLSocket)
                try:
                    key.fileobj.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                except OSError:  # the client gave up, and will come again
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()
                    continue
                waiting.unregister(key.fileobj)
                accepted.append(key.fileobj)
    return accepted


def main(frame: bytes, connections: int, topics: int, files: list[str]) -> None:
    """Accept the connections. Then, for each line "rate seconds" on stdin, send `frame` to the next topic's
    connections at each due time, and print the numbers of bursts and of incomplete sends."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print("listening", listening.getsockname()[1], flush=True)
    context = None
    if files:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
    sockets = accept(listening, connections, context)
    print("ready", flush=True)
    by_topic = [[connection.send for connection in sockets[topic::topics]] for topic in range(topics)]
    size = len(frame)
    for line in sys.stdin:
        rate, seconds = map(float, line.split())
        bursts = max(1, int(rate * seconds + 0.5)) * topics
        short = 0
        start = time.monotonic()
        for burst in range(bursts):
            wait = start + burst / (rate * topics) - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            for send in by_topic[burst % topics]:
                if send(frame) != size:
                    short += 1
        print(bursts, short, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
