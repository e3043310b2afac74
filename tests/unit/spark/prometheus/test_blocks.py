"""Blocks of samples: how they are cut and merged, fingerprints of series, and partitions of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_spark.prometheus.blocks import STALE, SampleBlock, SeriesId, merge_blocks
from migratory_spark.prometheus.partitions import LENGTHS, cut, default_length, length_for
from migratory_testing.prometheus_wire import of_bits

HOUR = 3_600_000


def series(name: str, **labels: str) -> SeriesId:
    return SeriesId.from_pairs({"__name__": name, **labels}.items())


def block(*parts: tuple[SeriesId, list[tuple[int, float]]]) -> SampleBlock:
    samples = [sample for _, pairs_ in parts for sample in pairs_]
    counts = np.array([len(pairs_) for _, pairs_ in parts], np.int64)
    times = np.array([time for time, _ in samples], np.int64)
    return SampleBlock(
        [series for series, _ in parts], counts, times, np.array([value for _, value in samples], np.float64)
    )


def pairs(block: SampleBlock) -> dict[SeriesId, list[tuple[int, float]]]:
    samples: dict[SeriesId, list[tuple[int, float]]] = {}
    at = 0
    for series, count in zip(block.series, block.counts.tolist(), strict=True):
        part = slice(at, at + count)
        assert series not in samples
        samples[series] = list(zip(block.times[part].tolist(), block.values[part].tolist(), strict=True))
        at += count
    return samples


A, B = series("a", x="1", replica="r0"), series("b")


def test_samples_of_two_servers_count_once_and_complete_each_other() -> None:
    first = block((A, [(1, 1.0), (2, 2.0), (4, 4.0)]), (B, [(1, 9.0)]))
    second = block((B, [(2, 10.0)]), (A, [(2, 2.0), (3, 3.0), (4, 5.0)]))
    (merged,) = merge_blocks([first, second])
    # Of two values for one moment the higher one stays.
    assert pairs(merged) == {A: [(1, 1.0), (2, 2.0), (3, 3.0), (4, 5.0)], B: [(1, 9.0), (2, 10.0)]}


def test_a_number_is_preferred_to_a_stale_marker() -> None:
    stale, other = of_bits(STALE), of_bits(0x7FF8000000000001)
    (merged,) = merge_blocks([block((A, [(1, stale), (2, 2.0), (3, stale)])), block((A, [(1, -1.0), (2, other)]))])
    assert merged.times.tolist() == [1, 2, 3]
    assert merged.values[:2].tolist() == [-1.0, 2.0]
    assert merged.values.view(np.uint64)[2] == STALE


def test_replicas_are_one_series_when_their_label_is_dropped() -> None:
    twin = series("a", x="1", replica="r1")
    (merged,) = merge_blocks([block((A, [(1, 1.0), (3, 3.0)]), (twin, [(1, 1.0), (2, 2.0)]))], frozenset({"replica"}))
    assert pairs(merged) == {series("a", x="1"): [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_merging_no_blocks_yields_none() -> None:
    assert list(merge_blocks([])) == []


samples = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([0.0, 1.0, 2.0])), max_size=8)


@given(st.lists(st.tuples(st.sampled_from([A, B]), samples), max_size=6))
def test_merging_keeps_the_highest_value_of_each_time(parts: list[tuple[SeriesId, list[tuple[int, float]]]]) -> None:
    expected: dict[SeriesId, dict[int, float]] = {}
    for series, found in parts:
        for time, value in found:
            own = expected.setdefault(series, {})
            own[time] = max(value, own.get(time, value))
    for result in merge_blocks(block(part) for part in parts):
        found_pairs = {series: pairs_ for series, pairs_ in pairs(result).items() if pairs_}
        assert found_pairs == {series: sorted(own.items()) for series, own in expected.items()}


def test_without_removes_series() -> None:
    both = block((A, [(1, 1.0), (2, 2.0)]), (B, [(3, 3.0)]))
    assert both.without(set()) is both
    assert pairs(both.without({A})) == {B: [(3, 3.0)]}
    assert len(both.without({A, B})) == 0


def test_a_fingerprint_depends_on_metric_and_labels_only() -> None:
    ones = [A, B, series("ab"), series("a", b=""), series("a", x="1"), series("a", x="11"), series("a", xr="1")]
    assert series("a", b="") == series("a")
    assert len({series.fingerprint for series in ones}) == len(ones)
    assert A.fingerprint == series("a", replica="r0", x="1").fingerprint
    # It may lie in files: another release must find the same.
    assert series("up", job="web").fingerprint == -6401115796319079310


@given(st.integers(0, 10 * HOUR), st.integers(0, 100 * HOUR), st.sampled_from([None, 1000, 7 * 60_000, HOUR]))
def test_partitions_cover_the_window_and_meet_at_multiples(start: int, window: int, length: int | None) -> None:
    length = None if length == 1000 and window > HOUR else length
    pieces = cut(start, start + window, length)
    assert [end for _, end in pieces[:-1]] == [begin for begin, _ in pieces[1:]]
    if window == 0:
        assert pieces == []
        return
    assert (pieces[0][0], pieces[-1][1]) == (start, start + window)
    used = length or default_length(start, start + window)
    assert all(end % used == 0 for _, end in pieces[:-1])
    assert all(0 < end - begin <= used for begin, end in pieces)


def test_partition_length_depends_on_the_number_of_samples() -> None:
    assert length_for(1800 * HOUR, 10, 1000) == LENGTHS[0]
    assert length_for(4 * HOUR, 4000, 1000) == HOUR
    assert length_for(4 * HOUR, 4001, 1000) == HOUR // 2
    assert length_for(HOUR, 10**9, 1000) == LENGTHS[-1]


@pytest.mark.parametrize(
    ("window", "length"),
    [(0, 5), (30, 5), (60, 5), (80, 10), (2 * 60, 15), (8 * 60, 60), (24 * 60, 120), (99_999, 120)],
)
def test_default_partition_length_depends_on_the_window(window: int, length: int) -> None:
    assert default_length(0, window * 60_000) == length * 60_000
    assert length * 60_000 in LENGTHS
