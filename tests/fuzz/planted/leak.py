"""A target that leaks memory: it holds a part of every input for ever."""

from collections.abc import Iterator

SHAPE, SKIP, MAX_LEN, TOKENS = "bytes", 0, 20, ()
kept: list[bytearray] = []


def run(data: bytes) -> None:
    kept.append(bytearray(100_000))


def seeds() -> Iterator[bytes]:
    yield b"aaaa"
