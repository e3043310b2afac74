"""A target that exceeds the time limit for inputs that begin with a certain byte."""

import time
from collections.abc import Iterator

SHAPE, SKIP, MAX_LEN, TOKENS = "bytes", 0, 20, ()


def run(data: bytes) -> None:
    if data[:1] == b"M":
        end = time.process_time() + 2.1
        while time.process_time() < end:
            pass


def seeds() -> Iterator[bytes]:
    yield b"aaaa"
