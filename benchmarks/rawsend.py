"""The raw loop of rawsend.c in Python: `socket.send` of prepared bytes. It takes the same arguments and lines."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path


def main(frame: bytes, connections: int, topics: int) -> None:
    """Accept the connections. Then, for each line "rate seconds" on stdin, send `frame` to the next topic's
    connections at each due time, and print the numbers of bursts and of incomplete sends."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print("listening", listening.getsockname()[1], flush=True)
    sockets = []
    for _ in range(connections):
        accepted, _ = listening.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets.append(accepted)
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
    main(Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), int(sys.argv[3]))
