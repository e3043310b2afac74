"""The decoder of XOR chunks, tested with an encoder like Prometheus's and with arbitrary bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_spark.prometheus.blocks import STALE
from migratory_spark.prometheus.xor import BadChunk, decode
from migratory_testing.prometheus_wire import bits_of, chunk, of_bits

Samples = list[tuple[int, float]]


def decoded(chunks: list[bytes]) -> list[list[tuple[int, int]]]:
    """Return the (time, bits of the value) pairs of the samples of each chunk."""
    times, values, counts = decode(chunks)
    pairs = list(zip(times.tolist(), values.view(np.uint64).tolist(), strict=True))
    ends = np.cumsum(counts).tolist()
    return [pairs[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]


def bits(samples: Samples) -> list[tuple[int, int]]:
    return [(time, bits_of(value)) for time, value in samples]


def counter(seed: int, count: int) -> Samples:
    draw = random.Random(seed)
    time, value, samples = draw.randrange(2**41), 0.0, []
    for _ in range(count):
        time += draw.choice((1000, 1000, 1000, 1001, 998, 15_000, 9_000, 70_000, 600_000, 2**40))
        value += draw.choice((0, 0, 1, 7, 0.25))
        samples.append((time, value))
    return samples


def test_chunks_of_different_lengths_are_decoded_together() -> None:
    chunks = [counter(seed, count) for seed, count in enumerate([3, 0, 1, 120, 2, 120, 240, 1, 0])]
    assert decoded([chunk(samples) for samples in chunks]) == list(map(bits, chunks))


def test_empty_chunks_decode_to_no_samples() -> None:
    assert decoded([]) == []
    assert decoded([chunk([]), chunk([])]) == [[], []]


def test_values_keep_their_bits() -> None:
    odd = [
        0.0,
        -0.0,
        of_bits(STALE),
        of_bits(0x7FF8000000000001),
        float("inf"),
        float("-inf"),
        5e-324,
        1.5,
        of_bits(STALE),
    ]
    samples = list(enumerate(odd))
    assert decoded([chunk(samples)]) == [bits(samples)]


def test_value_with_64_changed_bits_is_decoded() -> None:
    samples = [(0, of_bits(0)), (1, of_bits(2**64 - 1)), (2, of_bits(0)), (3, of_bits(2**63 + 1))]
    assert decoded([chunk(samples)]) == [bits(samples)]


doubles = st.integers(0, 2**64 - 1).map(of_bits)
steps = st.one_of(st.integers(0, 3), st.integers(0, 2**13), st.integers(0, 2**21), st.integers(0, 2**50))


@st.composite
def series(draw: Any) -> Samples:
    time = draw(st.integers(-(2**50), 2**50))
    chunks = []
    for step, value in draw(st.lists(st.tuples(steps, st.one_of(doubles, st.sampled_from([1.0, 2.0]))), max_size=40)):
        time += step
        chunks.append((time, value))
    return chunks


@given(st.lists(series(), max_size=12))
def test_encoded_samples_are_decoded(chunks: list[Samples]) -> None:
    assert decoded([chunk(samples) for samples in chunks]) == list(map(bits, chunks))


@pytest.mark.parametrize(
    "change", [2**13, 2**13 + 1, -(2**13) + 1, -(2**13), 2**16, 2**16 + 1, -(2**16), 2**19, -(2**19)]
)
def test_time_differences_at_the_ends_of_their_ranges_are_decoded(change: int) -> None:
    first = 2**20
    samples = [(0, 1.0), (first, 1.0), (2 * first + change, 1.0), (4 * first, 1.0)]
    assert decoded([chunk(samples)]) == [bits(samples)]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5))
def test_arbitrary_bytes_are_rejected_or_harmless(chunks: list[bytes]) -> None:
    try:
        times, values, counts = decode(chunks)
    except BadChunk:
        return
    assert len(times) == len(values) == counts.sum()


def test_a_truncated_chunk_among_valid_ones_is_rejected() -> None:
    good = chunk(counter(1, 120))
    with pytest.raises(BadChunk, match="ends before its last sample"):
        decode([good, b"\x00\x78" + good[2 : len(good) - 8], good])
    with pytest.raises(BadChunk, match="too short for its count"):
        decode([b"\xff\xff" + bytes(100)])
    with pytest.raises(BadChunk, match="shorter than its count"):
        decode([b"\x00"])
    with pytest.raises(BadChunk, match="longer than 64 bits"):
        decode([b"\x00\x01" + b"\xff" * 30])
