"""Samples by Prometheus's remote-read interface: exact, with stale markers.

Streamed chunks are asked for first. Measured against plain samples they cost the server a third of the CPU time, no
memory for the whole answer, and here less as well (docs/prometheus-source.md); plain ones are for servers that do not
stream, and for kinds of chunk that are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from migratory_spark.errors import BrokenAnswer
from migratory_spark.prometheus import chunk_stream, sample_response
from migratory_spark.prometheus.blocks import Block
from migratory_spark.prometheus.http import ask
from migratory_spark.prometheus.options import Access
from migratory_spark.prometheus.protobuf import SAMPLES, STREAMED_XOR_CHUNKS, BadMessage, read_request, varint
from migratory_spark.prometheus.selectors import Matcher

PATH = "/api/v1/read"
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Read-Version": "0.1.0",
}
_STREAMED = "application/x-streamed-protobuf"
_PLAIN = "application/x-protobuf"
_LARGEST = 2**31
"""Bytes of a plain answer once it is uncompressed; servers hold to 50,000,000 samples, which are 0.9 GB."""


def read(
    server: str, access: Access, selector: Sequence[Matcher], start_ms: int, end_ms: int, stream: bool = True
) -> Iterator[Block]:
    """Whole series with what they have in [start, end). Raises ServerError."""
    accepted = (STREAMED_XOR_CHUNKS, SAMPLES) if stream else (SAMPLES,)
    # The protocol's end is included.
    request = read_request(selector, start_ms, end_ms - 1, accepted)
    with ask(server, PATH, access, pa.compress(request, codec="snappy", asbytes=True), _HEADERS) as answer:
        kind = answer.content_type.partition(";")[0].strip().lower()
        try:
            if kind == _STREAMED:
                yield from chunk_stream.blocks(chunk_stream.frames(answer.pieces()), start_ms, end_ms)
            elif kind == _PLAIN:
                yield from sample_response.blocks(_uncompressed(answer.body()), start_ms, end_ms)
            else:
                raise BadMessage(f"content of type {answer.content_type or 'none'}; is option url that of Prometheus?")
        except BadMessage as error:
            raise BrokenAnswer(server, f"the answer is not what remote read sends: {error}") from error


def _uncompressed(body: bytes) -> bytes:
    # Snappy's raw format begins with the length.
    size, _ = varint(body, 0)
    if size > _LARGEST:
        raise BadMessage(f"an answer of {size} bytes")
    if size == 0:
        return b""
    try:
        found: bytes = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadMessage(f"snappy that can't be read: {error}") from error
    return found
