"""Passes over samples without Spark: packs, merged series, totals and episodes do not depend on how the samples are
divided. Also limits, stale markers and series of two servers."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from migratory_resources.objectives import Objective
from migratory_spark.aggregate import exporter_timeline, totals
from migratory_spark.aggregate.coverage import ScrapeTimes
from migratory_spark.aggregate.incidents import EPISODE_MS, Episode, find_episodes, merge_episodes
from migratory_spark.aggregate.increases import compute_increases
from migratory_spark.aggregate.series_catalog import build_catalog
from migratory_spark.aggregate.time_grid import TimeGrid
from migratory_spark.aggregate.totals import AggregatePass, TooManyTotals, TotalsPlan
from migratory_spark.judge.time_slices import slice_edges
from migratory_spark.read.merge import SeriesBatch, SeriesStats, merge_packs
from migratory_spark.read.series_pack import SampleQuery, SeriesPack, pack_batches

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
MAP = pa.map_(pa.string(), pa.string())
Sample = tuple[str, dict[str, str], int, float]
METRICS = frozenset({"c_total", "g", "migratory_clients", "migratory_published_total"})
EVERYTHING = SampleQuery(METRICS, -1, 2**62)


def batches(samples: list[Sample], size: int = 7) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(samples), size):
        metric, labels, moments, values = zip(*samples[begin : begin + size], strict=True)
        yield pa.record_batch(
            [
                pa.array(metric),
                pa.array([list(each.items()) for each in labels], MAP),
                pa.array(moments, pa.int64()),
                pa.array(values, pa.float64()),
            ],
            names=["metric", "labels", "timestamp", "value"],
        )


def by_series(samples: list[Sample]) -> pa.RecordBatch:
    """Return the samples as a batch in the second accepted shape, with a list of one time and a list of one value in
    each row."""
    metric, labels, moments, values = zip(*samples, strict=True)
    return pa.record_batch(
        [
            pa.array(metric),
            pa.array([list(each.items()) for each in labels], MAP),
            pa.array([[moment] for moment in moments], pa.list_(pa.int64())),
            pa.array([[value] for value in values], pa.list_(pa.float64())),
        ],
        names=["metric", "labels", "timestamps", "values"],
    )


def packed(samples: list[Sample], wanted: SampleQuery = EVERYTHING) -> list[SeriesPack]:
    return list(pack_batches(batches(samples), wanted))


def test_both_shapes_and_every_order_are_the_same_series() -> None:
    samples: list[Sample] = [
        ("c_total", {"a": str(series), "b": "x"}, 100 * moment, float(moment * series))
        for series in range(5)
        for moment in range(20)
    ]
    samples += [("other_total", {}, 5, 1.0), ("c_total", {"a": "0", "b": "x"}, 300, math.nan)]
    shuffled = [(metric, dict(reversed(labels.items())), moment, value) for metric, labels, moment, value in samples]
    random.Random(1).shuffle(shuffled)
    in_order, by_series_ = (
        merge_packs(packed(samples)),
        merge_packs(list(pack_batches(iter([by_series(shuffled)]), EVERYTHING))),
    )
    assert in_order.stats == by_series_.stats
    assert sum(about.samples for about in in_order.stats) == 100
    assert sum(about.nan for about in in_order.stats) == 1
    for name in ("series", "counts", "times", "values"):
        assert np.array_equal(getattr(in_order.others, name), getattr(by_series_.others, name))


def test_packs_have_only_samples_that_the_query_selects() -> None:
    samples: list[Sample] = [
        ("c_total", {"cluster": cluster, "replica": replica}, moment, 1.0)
        for cluster in ("one", "two")
        for replica in ("r1", "r2")
        for moment in (10, 20, 30)
    ]
    (pack,) = packed(samples, SampleQuery(frozenset({"c_total"}), 10, 20, ("replica",), "two"))
    assert {(name.labels, name.source) for name in pack.keys} == {
        ((("cluster", "two"),), "r1"), ((("cluster", "two"),), "r2"),
    }  # fmt: skip
    assert pack.times.tolist() == [20, 20]
    assert len(set(pack.series.tolist())) == 1


def test_split_packs_are_complete_and_keep_a_target_together() -> None:
    samples: list[Sample] = [
        (metric, {"broker": f"b{broker}", "le": str(le)}, moment, float(moment))
        for metric in ("c_total", "migratory_clients", "migratory_published_total")
        for broker in range(6)
        for le in range(3)
        for moment in (1, 2)
    ]
    (pack,) = packed(samples)
    parts = dict(pack.split(4))
    assert sum(len(part.times) for part in parts.values()) == len(samples)
    assert len(parts) > 1
    for broker in range(6):
        of_target = [
            place
            for place, part in parts.items()
            if any(name.metric != "c_total" and ("broker", f"b{broker}") in name.labels for name in part.keys)
        ]
        assert len(of_target) == 1
    whole = {stats.series: stats for stats in merge_packs([pack]).stats}
    assert {stats.series: stats for part in parts.values() for stats in merge_packs([part]).stats} == whole


def test_split_batches_have_whole_series() -> None:
    flat = SeriesBatch(np.arange(4), np.array([3, 1, 5, 2]), np.arange(11), np.arange(11.0), np.arange(11.0))
    pieces = list(flat.split(4))
    assert [piece.counts.tolist() for piece in pieces] == [[3, 1], [5], [2]]
    assert np.concatenate([piece.times for piece in pieces]).tolist() == list(range(11))
    assert flat.select(np.array([False, True, False, True])).values.tolist() == [3.0, 9.0, 10.0]


def test_a_gauge_that_falls_is_no_restart() -> None:
    """A broker's restart is derived from its counters only, and not from a gauge that falls: clients may simply
    disconnect."""
    samples: list[Sample] = []
    for moment in range(1, 11):
        labels = {"broker": "b0", "job": "broker", "instance": "h"}
        samples.append(("migratory_clients", labels, 1000 * moment, 10.0 - moment))
        samples.append(("migratory_published_total", labels, 1000 * moment, float(moment % 6)))
    merged = merge_packs(packed(samples))
    known = build_catalog(merged.stats, 0)
    timeline = exporter_timeline.TimelinePass.from_catalog(known, [(0, 20_000)])(iter([merged.timeline]))
    ((broker,),) = timeline.exporters
    assert (broker.role, broker.name, broker.scrapes, broker.restarts) == ("brokers", "b0", 10, ((5000, 6000),))


def test_scrape_times_of_a_target_with_several_series() -> None:
    times = [np.array([10, 20, 30, 90]), np.array([20, 30, 40])]
    scrapes = ScrapeTimes.from_series(times, [np.array([20]), np.array([40, 200])])
    exporter = scrapes.exporter_within("clients", "w", 15, 100)
    assert exporter is not None
    assert (exporter.first, exporter.last, exporter.scrapes, exporter.interval) == (20, 90, 4, 10.0)
    assert (exporter.gaps, exporter.restarts, exporter.longest) == (((40, 90),), ((10, 20), (30, 40)), 50)
    assert scrapes.exporter_within("clients", "w", 91, 100) is None


def test_episodes_are_the_same_whatever_parts_they_come_in() -> None:
    source = random.Random(4)
    moments = np.array(sorted(source.sample(range(0, 400_000, 50), 120)), dtype=np.int64)
    since, rise = moments - 700, np.array([float(source.randint(1, 9)) for _ in moments])
    whole = merge_episodes(find_episodes(moments, since, rise))
    assert 5 < len(whole) < 120
    assert sum(each.count for each in whole) == rise.sum()
    assert all(after.seen - before.until > EPISODE_MS for before, after in pairwise(whole))
    for parts in (2, 5):
        part = np.array([source.randrange(parts) for _ in moments])
        chosen = [part == number for number in range(parts)]
        episodes = [each for mine in chosen for each in find_episodes(moments[mine], since[mine], rise[mine])]
        source.shuffle(episodes)
        assert merge_episodes(episodes) == whole
    assert merge_episodes([Episode(5, 10, 10, 1.0), Episode(2, 10, 20, 2.0)]) == [Episode(2, 10, 20, 3.0)]


def test_intervals_include_their_end() -> None:
    source = random.Random(7)
    for wanted in ([0, 10, 11, 12, 100], [5, 9], range(0, 12_297, 3)):
        tally = TotalsPlan(np.array(TimeGrid.from_moments(wanted).edges), np.zeros(0, dtype=np.int64))
        moments = np.array([source.randint(tally.edges[0] - 5, tally.edges[-1] + 5) for _ in range(500)])
        for moment, cell in zip(moments.tolist(), tally.column_of(moments).tolist(), strict=True):
            if tally.edges[0] < moment <= tally.edges[-1]:
                assert tally.edges[cell] < moment <= tally.edges[cell + 1]
            else:
                assert not 0 <= cell < tally.columns


def test_totals_do_not_depend_on_partitions() -> None:
    """Totals are identical however the samples are divided among one, two or five parts, although tenths have no
    exact binary representation and sums in different orders differ in the last digit."""
    samples: list[Sample] = [
        ("c_total", {"a": str(series)}, 100 * moment, moment * (0.1 + series / 7))
        for series in range(9)
        for moment in range(50)
    ]
    results = []
    for places in (1, 2, 5):
        parts = {place: [part] for place, part in packed(samples)[0].split(places)}
        merged = [merge_packs(each) for each in parts.values()]
        known = build_catalog([stats for each in merged for stats in each.stats], -1)
        tally = TotalsPlan(np.array([0, 1000, 5000]), np.zeros(len(known.entries), dtype=np.int64))
        work = AggregatePass(known.index, (tally,), np.full(len(known.entries), -1))
        added = totals.combine_results([work(each.others.split(60)) for each in merged])
        results.append((added.totals[0].keys.tolist(), added.totals[0].values.tolist()))
    assert results[0] == results[1] == results[2]
    truth = math.fsum(49 * (0.1 + series / 7) for series in range(9))
    assert math.isclose(sum(results[0][1]), truth, rel_tol=1e-12)


def test_stale_markers_are_distinguished_from_other_nan() -> None:
    samples: list[Sample] = [("g", {}, 1, STALE), ("g", {}, 2, math.nan), ("g", {}, 3, math.inf), ("g", {}, 4, 1.0)]
    (about,) = merge_packs(packed(samples)).stats
    assert (about.samples, about.unique, about.stale, about.nan, about.first, about.last) == (1, 1, 1, 2, 4, 4)
    nothing = merge_packs(packed(samples[:3]))
    assert (nothing.stats[0].first, len(nothing.others.series)) == (None, 0)


def test_passes_without_samples_are_empty() -> None:
    merged = merge_packs([])
    known = build_catalog(merged.stats, 0)
    assert exporter_timeline.TimelinePass.from_catalog(known, [(0, 1)])(iter(())).exporters == [[]]
    tally = TotalsPlan(np.array([0, 1]), np.zeros(0, dtype=np.int64))
    added = totals.combine_results([AggregatePass(known.index, (tally,), np.zeros(0, dtype=np.int64))(iter(()))])
    assert (len(added.totals[0].keys), added.readings, added.restarts) == (0, {}, 0)
    assert compute_increases(merged.others, known.index).increase.tolist() == []


def test_too_many_totals_and_slices_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = {"length": "1s", "share": "99"}
    fine = Objective.model_validate({"name": "fine", "type": "availability", "target": "99", "slices": slices})
    assert slice_edges(fine, 0, 2500).tolist() == [0, 1000, 2000, 2500]
    with pytest.raises(TooManyTotals, match="5,000,000 slices in fine"):
        slice_edges(fine, 0, 366 * 86_400_000)
    monkeypatch.setattr(totals, "MAX_TOTALS", 1)
    sums = totals.Totals(np.arange(2), np.ones(2), np.zeros(2, dtype=np.int64))
    with pytest.raises(TooManyTotals, match="longer rows"):
        totals.combine_results([totals.AggregateResult([sums], {}, 0)])


def test_statistics_of_a_series_with_two_servers() -> None:
    samples: list[Sample] = [
        ("c_total", {"replica": replica}, 60_000 * minute + 1000 * second + late, 100.0 * minute + second)
        for minute in range(2)
        for second in range(1, 10)
        for replica, late in (("r1", 0), ("r2", 300))
        if not (minute == 1 and replica == "r1" and second > 5)
    ]
    merged = merge_packs(packed(samples, SampleQuery(frozenset({"c_total"}), 0, 2**62, ("replica",))))
    (about,) = merged.stats
    assert isinstance(about, SeriesStats)
    assert (about.several_servers, about.samples, about.unique) == (True, 32, 18)
    # The first minute has as many of each: the one named last is believed. The second has more of r2 anyway.
    assert {moment % 1000 for moment in merged.others.times.tolist()} == {300}
