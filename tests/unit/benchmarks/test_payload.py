"""The receiver finds publications in any protocol's bytes, however the bytes are split."""

from __future__ import annotations

import pytest

from benchmarks.payload import HEAD, MARK, PartialHeads, build, read


def test_built_payload_is_read_back() -> None:
    payload = build(140, 1_234_567_890_123, 42)
    assert len(payload) == 140
    assert read(payload[:HEAD]) == (1_234_567_890_123, 42)
    assert payload.isascii()
    assert payload.count(MARK) == 1
    with pytest.raises(ValueError, match="bytes or more"):
        build(HEAD - 1, 1, 1)


def found(chunks: list[bytes]) -> list[int]:
    """Return the numbers found in a stream that arrives in these chunks, by the same steps as the receiver's."""
    carry, numbers = PartialHeads(), []
    for chunk in chunks:
        data = carry.by_connection.pop(7, b"") + chunk
        place, behind = data.find(MARK), 0
        while 0 <= place <= len(data) - HEAD:
            behind = place + HEAD
            numbers.append(read(data[place:behind])[1])
            place = data.find(MARK, behind)
        carry.keep(7, data, behind, len(data))
    return numbers


def test_stream_can_be_split_anywhere() -> None:
    stream = b"".join(b"\x82\x7e\x00\x60" + build(40, 5, number) + b"\r\n" for number in range(1, 4))
    for first in range(len(stream)):
        for second in range(first, len(stream), 7):
            assert found([stream[:first], stream[first:second], stream[second:]]) == [1, 2, 3]


def test_partial_head_is_kept_only_where_one_can_start() -> None:
    carry = PartialHeads()
    data = b"\x82\x10" + build(40, 5, 1) + b"}}"
    carry.keep(1, data, HEAD + 2, len(data))
    assert carry.by_connection == {}
