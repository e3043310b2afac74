"""Native histograms: chunks and plain responses are decoded, given as Spark's columns, and converted to the classic
form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from migratory_spark.prometheus import chunk_stream, partitions, sample_response
from migratory_spark.prometheus.arrow import ArrowBatches
from migratory_spark.prometheus.blocks import STALE, SampleBlock, SeriesId, merge_blocks
from migratory_spark.prometheus.classic import bound_text, to_classic
from migratory_spark.prometheus.errors import OptionError, ServerError
from migratory_spark.prometheus.histogram_chunk import FLOAT, INTEGER, decode
from migratory_spark.prometheus.native_histogram import BadHistogram, HistogramLayout, NativeHistogram
from migratory_spark.prometheus.options import SourceOptions, parse_options
from migratory_spark.prometheus.protobuf import BadProtobuf, NotSupported
from migratory_spark.prometheus.xor import BadChunk
from migratory_testing import prometheus_wire as made
from migratory_testing.fakeprometheus import JSON, PLAIN, Reply, Serve
from migratory_testing.prometheus_wire import Native, Shape, bits_of, of_bits

START, END = 1_700_000_000_000, 1_700_000_600_000
STALE_NAN = of_bits(STALE)
LABELS = {"__name__": "latency", "job": "web"}
EXPONENTIAL = Shape(schema=2, positive=[(-3, 2), (1, 3)], negative=[(0, 1)], zero_threshold=0.001)
CUSTOM = Shape(schema=-53, positive=[(0, 2), (1, 1)], zero_threshold=0, bounds=(0.1, 0.25, 1 / 3))

Told = list[tuple[int, Any]]


def told(block: SampleBlock) -> Told:
    """Return time and value of each sample of a block: a number's bits, or all parts of a native histogram."""
    histograms = [None] * len(block) if block.histograms is None else block.histograms.tolist()
    values = zip(block.times.tolist(), block.values.tolist(), histograms, strict=True)
    return [(time, bits_of(value) if each is None else parts(each, value)) for time, value, each in values]


def parts(histogram: NativeHistogram, value: float) -> tuple[Any, ...]:
    assert value == histogram.count
    layout = histogram.layout
    return (
        layout, histogram.count, bits_of(histogram.sum), histogram.zero_count, histogram.negative.tolist(),
        histogram.positive.tolist(), histogram.reset_hint,
    )  # fmt: skip


def indexes(spans: made.Spans) -> tuple[int, ...]:
    found: list[int] = []
    at = 0
    for offset, length in spans:
        found += range(at + offset, at + offset + length)
        at += offset + length
    return tuple(found)


def layout_of(shape: Shape) -> HistogramLayout:
    return HistogramLayout(
        shape.schema, shape.zero_threshold, indexes(shape.negative), indexes(shape.positive), tuple(shape.bounds)
    )


def expected(shape: Shape, samples: Sequence[Native], hints: Sequence[str]) -> Told:
    return [
        (
            sample.time,
            STALE
            if bits_of(sample.sum) == STALE
            else (
                layout_of(shape), sample.count, bits_of(sample.sum), sample.zero_count, list(sample.negative),
                list(sample.positive), hint,
            ),
        )
        for sample, hint in zip(samples, hints, strict=True)
    ]  # fmt: skip


def streamed(*chunks: tuple[int, bytes], labels: made.Labels = LABELS) -> SampleBlock:
    """Return the block of a streamed response with one series that has these chunks."""
    inside = made.labels(labels) + b"".join(made.chunk_field(kind, data) for kind, data in chunks)
    (block,) = chunk_stream.blocks([made.message(1, inside)], START, END)
    return block


def plain(shape: Shape, samples: Sequence[Native], **options: Any) -> SampleBlock:
    inside = made.labels(LABELS) + b"".join(made.plain_histogram(shape, sample, **options) for sample in samples)
    (block,) = sample_response.blocks(made.message(1, made.message(1, inside)), START, END)
    return block


def of_counts(time: int, *positive: float, **others: Any) -> Native:
    """Return a sample with these counts of positive buckets, whose count is that of all buckets."""
    negative, zero = others.get("negative", ()), others.get("zero_count", 0)
    count = sum(positive) + sum(negative) + zero
    return Native(**{"time": START + time, "count": count, "sum": count / 4, "positive": positive, **others})


def rising(shape: Shape, size: int, seed: int = 1) -> list[Native]:
    """Return samples of a histogram that rises at random, every 15 s."""
    source = np.random.default_rng(seed)
    samples, counts = [], np.zeros(sum(length for _, length in (*shape.positive, *shape.negative)) + 1, np.int64)
    positive = len(indexes(shape.positive))
    for number in range(size):
        counts = counts + source.integers(0, 3 ** source.integers(1, 9), len(counts))
        zero = 0 if shape.schema == -53 else float(counts[0])
        by_side = counts[1:].astype(float).tolist()
        samples.append(
            of_counts(
                15_000 * number, *by_side[:positive], negative=by_side[positive:], zero_count=zero,
                sum=float(counts.sum()) / 7,
            )
        )  # fmt: skip
    return samples


# Decoding


@pytest.mark.parametrize("shape", [EXPONENTIAL, CUSTOM, Shape(schema=-4, zero_threshold=0.3)])
@pytest.mark.parametrize("floats", [False, True])
def test_chunks_and_plain_responses_are_decoded(shape: Shape, floats: bool) -> None:
    samples = rising(shape, 30)
    stale = Native(time=START + 7, count=0, sum=STALE_NAN)
    samples.insert(1, stale)
    chunk = made.histogram_chunk(shape, samples, floats=floats)
    hints = ["unknown", *["no"] * (len(samples) - 1)]
    block = streamed((FLOAT if floats else INTEGER, chunk))
    assert told(block) == expected(shape, samples, hints)
    for sample, hint in zip(samples, hints, strict=True):
        sample.reset_hint = ["unknown", "yes", "no", "gauge"].index(hint)
    samples[1] = Native(time=START + 7, count=0, sum=STALE_NAN, reset_hint=0)
    samples[1].positive = samples[1].negative = ()
    by_time = sorted([*samples[:1], *samples[2:]], key=lambda sample: sample.time)
    assert told(plain(shape, by_time, floats=floats)) == expected(shape, by_time, [hints[0], *hints[2:]])


counts_of_buckets = st.lists(
    st.lists(st.integers(0, 2**50), min_size=6, max_size=6), min_size=1, max_size=8
)  # the first three of positive buckets, two of negative ones, one of the zero bucket
sums = st.one_of(st.integers(0, 2**64 - 1).map(of_bits), st.sampled_from([0.0, 1.5]))


@example([[0] * 6, [2**50, 0, 1, 7, 0, 63]], 0.0, 0, 0.0)
@given(counts_of_buckets, sums, st.integers(0, 3), st.sampled_from([0.0, 2.0**-128, 0.1, 1024.0, 5e-324]))
def test_every_number_is_decoded(rows: list[list[int]], total: float, header: int, threshold: float) -> None:
    shape = Shape(schema=8, positive=[(-(2**20), 1), (2**21, 2)], negative=[(5, 2)], zero_threshold=threshold)
    samples = [
        of_counts(at**3 % 1000 * 500, *row[:3], negative=row[3:5], zero_count=row[5], sum=total)
        for at, row in enumerate(rows)
    ]
    hints = ["gauge"] * len(rows) if header == 3 else ["unknown", *["no"] * (len(rows) - 1)]
    for floats in (False, True):
        chunk = made.histogram_chunk(shape, samples, header, floats)
        assert told(streamed((FLOAT if floats else INTEGER, chunk))) == expected(shape, samples, hints)


@pytest.mark.parametrize("schema", [-4, -1, 0, 3, 8])
def test_bounds_are_powers_of_the_schemas_base(schema: int) -> None:
    layout = HistogramLayout(schema, 0.5, (0, 3), (-2, 0, 1))
    base = 2 ** (2.0**-schema)
    lower, upper = layout.bounds
    assert lower.tolist() == pytest.approx([-(base**3), -1, -0.5, base**-3, base**-1, 1])
    assert upper.tolist() == pytest.approx([-(base**2), -1 / base, 0.5, base**-2, 1, base])


def test_bounds_beyond_the_numbers_are_zero_or_infinite() -> None:
    layout = HistogramLayout(-9, 0.0, (), (-(2**30), 2**30))
    lower, upper = layout.bounds
    assert [lower[1], upper[1], lower[2], upper[2]] == [0, 0, math.inf, math.inf]


def test_series_of_numbers_and_histograms_keep_the_order_of_time() -> None:
    numbers = [(START + 100, 1.0), (START + 200, STALE_NAN)]
    later = [(START + 500, 2.0)]
    samples = [of_counts(at, 1, 2, 3) for at in (300, 400)]
    chunk = made.histogram_chunk(CUSTOM, samples)
    block = streamed((1, made.chunk(numbers)), (INTEGER, chunk), (1, made.chunk(later)))
    histograms = expected(CUSTOM, samples, ["unknown", "no"])
    of_numbers = [(time, bits_of(value)) for time, value in (*numbers, *later)]
    assert told(block) == [*of_numbers[:2], *histograms, of_numbers[2]]
    ((_, result),) = made.fields(made.plain([(LABELS, [*numbers, *later])]))
    ((_, inside),) = made.fields(result)
    inside += b"".join(made.plain_histogram(CUSTOM, sample) for sample in samples)
    (block,) = sample_response.blocks(made.message(1, made.message(1, inside)), START, END)
    assert told(block) == [*of_numbers[:2], *expected(CUSTOM, samples, ["unknown"] * 2), of_numbers[2]]


def test_plain_responses_without_custom_bounds_say_what_to_do() -> None:
    with pytest.raises(NotSupported, match="set option api to remote_read"):
        plain(CUSTOM, [of_counts(0, 1, 2, 3)], with_bounds=False)


def test_unknown_kinds_of_chunks_say_what_to_do() -> None:
    with pytest.raises(NotSupported, match="unknown kind 7: set option api to remote_read_samples"):
        streamed((7, b""))


@given(st.binary(max_size=60), st.integers(1, 3))
@example(b"\x00\x01\x00" + bytes(40), INTEGER)
@example(b"\xff\xff\x00\x00\x80", FLOAT)
def test_arbitrary_chunks_are_rejected_or_harmless(data: bytes, kind: int) -> None:
    if kind != 1:
        try:
            decode(kind, data)
        except (BadChunk, BadHistogram):
            return


@given(st.binary(max_size=80))
def test_arbitrary_plain_histograms_are_rejected_or_harmless(data: bytes) -> None:
    inside = made.labels(LABELS) + made.message(4, data)
    try:
        list(sample_response.blocks(made.message(1, made.message(1, inside)), START, END))
    except (BadProtobuf, NotSupported):
        return


@pytest.mark.parametrize("floats", [False, True])
def test_truncated_chunks_are_rejected(floats: bool) -> None:
    chunk = made.histogram_chunk(EXPONENTIAL, rising(EXPONENTIAL, 5), floats=floats)
    for size in range(len(chunk)):
        with pytest.raises(BadProtobuf, match="chunk"):
            streamed((FLOAT if floats else INTEGER, chunk[:size]))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape(schema=99, positive=[(0, 3)]), "unknown schema 99"),
        (Shape(schema=2, positive=[(0, 2), (-1, 1)]), "overlap"),
        (Shape(schema=-53, positive=[(0, 3)], bounds=(1.0,)), "beyond its custom bounds"),
        (Shape(schema=2, positive=[(0, 4)]), "4 buckets|3 counts for"),
    ],
)
def test_contradictions_are_rejected(shape: Shape, words: str) -> None:
    samples = [of_counts(0, 1, 2, 3)]
    with pytest.raises(BadProtobuf, match=f"{words}|more buckets than"):
        plain(shape, samples)
    if shape.positive != [(0, 4)]:
        with pytest.raises(BadProtobuf, match=words):
            streamed((INTEGER, made.histogram_chunk(shape, samples)))
    with pytest.raises(BadProtobuf, match="more buckets than"):
        streamed((INTEGER, made.histogram_chunk(Shape(schema=0, positive=[(0, 2**31)]), [])[:0] + _huge()))


def _huge() -> bytes:
    return made.histogram_chunk(Shape(schema=0, positive=[(0, 2**31)]), [of_counts(0)])


# Blocks


def block_of(shape: Shape, samples: Sequence[Native], **labels: str) -> SampleBlock:
    return streamed((INTEGER, made.histogram_chunk(shape, samples)), labels={**LABELS, **labels})


def test_blocks_are_cut_and_merged_with_their_histograms() -> None:
    first = block_of(CUSTOM, [of_counts(at, 1, at, 3) for at in (0, 10, 20)])
    second = block_of(CUSTOM, [of_counts(at, 1, at + 1, 3) for at in (20, 30)])
    number = streamed((1, made.chunk([(START + 5, 7.0)])), labels={"__name__": "up"})
    assert told(first.between(START + 10, START + 20)) == told(first)[1:2]
    assert number.between(START + 1, START + 9).histograms is None
    (merged,) = merge_blocks([first, number, second])
    by_series = dict(zip([series.metric for series in merged.series], merged.counts.tolist(), strict=True))
    assert by_series == {"latency": 4, "up": 1}
    # Of two at one time the one with more observations stays.
    assert [each if isinstance(each, int) else each[1] for _, each in told(merged)] == [4, 14, 25, 35, bits_of(7.0)]
    assert told(merged.numbers()) == told(number)
    assert merged.numbers().histograms is None
    assert told(merged.without({first.series[0]})) == told(number)
    assert number.numbers() is number


# Options and columns


def options(**given: str) -> SourceOptions:
    return parse_options({"url": "http://127.0.0.1:9090", "matchers": "latency", **given})


def rows(block: SampleBlock, *columns: str) -> list[dict[str, Any]]:
    return [row for batch in ArrowBatches("samples", columns).from_blocks([block]) for row in batch.to_pylist()]


def test_a_histogram_is_a_column_of_its_own() -> None:
    samples = [of_counts(0, 4, 0, 2, 0, 1, zero_count=5, negative=[3], sum=1.25), of_counts(1, *[0] * 5, negative=[0])]
    histograms = made.histogram_chunk(EXPONENTIAL, samples)
    block = streamed((INTEGER, histograms), (1, made.chunk([(START + 2, 9.0), (START + 3, STALE_NAN)])))
    first, empty, number, stale = rows(block, "timestamp", "value", "histogram")
    base = 2**0.25
    assert first["value"] is None
    buckets = [tuple(bucket.values()) for bucket in first["histogram"].pop("buckets")]
    assert buckets == [
        pytest.approx(bucket)
        for bucket in [
            (-1, -1 / base, 3), (-0.001, 0.001, 5), (base**-4, base**-3, 4), (base**-1, 1, 2), (base, base**2, 1),
        ]
    ]  # fmt: skip
    assert first["histogram"] == {
        "schema": 2, "reset_hint": "unknown", "count": 15, "sum": 1.25, "zero_threshold": 0.001, "zero_count": 5,
        "custom_bounds": [],
    }  # fmt: skip
    assert (empty["value"], empty["histogram"]["buckets"], empty["histogram"]["reset_hint"]) == (None, [], "no")
    assert (number["value"], number["histogram"]) == (9.0, None)
    assert (math.isnan(stale["value"]), stale["histogram"]) == (True, None)
    (custom,) = rows(block_of(CUSTOM, [of_counts(0, 1, 0, 3)]), "histogram")
    assert custom["histogram"]["custom_bounds"] == [0.1, 0.25, 1 / 3]
    assert [tuple(bucket.values()) for bucket in custom["histogram"]["buckets"]] == [(-math.inf, 0.1, 1), (1 / 3, math.inf, 3)]  # fmt: skip  # noqa: E501
    # A block without any.
    assert rows(block.numbers(), "histogram", "value")[0] == {"histogram": None, "value": 9.0}


def test_histograms_fail_are_skipped_or_converted(serve: Serve) -> None:
    samples = [of_counts(at, 1, at, 3) for at in (0, 10)]
    counts = [(START, 4.0), (START + 10, 14.0)]
    stream = b"".join(
        made.frame(made.message(1, made.labels(labels) + chunk))
        for labels, chunk in (
            ({"__name__": "a_total"}, made.chunk_field(1, made.chunk([(START, 1.0)]))),
            (LABELS, made.chunk_field(INTEGER, made.histogram_chunk(CUSTOM, samples))),
            # The server keeps the classic form as well.
            ({**LABELS, "__name__": "latency_count"}, made.chunk_field(1, made.chunk(counts))),
        )
    )
    server = serve(lambda _: Reply(stream))

    def read(**given: str) -> list[tuple[str, int]]:
        chosen = options(url=server.url, **given)
        blocks = list(partitions.read(chosen, START, END))
        return sorted(
            (series.metric, count)
            for block in blocks
            for series, count in zip(block.series, block.counts.tolist(), strict=True)
        )

    with pytest.raises(OptionError, match="latency is a native histogram: name the column histogram in option columns"):
        read()
    assert len(server.requests) == 1  # a retry would not help
    assert read(histograms="skip") == [("a_total", 1), ("latency_count", 2)]
    assert read(columns="value,histogram") == [("a_total", 1), ("latency", 2), ("latency_count", 2)]
    buckets = [("latency_bucket", 2)] * 4
    assert read(histograms="classic") == [("a_total", 1), *buckets, ("latency_count", 2), ("latency_sum", 2)]


def test_options_that_contradict_each_other_are_rejected() -> None:
    with pytest.raises(OptionError, match="native histograms are in the column histogram"):
        options(columns="value,histogram", histograms="skip")
    with pytest.raises(OptionError, match="fail, skip, classic"):
        options(histograms="buckets")
    with pytest.raises(OptionError, match="shape series has"):
        options(shape="series", columns="histogram")
    assert options(columns="histogram").with_histograms


def test_what_cannot_be_read_is_not_asked_for_again(serve: Serve) -> None:
    inside = made.labels(LABELS) + made.plain_histogram(CUSTOM, of_counts(0, 1, 2, 3), with_bounds=False)
    answer = made.snappy(made.message(1, made.message(1, inside)))
    server = serve(lambda _: Reply(answer, kind=PLAIN))
    with pytest.raises(ServerError, match="native histogram whose bounds the server leaves out"):
        list(partitions.read(options(url=server.url), START, END))
    assert len(server.requests) == 1
    matrix = b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"histograms":[[1,{}]]}]}}'
    server = serve(lambda _: Reply(matrix, kind=JSON))
    with pytest.raises(ServerError, match="this interface does not tell the bounds"):
        list(partitions.read(options(url=server.url, api="range_selector"), START, END))
    assert len(server.requests) == 1


# The classic form


def classic(block: SampleBlock) -> dict[tuple[str, str | None], list[tuple[int, float]]]:
    """Return the samples of each series of the classic form, by metric and `le`."""
    converted = to_classic(block)
    found = {}
    at = 0
    for series, count in zip(converted.series, converted.counts.tolist(), strict=True):
        inside = slice(at, at + count)
        at += count
        pairs = list(zip((converted.times[inside] - START).tolist(), converted.values[inside].tolist(), strict=True))
        assert (series.metric, dict(series.labels).get("le")) not in found
        assert pairs == sorted(pairs, key=lambda pair: pair[0])
        found[series.metric, dict(series.labels).get("le")] = pairs
    assert at == len(converted)
    return found


def test_custom_buckets_become_the_classic_form() -> None:
    # A bucket that is empty for long is not in the spans of all chunks.
    early = Shape(schema=-53, positive=[(1, 1)], zero_threshold=0, bounds=CUSTOM.bounds)
    end = Native(time=START + 20, count=0, sum=STALE_NAN)
    chunks = [
        made.histogram_chunk(early, [of_counts(0, 5)]),
        made.histogram_chunk(CUSTOM, [of_counts(10, 1, 6, 3), end]),
    ]
    found = classic(streamed(*((INTEGER, chunk) for chunk in chunks)))
    stale = {key: pairs.pop() for key, pairs in found.items()}
    assert found == {
        ("latency_count", None): [(0, 5), (10, 10)],
        ("latency_sum", None): [(0, 1.25), (10, 2.5)],
        ("latency_bucket", "0.1"): [(0, 0), (10, 1)],
        ("latency_bucket", "0.25"): [(0, 5), (10, 7)],
        ("latency_bucket", "0.3333333333333333"): [(0, 5), (10, 7)],
        ("latency_bucket", "+Inf"): [(0, 5), (10, 10)],
    }
    assert all(time == 20 and bits_of(value) == STALE for time, value in stale.values())


def test_changed_bounds_are_other_series() -> None:
    other = Shape(schema=-53, positive=[(0, 1)], zero_threshold=0, bounds=(0.2, 0.5))
    found = classic(
        streamed(
            (INTEGER, made.histogram_chunk(CUSTOM, [of_counts(0, 1, 2, 3)])),
            (INTEGER, made.histogram_chunk(other, [of_counts(10, 4)])),
        )
    )
    assert found["latency_bucket", "0.1"] == [(0, 1)]
    assert found["latency_bucket", "0.5"] == [(10, 4)]
    assert found["latency_count", None] == found["latency_bucket", "+Inf"] == [(0, 6), (10, 4)]


@pytest.mark.parametrize("schema", [-3, 0, 2, 3, 5, 8])
def test_exponential_histograms_have_fixed_bounds(schema: int) -> None:
    source = np.random.default_rng(schema + 10)
    values = np.concatenate((source.lognormal(-2, 3, 400), -source.lognormal(0, 1, 20), np.zeros(7)))
    scale = 2.0**schema
    threshold = 2.0**-8
    zero = np.abs(values) <= threshold
    sides = []
    for chosen in (values[(values > 0) & ~zero], -values[(values < 0) & ~zero]):
        numbers, counts = np.unique(np.ceil(np.log2(chosen) * scale).astype(int), return_counts=True)
        spans, before = [], 0
        for number in numbers.tolist():
            spans.append((number - before, 1))
            before = number + 1
        sides.append((spans, counts.astype(float).tolist()))
    shape = Shape(schema=schema, positive=sides[0][0], negative=sides[1][0], zero_threshold=threshold)
    sample = of_counts(0, *sides[0][1], negative=sides[1][1], zero_count=int(zero.sum()))
    found = classic(block_of(shape, [sample]))
    bounds = {float(le): pairs[0][1] for (metric, le), pairs in found.items() if metric.endswith("_bucket") and le}
    assert found["latency_count", None] == [(0, len(values))]
    # Buckets below the threshold of the zero bucket hold less than they might.
    for bound, count in bounds.items():
        true = int((values <= bound).sum())
        assert count == true if bound >= threshold else count <= true
    octaves = {2.0**power for power in range(-20, 41) if schema >= 0 or not power % 2**-schema}
    assert octaves < set(bounds) or octaves | {math.inf} == set(bounds)
    assert classic(block_of(shape, [sample, of_counts(1, *sides[0][1], negative=sides[1][1])])).keys() == found.keys()
    if schema >= 3:
        assert {0.25, 2**-2.125} < set(bounds)


def test_numbers_stay_as_they_are() -> None:
    numbers = streamed((1, made.chunk([(START, 1.0)])))
    assert to_classic(numbers) is numbers
    mixed = streamed((1, made.chunk([(START, 1.0)])), (INTEGER, made.histogram_chunk(CUSTOM, [of_counts(10, 1, 2, 3)])))
    found = classic(mixed)
    assert found["latency", None] == [(0, 1.0)]
    assert found["latency_bucket", "+Inf"] == [(10, 6)]
    assert SeriesId("latency_bucket", (("job", "web"), ("le", "+Inf"))) in to_classic(mixed).series


@pytest.mark.parametrize(
    ("bound", "text"),
    [(0.25, "0.25"), (60, "60.0"), (0, "0.0"), (math.inf, "+Inf"), (1e6, "1e+06"), (1234567.5, "1.2345675e+06"),
     (1e-5, "1e-05"), (-0.5, "-0.5"), (0.0001, "0.0001"), (999999.0, "999999.0")],
)  # fmt: skip
def test_bounds_are_written_as_prometheus_writes_them(bound: float, text: str) -> None:
    assert bound_text(bound) == text
