"""A target that fails for inputs that begin with three certain bytes: guided by coverage, a fuzzer finds one byte
after the other; random inputs hardly ever fail."""

from collections.abc import Iterator

SHAPE, SKIP, MAX_LEN, TOKENS = "bytes", 0, 20, ()


def run(data: bytes) -> None:
    for byte, wanted in zip(data, b"Mq7", strict=False):
        if byte != wanted:
            return
    if len(data) >= 3:
        raise ValueError("planted")


def seeds() -> Iterator[bytes]:
    yield b"aaaa"
