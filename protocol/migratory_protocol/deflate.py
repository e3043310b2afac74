"""permessage-deflate (RFC 7692) where every message stands alone.

No context is kept from one message to the next, in either direction: an idle connection costs nothing, and a
publication is compressed once for all of its subscribers.
"""

from __future__ import annotations

import zlib

_TAIL = b"\x00\x00\xff\xff"
_ENDS = (b"", _TAIL, b"\x00" + _TAIL)


class TooLarge(ValueError):
    """The inflated message is over the limit."""


def compressed_limit(limit: int) -> int:
    """Bytes that a compressed message of `limit` bytes can need: deflate adds a little to what it can't shrink."""
    return limit + (limit >> 5) + 64


def compress(payload: bytes, level: int = 6) -> bytes:
    """The payload of a frame with RSV1 set (7.2.1)."""
    deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
    return (deflater.compress(payload) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]


def inflate(payload: bytes, limit: int) -> bytes:
    """The message in `payload` (7.2.2), inflating no more than one byte over `limit`.

    Raises TooLarge, and ValueError for what is no deflated data.
    """
    inflater = zlib.decompressobj(-15)
    try:
        message = inflater.decompress(payload + _TAIL, limit + 1)
    except zlib.error:
        raise ValueError("the compressed message cannot be inflated") from None
    if len(message) > limit:
        raise TooLarge(f"the inflated message is larger than {limit} bytes")
    # a sender may end its last block for good (7.2.3.5): then only what ends every message may be left
    if inflater.eof and inflater.unused_data not in _ENDS:
        raise ValueError("the compressed message has more behind its end")
    return message
