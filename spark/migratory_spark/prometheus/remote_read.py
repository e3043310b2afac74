"""Reads samples by Prometheus's remote-read interface: exact samples with stale markers.

Streamed chunks are preferred. Compared with plain samples they cost the server a third of the CPU time and no memory
for the whole response, and less work here (docs/reference/prometheus-source.md). Plain samples are for servers that do
not stream, and for kinds of chunk that are not supported here. They lack the bounds of native histograms with custom
buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from migratory_spark.prometheus import chunk_stream, sample_response
from migratory_spark.prometheus.blocks import SampleBlock
from migratory_spark.prometheus.errors import BrokenResponse, ServerError
from migratory_spark.prometheus.http import send_request
from migratory_spark.prometheus.options import Access
from migratory_spark.prometheus.protobuf import (
    SAMPLES,
    STREAMED_XOR_CHUNKS,
    BadProtobuf,
    NotSupported,
    read_request,
    varint,
)
from migratory_spark.prometheus.selectors import Matcher

PATH = "/api/v1/read"
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Read-Version": "0.1.0",
}
_STREAMED = "application/x-streamed-protobuf"
_PLAIN = "application/x-protobuf"
_MAX_RESPONSE_BYTES = 2**31
"""Bytes of the largest plain response, uncompressed. Servers limit it to 50,000,000 samples, which are 0.9 GB."""


def read(
    server: str, access: Access, selector: Sequence[Matcher], start_ms: int, end_ms: int, stream: bool = True
) -> Iterator[SampleBlock]:
    """Yield blocks of whole series that the selector selects, with their samples in [start, end) (ms since 1970).
    Raises ServerError; it is a BrokenResponse if the response ends early or violates the protocol.

    :param stream: True to accept streamed chunks, False to request plain samples only.
    """
    accepted = (STREAMED_XOR_CHUNKS, SAMPLES) if stream else (SAMPLES,)
    # The protocol includes the end.
    request = read_request(selector, start_ms, end_ms - 1, accepted)
    with send_request(server, PATH, access, pa.compress(request, codec="snappy", asbytes=True), _HEADERS) as response:
        content_type = response.content_type.partition(";")[0].strip().lower()
        try:
            if content_type == _STREAMED:
                yield from chunk_stream.blocks(chunk_stream.frames(response.chunks()), start_ms, end_ms)
            elif content_type == _PLAIN:
                yield from sample_response.blocks(_uncompress(response.body()), start_ms, end_ms)
            else:
                raise BadProtobuf(
                    f"content of type {response.content_type or 'none'}; is option url that of Prometheus?"
                )
        except NotSupported as error:
            raise ServerError(server, str(error)) from error
        except BadProtobuf as error:
            raise BrokenResponse(server, f"the answer is not what remote read sends: {error}") from error


def _uncompress(body: bytes) -> bytes:
    """Return the body of a plain response uncompressed. Raises BadProtobuf, also if it is larger than
    _MAX_RESPONSE_BYTES."""
    # Snappy's raw format begins with the uncompressed length.
    size, _ = varint(body, 0)
    if size > _MAX_RESPONSE_BYTES:
        raise BadProtobuf(f"a response of {size} bytes, which is more than {_MAX_RESPONSE_BYTES}")
    if size == 0:
        return b""
    try:
        uncompressed: bytes = pa.decompress(body, decompressed_size=size, codec="snappy", asbytes=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadProtobuf(f"invalid snappy data: {error}") from error
    return uncompressed
