"""Reading from one or several servers over real HTTP: the result is the right samples, or an error with advice where
a server is faulty."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import urllib.parse
from collections.abc import Iterator

import numpy as np
import pytest
from migratory_spark.prometheus import chunk_stream, partitions
from migratory_spark.prometheus.blocks import STALE, SeriesId
from migratory_spark.prometheus.errors import ServerError, SourceError
from migratory_spark.prometheus.options import SourceOptions
from migratory_testing import prometheus_wire as made
from migratory_testing.fakeprometheus import (
    END,
    JSON,
    MANY,
    PLAIN,
    START,
    STREAMED,
    Reply,
    Request,
    Samples,
    Serve,
    good,
    options,
)
from migratory_testing.prometheus_wire import Labels, of_bits


def read(options: SourceOptions) -> dict[SeriesId, Samples]:
    """Return all samples by series, sorted. Fail if a series has a time twice."""
    samples: dict[SeriesId, dict[int, float]] = {}
    for block in partitions.read(options, START, END):
        at = 0
        for series, count in zip(block.series, block.counts.tolist(), strict=True):
            own = samples.setdefault(series, {})
            for time, value in zip(block.times[at : at + count].tolist(), block.values[at : at + count], strict=True):
                assert time not in own, f"{series} at {time} twice"
                own[time] = float(value)
            at += count
    return {series: sorted(own.items()) for series, own in samples.items()}


def expected(series: list[tuple[Labels, Samples]] = MANY) -> dict[SeriesId, Samples]:
    return {SeriesId.from_pairs(labels.items()): samples for labels, samples in series}


def matrix(series: list[tuple[Labels, Samples]]) -> Reply:
    result = [
        {"metric": labels, "values": [[time / 1000, repr(value)] for time, value in samples]}
        for labels, samples in series
    ]
    return Reply(
        json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode(), kind=JSON
    )


def test_all_interfaces_return_the_same_samples(serve: Serve) -> None:
    streams = serve(good)
    assert read(options(streams)) == expected()
    (request,) = streams.requests
    assert (request.method, request.path) == ("POST", "/api/v1/read")
    assert made.window_of(request.body) == (START, END - 1)
    assert read(options(serve(lambda _: Reply(made.snappy(made.plain(MANY)), kind=PLAIN)))) == expected()
    selects = serve(lambda _: matrix(MANY))
    assert read(options(selects, api="range_selector")) == expected()
    form = dict(urllib.parse.parse_qsl(selects.requests[0].body.decode()))
    assert form == {"query": '{__name__="c_total"}[60000ms]', "time": "1700000059.999", "timeout": "5s"}


@pytest.mark.parametrize(
    ("status", "text"),
    [(404, "no"), (400, 'unsupported path requested: "/api/v1/read"')],
    ids=["404", "VictoriaMetrics"],
)
def test_the_range_selector_is_used_without_remote_read(serve: Serve, status: int, text: str) -> None:
    refusal = Reply(text.encode(), status)
    server = serve(lambda request: refusal if request.path.endswith("/read") else matrix(MANY))
    assert read(options(server)) == expected()
    with pytest.raises(ServerError, match=rf"no such interface \(HTTP {status}\): {text}; is option url right"):
        read(options(server, api="remote_read"))


def test_a_refused_connection_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(
        ServerError, match=rf"^{address}: cannot be reached \(2 tries\): .*refused.*is option url right\?"
    ):
        read(options(address))


def test_an_unknown_host_is_reported() -> None:
    with pytest.raises(ServerError, match=r"cannot be reached: .*resolve"):
        read(options("http://prometheus.invalid:9090", retries="0"))


@pytest.fixture
def hold() -> Iterator[threading.Event]:
    """An event that a reply waits for until the test ends."""
    event = threading.Event()
    yield event
    event.set()


def test_a_server_that_does_not_answer_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nobody answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerError, match=r"did not answer for 0\.1 s \(2 tries\): raise option timeout"):
            read(options(url, timeout="100ms"))


@pytest.mark.parametrize("begin", [0, 1, 700])
def test_a_response_that_stalls_is_retried(
    serve: Serve, hold: threading.Event, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_stream.blocks, "__defaults__", (1,))
    whole = made.streamed(MANY)
    replies = iter([Reply(whole, wait=hold, begin=begin), Reply(whole)])
    server = serve(lambda _: next(replies))
    assert read(options(server, timeout="200ms")) == expected()
    assert len(server.requests) == 2


@pytest.mark.parametrize("retries", [0, 1])
def test_a_response_that_stays_stalled_is_an_error_after_all_tries(
    serve: Serve, hold: threading.Event, retries: int
) -> None:
    server = serve(lambda _: Reply(made.streamed(MANY), wait=hold, begin=1))
    words = rf"the response stalled, with no byte for 0\.2 s: raise option timeout.* \({retries + 1} tries\)"
    with pytest.raises(ServerError, match=words):
        read(options(server, timeout="200ms", retries=str(retries)))
    assert len(server.requests) == retries + 1


def test_an_endless_response_times_out(serve: Serve) -> None:
    server = serve(lambda _: Reply(made.streamed(MANY)))
    with pytest.raises(ServerError, match=r"longer than 0\.001 s: shorten option partition"):
        read(options(server, answerLimit="1ms", retries="0"))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b"bad matcher", "answers HTTP 400: bad matcher"),
        (401, b"who?", r"refuses access \(HTTP 401\): who\?; see options tokenFile and user"),
        (403, b"", "refuses access .* no text"),
        (500, b"oh\nno", "answers HTTP 500: oh no"),
        (302, b"", "redirects to http://127.0.0.1:1/: is that the right option url"),
    ],
)
def test_error_statuses_are_reported(serve: Serve, status: int, body: bytes, words: str) -> None:
    server = serve(lambda _: Reply(body, status, headers={"Location": "http://127.0.0.1:1/"} if status == 302 else {}))
    with pytest.raises(ServerError, match=words):
        read(options(server))


def test_a_busy_server_is_retried_a_few_times(serve: Serve) -> None:
    replies = iter([Reply(b"", 503), Reply(b"", 429)])
    server = serve(lambda request: next(replies, None) or good(request))
    assert read(options(server, retries="2")) == expected()
    assert len(server.requests) == 3
    server = serve(lambda _: Reply(b"away", 502))
    with pytest.raises(ServerError, match="answers HTTP 502: away"):
        read(options(server, retries="2"))
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"exceeded sample limit (5)"),
        (422, b'{"error":"query processing would load too many samples into memory"}'),
        (503, b"query timed out in expression evaluation"),
        (413, b""),
    ],
)
def test_a_query_that_is_too_large_is_halved(serve: Serve, status: int, body: bytes) -> None:
    ranges: list[tuple[int, int]] = []

    def limited(request: Request) -> Reply:
        first, last = made.window_of(request.body)
        if last - first > 20_000:
            return Reply(body, status)
        ranges.append((first, last))
        return good(request)

    assert read(options(serve(limited), retries="0")) == expected()
    ranges.sort()
    assert len(ranges) == 4
    assert (ranges[0][0], ranges[-1][1]) == (START, END - 1)
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ranges))


def test_a_query_too_large_for_a_second_is_an_error_after_few_requests(serve: Serve) -> None:
    server = serve(lambda _: Reply(b"exceeded sample limit (5)", 400))
    with pytest.raises(
        ServerError, match=r"exceeded sample limit \(5\); the query is for \d+ ms only: narrow matchers"
    ):
        read(options(server))
    assert len(server.requests) == 7


@pytest.mark.parametrize("cut", [1, 40, 700])
def test_a_truncated_response_is_retried_without_repeated_series(
    serve: Serve, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_stream.blocks, "__defaults__", (1,))
    whole = made.streamed(MANY)
    replies = iter([Reply(whole, cut=cut), Reply(whole + b"some error"), Reply(whole)])
    assert read(options(serve(lambda _: next(replies)), retries="2")) == expected()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(made.streamed(MANY), cut=1), r"(ended early|broke off): .*\(2 tries\)"),
        (Reply(made.streamed(MANY) + b"expanding series: disk"), r"expanding series: disk.*\(2 tries\)"),
        (Reply(made.snappy(made.plain(MANY))[:-3], kind=PLAIN), "invalid snappy data"),
        (Reply(b"\xff\xff\xff\xff\x7f", kind=PLAIN), "a response of 34359738367 bytes"),
        (Reply(b"<html>", kind="text/html"), "content of type text/html; is option url that of Prometheus"),
        (Reply(b"", kind=""), "content of type none"),
    ],
)
def test_responses_that_stay_broken_are_errors(serve: Serve, reply: Reply, words: str) -> None:
    server = serve(lambda _: reply)
    with pytest.raises(ServerError, match=words):
        read(options(server))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"{}", b'{"status":"success","data":{"resultType":"vector","result":[]}}',
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"x"]]}]}}',
    ],
)  # fmt: skip
def test_json_that_is_not_from_prometheus_is_an_error(serve: Serve, body: bytes) -> None:
    server = serve(lambda _: Reply(body, kind=JSON))
    with pytest.raises(ServerError, match="not what /api/v1/query sends"):
        read(options(server, api="range_selector"))


def test_every_interface_yields_no_block_without_samples(serve: Serve) -> None:
    assert read(options(serve(lambda _: Reply(b"")))) == {}
    assert read(options(serve(lambda _: Reply(made.snappy(b""), kind=PLAIN)))) == {}
    assert read(options(serve(lambda _: matrix([])), api="range_selector")) == {}


@pytest.mark.parametrize(
    "fields",
    [{"warnings": ["No StoreAPIs matched: store-2 is away"]}, {"isPartial": True}],
    ids=["warnings", "isPartial"],
)
def test_a_partial_response_is_an_error(serve: Serve, fields: dict[str, object]) -> None:
    """A response with the status "success" that says that it is not complete raises ServerError, because half of the
    data would pass for all; other remarks do not."""
    whole = json.loads(matrix(MANY).body)
    server = serve(lambda _: Reply(json.dumps(whole | fields).encode(), kind=JSON))
    with pytest.raises(ServerError, match=r"may not be whole: .*(store-2|isPartial)"):
        read(options(server, api="range_selector"))
    # What is said of other things is no warning.
    fine = serve(lambda _: Reply(json.dumps(whole | {"warnings": None, "infos": ["x"]}).encode(), kind=JSON))
    assert read(options(fine, api="range_selector")) == expected()


def test_nan_of_the_range_selector_is_not_a_stale_marker(serve: Serve) -> None:
    values = [[1700000000, "NaN"], [1700000001.25, "+Inf"], [1700000002, "-Inf"]]
    data = {"resultType": "matrix", "result": [{"metric": {"__name__": "a"}, "values": values}]}
    body = json.dumps({"status": "success", "data": data}).encode()
    (block,) = partitions.read(options(serve(lambda _: Reply(body, kind=JSON)), api="range_selector"), START, END)
    assert block.times.tolist() == [START, START + 1250, START + 2000]
    assert np.isnan(block.values[0])
    assert block.values[:1].view(np.uint64)[0] != STALE
    assert block.values[1:].tolist() == [np.inf, -np.inf]


def test_credentials_and_headers_are_not_sent_to_redirects(serve: Serve) -> None:
    server = serve(good)
    read(options(server, token="t0ken", **{"header.X-Scope-OrgID": "team"}))
    assert server.requests[0].headers["Authorization"] == "Bearer t0ken"
    assert server.requests[0].headers["X-Scope-OrgID"] == "team"
    other = serve(good)
    with pytest.raises(ServerError, match="redirects to http"):
        read(options(serve(lambda _: Reply(b"", 307, headers={"Location": other.url})), token="t0ken"))
    assert other.requests == []


def test_several_servers_are_merged(serve: Serve) -> None:
    halves = (MANY[:6], [(labels, samples[20:]) for labels, samples in MANY])
    early = [(labels, samples[:20]) for labels, samples in MANY[6:]]
    servers = [serve(lambda _, part=part: Reply(made.streamed(part))) for part in (halves[0] + early, halves[1])]  # type: ignore[misc]
    assert read(options(*servers)) == expected()
    by_source = list(partitions.read(options(*servers, columns="metric,source,value"), START, END))
    assert {block.source for block in by_source} == {server.url for server in servers}
    assert sum(map(len, by_source)) == 6 * 60 + 3 * 20 + 9 * 40


def test_server_that_is_down_is_an_error_or_left_out(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    broken = serve(lambda _: Reply(made.streamed(MANY[:2]), cut=1))
    with pytest.raises(ServerError, match=broken.url):
        read(options(broken, serve(good)))
    assert read(options(broken, serve(good), require="any")) == expected()
    assert f"left out (option require=any): {broken.url}" in caplog.text
    with pytest.raises(ServerError, match=broken.url):
        read(options(broken, broken.url.replace("127.0.0.1", "localhost"), require="any"))


def test_replicas_behind_one_server_are_one_series(serve: Serve) -> None:
    twins = [(labels | {"replica": name}, samples) for labels, samples in MANY for name in "ab"]
    server = serve(lambda _: Reply(made.streamed(twins)))
    assert len(read(options(server))) == 18
    assert read(options(server, dropLabels="replica")) == expected()
    assert (
        sum(map(len, partitions.read(options(server, dropLabels="replica", columns="value,source"), START, END))) == 540
    )


def test_overlapping_selectors_return_a_series_once(serve: Serve) -> None:
    replies = iter([Reply(made.streamed(MANY[:5])), Reply(made.streamed(MANY[3:]))])
    assert (
        read(options(serve(lambda _: next(replies)), matchers='c_total{i=~"[0-4]"} c_total{i=~"[3-9]"}')) == expected()
    )


def test_too_many_samples_in_a_partition_are_an_error(serve: Serve) -> None:
    server = serve(good)
    assert read(options(server, maxSamples="540")) == expected()
    with pytest.raises(SourceError, match=r"has more than 539 samples \(option maxSamples\): shorten option partition"):
        read(options(server, maxSamples="539"))


def test_stale_markers_are_read_from_a_server(serve: Serve) -> None:
    samples = [(START, 1.0), (START + 1, of_bits(STALE))]
    (block,) = partitions.read(
        options(serve(lambda _: Reply(made.streamed([({"__name__": "a"}, samples)]), kind=STREAMED))), START, END
    )
    assert block.values.view(np.uint64)[1] == STALE
