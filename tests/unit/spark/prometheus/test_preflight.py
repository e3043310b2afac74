"""Preflight checks over real HTTP: whether there are samples, how many, and why there are none."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable

import pytest
from migratory_spark.prometheus import preflight
from migratory_spark.prometheus.errors import NoSamplesFound, OptionError, ServerError
from migratory_spark.prometheus.options import parse_options
from migratory_testing.fakeprometheus import END, JSON, START, Reply, Request, Serve, good, options


def api(
    now: str = "1700000100", names: list[str] | None = None, known: list[str] | None = None
) -> Callable[[Request], Reply]:
    """Return the replies of a server without samples, whose metrics are `known` and of which `names` match the
    query. `now` is its time in seconds."""

    def answer(request: Request) -> Reply:
        path, _, query = request.path.partition("?")
        match path:
            case "/api/v1/read":
                return Reply(b"")
            case "/api/v1/query":
                data: object = {"resultType": "scalar", "result": [float(now), now]}
            case "/api/v1/label/__name__/values":
                data = (names or []) if query else (known or [])
            case "/api/v1/status/runtimeinfo":
                data = {"storageRetention": "15d or 10GiB"}
            case _:
                return Reply(b"", 404)
        return Reply(json.dumps({"status": "success", "data": data}).encode(), kind=JSON)

    return answer


@pytest.mark.parametrize(
    ("server", "given", "words"),
    [
        (api(), {"end": str(START // 1000)}, "the window is empty: it starts and ends at 2023-11-14T22:13:20.000Z"),
        (api(now="1600000000"), {}, "lies in the future; its clock says 2020-09-13"),
        (api(known=["c_totals", "up"]), {}, "it has no such series; did you mean c_totals?"),
        (api(known=["up"]), {}, "none of its 1 metrics has a name like that"),
        (api(known=["c_total"]), {}, "though it has c_total with other labels"),
        (api(known=["c_total"]), {"matchers": '{i="1"}'}, "it has no such series$"),
        (
            api(names=["c_total"], now="1800000000"),
            {},
            "the window ended before its retention, which is 15d or 10GiB back",
        ),
        (api(names=["c_total"]), {}, r"no sample of them in the window \(retention: 15d or 10GiB\)"),
        (lambda request: Reply(b"", 200 if request.path.endswith("read") else 404), {}, "no samples, and no reason"),
    ],
)
def test_missing_samples_are_explained(
    serve: Serve, server: Callable[[Request], Reply], given: dict[str, str], words: str
) -> None:
    with pytest.raises(NoSamplesFound, match=words):
        preflight.check(options(serve(server), **given))


def test_the_check_stops_at_the_first_samples(serve: Serve) -> None:
    with_some = serve(good)
    preflight.check(options(with_some))
    preflight.check(options(serve(api()), with_some))
    with pytest.raises(ServerError, match="HTTP 500"):
        preflight.check(options(serve(lambda _: Reply(b"", 500)), with_some))
    preflight.check(options(serve(lambda _: Reply(b"", 500)), with_some, require="any"))
    with pytest.raises(ServerError, match="HTTP 500"):
        preflight.check(options(serve(lambda _: Reply(b"", 500)), require="any"))


def test_a_window_without_an_end_is_an_error() -> None:
    for given, name in (({"start": ""}, "start"), ({"end": ""}, "end")):
        base = {"url": "http://a", "matchers": "up", "start": "1", "end": "2"}
        with pytest.raises(OptionError, match=f"option {name} is missing: the window is half open"):
            preflight.window(parse_options({key: value for key, value in (base | given).items() if value}))


def test_an_invalid_server_clock_is_an_error(serve: Serve) -> None:
    server = serve(lambda _: Reply(b'{"data":{"result":["x","y"]}}', kind=JSON))
    with pytest.raises(ServerError, match=r"the answer to the query time\(\)"):
        preflight.server_now_ms(server.url, options(server).access)
    assert preflight.server_now_ms(serve(api()).url, options(server).access) == 1_700_000_100_000


def test_the_clock_of_victoriametrics_is_read(serve: Serve) -> None:
    data = {"resultType": "vector", "result": [{"metric": {}, "value": [1700000130, "1700000100.25"]}]}
    server = serve(lambda _: Reply(json.dumps({"status": "success", "data": data}).encode(), kind=JSON))
    assert preflight.server_now_ms(server.url, options(server).access) == 1_700_000_100_250


def test_samples_are_counted_by_the_servers(serve: Serve) -> None:
    queries: list[dict[str, list[str]]] = []

    def counting(request: Request) -> Reply:
        queries.append(urllib.parse.parse_qs(request.body.decode()))
        return Reply(b'{"data":{"resultType":"vector","result":[{"metric":{},"value":[1,"540"]}]}}', kind=JSON)

    matchers = 'a_total{i="1"} b_total'
    assert preflight.count_samples(options(serve(counting), serve(counting), matchers=matchers)) == 1080
    # One selector is of one metric: PromQL forgets names, and refuses series that are then the same.
    query = (
        '(sum(count_over_time({__name__="a_total",i="1"}[60s])) or vector(0))'
        ' + (sum(count_over_time({__name__="b_total"}[60s])) or vector(0))'
    )
    assert queries[0]["query"] == [query]
    assert queries[0]["time"] == [f"{END / 1000:.3f}"]


@pytest.mark.parametrize("reply", [Reply(b"query timed out", 503), Reply(b'{"data":{"result":[]}}', kind=JSON)])
def test_the_number_of_samples_is_unknown_if_a_server_does_not_count(serve: Serve, reply: Reply) -> None:
    requests: list[Request] = []

    def refusing(request: Request) -> Reply:
        requests.append(request)
        return reply

    assert preflight.count_samples(options(serve(refusing))) is None
    # "It takes too long" is an answer: nobody makes the server do it again.
    assert len(requests) == 1
