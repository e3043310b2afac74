"""Thinned samples beside all samples: sums, statistics and restarts are the same, whatever the counters do, and however
the samples are divided among tasks."""

from __future__ import annotations

import itertools
import math
import os
import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from migratory_spark.aggregate import totals
from migratory_spark.aggregate.series_catalog import build_catalog
from migratory_spark.aggregate.totals import AggregatePass, TotalsPlan
from migratory_spark.prometheus.selectors import narrow, parse
from migratory_spark.read import samples as samples_module
from migratory_spark.read import series_pack
from migratory_spark.read.merge import NotMergeable, SeriesStats, merge_packs
from migratory_spark.read.series_pack import SampleQuery, SeriesKey, SeriesPack, pack_batches
from migratory_spark.read.thinning import Cells
from migratory_testing.reports import Sample, batches, objective, of_packs

SEEDS = int(os.environ.get("MIGRATORY_SLA_SEEDS", "20"))
"""Random data sets to try."""
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
EVERYTHING = SampleQuery(frozenset({"c_total", "c_created"}), -1, 2**62)


def counter(source: random.Random, begins: int, moments: list[int]) -> list[tuple[int, float]]:
    """Return samples of a counter that rises mostly, by tenths and millions, and restarts, is late, has no number or
    twice the same time now and then."""
    value, found = source.choice([0.0, 5e6]), []
    for moment in moments:
        odd = source.random()
        value += source.choice([0.0, 0.1, 1.0, 12.7, 1e6 / 3])
        if odd < 0.02:
            value = source.choice([0.0, 0.3])
        if odd > 0.97:
            found.append((moment + begins, source.choice([math.nan, math.inf, -1.0, STALE, max(0.0, value - 3)])))
        found.append((moment + begins, value))
    return found


def sums(parts: list[SeriesPack], edges: list[int]) -> tuple[list[int], list[float], list[int], int, list[SeriesStats]]:
    merged = merge_packs(parts)
    catalog = build_catalog(merged.stats, edges[0])
    rows = np.array([-1 if entry.stats.metric == "c_created" else 0 for entry in catalog.entries])
    work = AggregatePass(catalog.index, (TotalsPlan(np.array(edges), rows),), np.full(len(rows), -1))
    result = totals.combine_results([work(iter([merged.timeline, merged.others]))])
    (found,) = result.totals
    stats = [replace(each, changes=()) for each in merged.stats]
    return found.keys.tolist(), found.whole.tolist(), found.fraction.tolist(), result.restarts, stats


@pytest.mark.parametrize("seed", range(SEEDS))
def test_thinned_samples_have_the_same_sums_and_statistics(seed: int) -> None:
    source = random.Random(f"thinned {seed}")
    moments = sorted(source.sample(range(1, 100_000), 400))
    # Some counters have evidence of their starts: a value that changes at a restart.
    starts = sorted(source.sample(moments, source.randint(0, 3)))
    rows: list[Sample] = []
    for number in range(4):
        labels = {"instance": f"w{number}"}
        shift = source.randrange(50)
        rows += [("c_total", labels, at, value) for at, value in counter(source, shift, moments)]
        if number % 2:
            rows += [("c_created", labels, at + shift, float(sum(at >= start for start in starts))) for at in moments]
    edges = sorted(source.sample(range(100_000), source.randint(2, 30)))
    source.shuffle(rows)
    (whole,) = pack_batches(batches(rows), EVERYTHING)
    after = source.choice([-1, source.randrange(50_000)])
    changes = {at for each in merge_packs([whole]).stats for at in each.changes}
    cells = Cells.from_moments(edges, [after, *(at - 1 for at in changes)])
    cuts = [0, *sorted(source.sample(range(100_000), source.randint(0, 4))), 2**60]
    thinned = []
    for begin, end in itertools.pairwise(cuts):
        part = [row for row in rows if begin < row[2] <= end]
        for pack in pack_batches(batches(part), replace(EVERYTHING, metrics=frozenset({"c_total"}), cells=cells)):
            thinned.append(pack)
        thinned += pack_batches(batches(part), replace(EVERYTHING, metrics=frozenset({"c_created"})))
    of_whole = sums([whole.after(after)], edges)
    assert sums([pack.after(after) for pack in thinned], edges) == of_whole
    assert sum(map(len, (pack.times for pack in thinned))) < 0.9 * len(whole.times)


def test_only_the_last_sample_before_each_edge_stays_of_a_rising_counter() -> None:
    times = np.arange(0, 1000, 10)
    pack = SeriesPack([SeriesKey("c_total", (), "")], np.array([7]), np.array([100]), times, np.sqrt(times))
    thin = pack.thinned(Cells.from_moments([205, 500], [700]))
    assert thin.times.tolist() == [0, 200, 500, 700, 710, 990]
    assert thin.weights is not None
    assert thin.weights.tolist() == [1, 20, 30, 20, 1, 28]


def test_parts_that_overlap_cannot_be_merged_once_they_are_thinned() -> None:
    cells = Cells.from_moments([0, 100], [])
    early, late, other = (
        SeriesPack([SeriesKey("c_total", (), source)], np.array([7]), np.array([3]), np.array(times), np.arange(3.0))
        for source, times in (("", [1, 2, 9]), ("", [9, 10, 11]), ("b", [20, 21, 22]))
    )
    merge_packs([late.thinned(cells), early.thinned(cells)])
    for packs in (
        [early, SeriesPack(late.keys, late.series, late.counts, late.times - 1, late.values)],
        [early, other],
    ):
        assert sum(each.samples for each in merge_packs(packs).stats) == 6
        with pytest.raises(NotMergeable):
            merge_packs([pack.thinned(cells) for pack in packs])


def test_samples_in_no_order_are_read_whole() -> None:
    """Samples of one counter come in two packs whose times overlap. Only both together show that it fell."""
    values = [10, 20, 30, 5, 50, 60, 70, 80]
    labels = {"cluster": "c", "instance": "w", "job": "load", "broker": "b", "clock": "same", "phase": "live"}
    rows: list[Sample] = [
        (metric, {**labels, **more}, 1000 * second, float(value))
        for second, value in enumerate(values, 1)
        for metric, more in (
            ("migratory_received_total", {}), ("migratory_delivery_latency_seconds_bucket", {"le": "+Inf"}),
        )
    ]  # fmt: skip

    def pack(query: SampleQuery) -> list[SeriesPack]:
        halves = [[row for row in rows if row[2] // 1000 % 2 == half] for half in (0, 1)]
        return [pack for half in halves for pack in pack_batches(batches(half), query)]

    report = of_packs(pack, 0, 9, [objective(type="latency", threshold="1s", target="99")])
    assert report.latency_ms.all.count == 20 + 10 + 5 + 75


@pytest.mark.parametrize("texts", [5, 40_000])
def test_texts_that_stay_dictionaries_make_the_same_packs(
    texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large row groups are read with their texts as dictionaries, and as plain texts if a dictionary was given up
    within the group because of its size."""
    source = random.Random(3)
    rows: list[Sample] = [
        ("c_total" if source.random() < 0.9 else "other", {"a": f"{source.randrange(texts):x}" * 9, "b": "x"}, at, 1.0)
        for at in range(40_000)
    ]
    table = pa.Table.from_batches(batches(rows))
    pq.write_table(table, tmp_path / "samples.parquet", dictionary_pagesize_limit=100_000, row_group_size=25_000)
    tasks = [[(str(tmp_path / "samples.parquet"), part, 2)] for part in range(2)]
    numbers = [pa.RecordBatch.from_pydict({"id": [0, 1]})]
    plain = merge_packs(list(samples_module._pack_files(tasks, iter(numbers), EVERYTHING)))
    monkeypatch.setattr(samples_module, "LARGE_ROWS", 10)
    monkeypatch.setattr(series_pack, "LARGE_ROWS", 10)
    merged = merge_packs(list(samples_module._pack_files(tasks, iter(numbers), EVERYTHING)))
    assert merged.stats == plain.stats
    assert np.array_equal(merged.others.times, plain.others.times)
    assert sum(each.samples for each in plain.stats) == sum(row[0] == "c_total" for row in rows)


def test_selectors_are_narrowed_to_metrics() -> None:
    first, second = parse('{__name__=~"a_.*|b",x="1"} up')
    assert narrow(first, {"a_total", "b", "c"}) == parse('{__name__=~"a_total|b",x="1"}')[0]
    assert narrow(second, {"a_total"}) is None
    (excluding,) = parse('{__name__!="a",__name__!~"b.*",x="1"}')
    assert narrow(excluding, {"a", "bc", "c"}) == parse('{__name__=~"c",x="1"}')[0]
