"""Parsers of both kinds of remote-read responses, their errors for broken ones, and the encoding of requests."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from migratory_spark.prometheus import chunk_stream, protobuf, sample_response
from migratory_spark.prometheus.blocks import STALE, SampleBlock, SeriesId
from migratory_spark.prometheus.protobuf import BadProtobuf
from migratory_spark.prometheus.selectors import parse
from migratory_testing import prometheus_wire as made
from migratory_testing.prometheus_wire import Labels, bits_of, of_bits

Samples = list[tuple[int, float]]
Told = list[tuple[SeriesId, list[tuple[int, int]]]]
START, END = 1_700_000_000_000, 1_700_000_600_000


def told(blocks: Iterator[SampleBlock]) -> Told:
    """Return the (time, bits of the value) pairs of each series of the blocks, in order."""
    decoded: Told = []
    for block in blocks:
        assert block.counts.sum() == len(block.times) == len(block.values)
        ends = np.cumsum(block.counts).tolist()
        for series_id, end, count in zip(block.series, ends, block.counts.tolist(), strict=True):
            part = slice(end - count, end)
            values = block.values[part].view(np.uint64).tolist()
            decoded.append((series_id, list(zip(block.times[part].tolist(), values, strict=True))))
    return decoded


def expected(series: list[tuple[Labels, Samples]], start: int = START, end: int = END) -> Told:
    decoded: Told = []
    for labels, samples in series:
        others = {name: value for name, value in labels.items() if name != "__name__" and value}
        inside = [(time, bits_of(value)) for time, value in samples if start <= time < end]
        if inside:
            decoded.append((SeriesId(labels["__name__"], tuple(sorted(others.items()))), inside))
    return decoded


def streamed(data: bytes, size: int = 1000, chunks: int = 3) -> Told:
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    return told(chunk_stream.blocks(chunk_stream.frames(pieces), START, END, chunks))


def unstreamed(data: bytes, rows: int = 100) -> Told:
    return told(sample_response.blocks(data, START, END, rows))


def fleet(count: int) -> list[tuple[Labels, Samples]]:
    draw = random.Random(count)
    series_list: list[tuple[Labels, Samples]] = []
    for number in range(count):
        labels = {"__name__": "c_total", "instance": f"host-{number:03}", "text": 'a"b\\ é\n' + "x" * 150, "none": ""}
        values = [0.0, 0.0, *(float(draw.randrange(2) * draw.random()) for _ in range(draw.randrange(400)))]
        times = [START - 5_000 + 1000 * at + draw.randrange(3) for at in range(len(values))]
        series_list.append((labels, list(zip(times, values, strict=True))))
    return series_list


def test_streamed_and_plain_responses_are_equal() -> None:
    series = fleet(12)
    data = made.streamed(series)
    assert streamed(data) == streamed(data, size=7, chunks=1000) == streamed(data, chunks=1) == expected(series)
    assert unstreamed(made.plain(series)) == unstreamed(made.plain(series), rows=10**9) == expected(series)


def test_a_long_series_in_several_frames_is_one_series() -> None:
    series = fleet(3)
    assert streamed(made.streamed(series, per_chunk=5, per_frame=2), chunks=2) == expected(series)


def test_an_empty_response_has_no_blocks() -> None:
    assert streamed(b"") == []
    assert unstreamed(b"") == unstreamed(made.plain([])) == []
    empty: list[tuple[Labels, Samples]] = [({"__name__": "a"}, []), ({"__name__": "b"}, [(END, 1.0)])]
    assert streamed(made.streamed(empty)) == unstreamed(made.plain(empty)) == []


def test_the_window_is_half_open_and_series_without_a_sample_in_it_are_left_out() -> None:
    ends = [(START - 1, 1.0), (START, 2.0), (END - 1, 3.0), (END, 4.0)]
    series = [({"__name__": "a"}, ends), ({"__name__": "b"}, [ends[0], ends[3]]), ({"__name__": "c"}, ends)]
    assert streamed(made.streamed(series)) == unstreamed(made.plain(series)) == expected(series)
    assert [key.metric for key, _ in expected(series)] == ["a", "c"]


def test_stale_markers_and_other_nan_keep_their_bits() -> None:
    values = [1.0, of_bits(STALE), of_bits(0x7FF8000000000001), 0.0, -1.0]
    series = [({"__name__": "a"}, [(START + at, value) for at, value in enumerate(values)])]
    assert streamed(made.streamed(series)) == unstreamed(made.plain(series)) == expected(series)


times = st.one_of(st.integers(START, END), st.integers(-(2**62), 2**62), st.just(0))
doubles = st.one_of(st.integers(0, 2**64 - 1).map(of_bits), st.sampled_from([0.0, 1.0]))


@given(st.lists(st.tuples(times, doubles), max_size=30), st.integers(1, 40))
def test_plain_samples_of_every_length_are_decoded(samples: Samples, rows: int) -> None:
    # Protobuf leaves a zero out, and with it the sign of a negative one.
    samples = [(time, value + 0.0 if value == 0 else value) for time, value in samples]
    series: list[tuple[Labels, Samples]] = [({"__name__": "a"}, samples)]
    decoded = told(sample_response.blocks(made.plain(series), -(2**63), 2**63 - 1, rows))
    assert decoded == expected(series, -(2**63), 2**63)


@example(b"\xd2\x00")
@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_rejected_or_harmless(data: bytes) -> None:
    for read in (unstreamed, lambda data: streamed(made.frame(data)), streamed):
        try:
            read(data)
        except BadProtobuf:
            continue


@given(st.integers(0, 10**9), st.binary(min_size=1, max_size=3))
def test_a_damaged_response_is_rejected_or_harmless(place: int, change: bytes) -> None:
    whole = made.plain(fleet(2))
    place %= len(whole)
    try:
        unstreamed(whole[:place] + change + whole[place + len(change) :])
    except BadProtobuf:
        return


def test_a_truncated_or_damaged_stream_is_rejected() -> None:
    data = made.streamed(fleet(2))
    with pytest.raises(BadProtobuf, match="ends inside a frame"):
        streamed(data[:-1])
    with pytest.raises(BadProtobuf, match="checksum is wrong"):
        streamed(data[:-1] + b"!")


def test_an_error_text_inside_a_stream_is_reported() -> None:
    # So Go's http.Error writes it once the first frames are out.
    with pytest.raises(BadProtobuf, match="expanding series: out of disk"):
        streamed(made.streamed(fleet(2)) + b"expanding series: out of disk\n")
    with pytest.raises(BadProtobuf, match=r"expected a frame, got: .*ééé"):
        streamed(made.streamed(fleet(2)) + "ééé ooops".encode())


def test_a_request_encodes_its_query() -> None:
    (selector,) = parse('up{job=~"a|b",x!="",y!~"z"}')
    fields = made.fields(protobuf.read_request(selector, -5, 2**41, (1, 0)))
    assert fields[1] == (2, b"\x01\x00")
    query = made.fields(fields[0][1])
    assert query[:2] == [(1, 2**64 - 5), (2, 2**41)]
    matchers = [dict(made.fields(content)) for _, content in query[2:]]
    assert matchers == [
        {2: b"__name__", 3: b"up"},
        {1: 2, 2: b"job", 3: b"a|b"},
        {1: 1, 2: b"x", 3: b""},
        {1: 3, 2: b"y", 3: b"z"},
    ]
