"""A client in a process of its own that pings every 100 ms, so that what another client's test works on is not taken
for the broker's delay. `python -m migratory_testing.pinger HOST PORT`: a line `ready`, then one for each pong, the
seconds that it took; the end of the standard input ends it, after one more.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from typing import BinaryIO

from migratory_testing.rawclient import TEXT, frame, request

PAUSE = 0.1


def main(host: str, port: str) -> None:
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        stream = sock.makefile("rb")
        sock.sendall(request())
        while stream.readline() != b"\r\n":
            pass
        sock.sendall(frame(TEXT, b'{"op":"connect","client":"pinging"}'))
        receive(stream)
        print("ready", flush=True)
        last = False
        while not last:
            last = bool(select.select([sys.stdin], [], [], PAUSE)[0])
            began = time.monotonic()
            sock.sendall(frame(TEXT, b'{"op":"ping"}'))
            while receive(stream) != b'{"op":"pong"}':
                pass
            print(time.monotonic() - began, flush=True)


def receive(stream: BinaryIO) -> bytes:
    """The payload of the next frame; none is longer than 65,535 bytes."""
    head = stream.read(2)
    return stream.read(head[1] if head[1] < 126 else int.from_bytes(stream.read(2), "big"))


if __name__ == "__main__":
    main(*sys.argv[1:])
