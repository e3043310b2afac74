"""Options of the data source: defaults, parsed times, and errors that name the option."""

from __future__ import annotations

from pathlib import Path

import pytest
from migratory_spark.prometheus.errors import OptionError, QueryTooLarge, ServerError
from migratory_spark.prometheus.options import SourceOptions, format_duration, moment_ms, parse_duration, parse_options

BASE = {"url": "http://a:9090", "matchers": "up"}


def options(**given: str) -> SourceOptions:
    return parse_options(BASE | given)


def test_omitted_options_have_defaults() -> None:
    parsed = options()
    assert parsed.urls == ("http://a:9090",)
    assert (parsed.start_ms, parsed.end_ms, parsed.partition_ms) == (None, None, None)
    assert (parsed.shape, parsed.columns) == ("samples", ("metric", "labels", "timestamp", "value"))
    assert (parsed.api, parsed.require, parsed.when_empty, parsed.pushdown) == ("auto", "all", "warn", False)
    assert (parsed.access.timeout, parsed.access.answer_limit, parsed.access.retries) == (60, 900, 3)
    assert parsed.access.headers == ()


def test_every_option_is_parsed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    parsed = parse_options({
        "URL": "https://a:9090/, https://b/prom/\nhttps://a:9090", "Matchers": 'up{a="b"} down up{a="b"}',
        "START": "1767225600.5", "end": "2026-01-01T02:00:00+01:00", "partition": "1h30m", "shape": "SERIES",
        "columns": "series, values,source", "dropLabels": "replica,prometheus", "api": "range_selector",
        "require": "any", "whenempty": "fail", "user": "me", "passwordFile": str(secret), "timeout": "5s",
        "answerLimit": "1m",
        "retries": "0", "maxSamples": "7", "pushdown": "true", "labelColumns": "job, Zone",
        "delay": "0s", "header.X-Scope-OrgID": "team",
    })  # fmt: skip
    assert parsed.urls == ("https://a:9090", "https://b/prom")
    assert len(parsed.selectors) == 2
    assert (parsed.start_ms, parsed.end_ms, parsed.partition_ms) == (1767225600500, 1767229200000, 5_400_000)
    assert (parsed.shape, parsed.columns, parsed.by_source) == ("series", ("series", "values", "source"), True)
    assert (parsed.label_columns, parsed.drop_labels) == (("job", "Zone"), {"replica", "prometheus"})
    assert (parsed.api, parsed.require, parsed.when_empty, parsed.pushdown) == ("range_selector", "any", "fail", True)
    assert (parsed.access.timeout, parsed.access.answer_limit, parsed.access.retries) == (5, 60, 0)
    assert parsed.access.headers == (("X-Scope-OrgID", "team"), ("Authorization", "Basic bWU6czNjcmV0"))
    assert (parsed.max_samples, parsed.delay_ms) == (7, 0)
    assert options(url="https://a", tokenFile=str(secret)).access.headers == (("Authorization", "Bearer s3cret"),)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": ""}, "option url is missing"),
        ({"url": "a:9090"}, "'a:9090' is not a URL such as http://prometheus:9090"),
        ({"url": "ftp://a"}, "not a URL such as"),
        ({"url": "http://a:99999"}, "is not a URL"),
        ({"url": "http://[::1"}, "is not a URL"),
        ({"url": "http://u:p@a"}, "give user and passwordFile"),
        ({"url": "http://a/?x=1"}, "a user, query or fragment is not allowed"),
        ({"matchers": ""}, "option matchers is missing"),
        ({"matchers": "up["}, "option matchers: in the selector"),
        ({"matchs": "up"}, "no option 'matchs'; did you mean matchers?"),
        ({"qqqq": "up"}, "no option 'qqqq'; there are url, matchers"),
        ({"path": "/x"}, "load\\(\\) takes no path"),
        ({"start": "yesterday"}, "option start: 'yesterday' is neither seconds"),
        ({"start": "2026-01-01T00:00:00"}, "has no time zone: add Z"),
        ({"end": "-5"}, "option end: '-5' is neither"),
        ({"start": "9", "end": "8"}, "end \\(8\\) is before start \\(9\\)"),
        ({"partition": "5"}, "option partition: '5' is not a duration with its unit"),
        ({"partition": "0s"}, "shorter than 1 ms"),
        ({"shape": "long"}, "option shape: 'long' is not one of samples, series"),
        ({"columns": "metric,timestamps"}, "shape samples has metric, labels, timestamp, value, time"),
        ({"columns": "metric,metric"}, "not a list of distinct columns"),
        ({"columns": "time", "shape": "series"}, "shape series has metric, labels, timestamps, values, series, source"),
        ({"labelColumns": "job,a-b"}, "option labelColumns: 'a-b' is not the name of a label"),
        ({"labelColumns": "__name__"}, "option labelColumns: '__name__' is not the name of a label"),
        ({"labelColumns": "job,Job"}, "option labelColumns: there is already a column job; use labels\\['Job'\\]"),
        ({"labelColumns": "Source"}, "there is already a column source; use labels\\['Source'\\]"),
        ({"labelColumns": "job", "dropLabels": "job"}, "option labelColumns: job is removed by option dropLabels"),
        ({"columns": ","}, "not a list of distinct columns"),
        ({"api": "query_range"}, "option api: 'query_range' is not one of auto"),
        ({"require": "some"}, "option require"),
        ({"whenEmpty": "x"}, "option whenEmpty"),
        ({"pushdown": "yes"}, "option pushdown: 'yes' is not one of true, false"),
        ({"retries": "21"}, "option retries: '21' is not an integer from 0 to 20"),
        ({"retries": "-1"}, "option retries"),
        ({"maxSamples": "0"}, "option maxSamples: '0' is not an integer from 1"),
        ({"timeout": "soon"}, "option timeout"),
        ({"token": "a", "user": "b", "password": "c"}, "token and user exclude each other"),
        ({"token": "a", "tokenFile": "b"}, "token and tokenFile exclude each other"),
        ({"token": "a"}, "option url: http://a:9090 would send the credentials in clear text; use https"),
        ({"user": "a", "password": "b", "url": "https://a,http://b"}, "http://b would send the credentials"),
        ({"tokenFile": "/nowhere/x"}, "option tokenFile: /nowhere/x cannot be read"),
        ({"token": "a\nb"}, "option token: it is empty or has characters"),
        ({"user": "b"}, "user and password \\(or passwordFile\\) go together"),
        ({"password": "b"}, "go together"),
        ({"certFile": "/nowhere/c"}, "certFile and keyFile go together"),
        ({"caFile": "/nowhere/c"}, "option caFile: there is no file /nowhere/c"),
        ({"header.a b": "x"}, "option header.a b: the header's name or value"),
        ({"header.a": "x\r\ny"}, "the header's name or value"),
    ],
)
def test_every_error_names_its_option(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        options(**given)


def test_moment_ms_parses_seconds_and_rfc_3339_times() -> None:
    assert moment_ms("0") == 0
    assert moment_ms("1767225600.25") == 1767225600250
    assert moment_ms("2026-01-01T00:00:00.001Z") == 1767225600001
    assert moment_ms("2026-01-01T02:00:00+02:00") == 1767225600000


def test_errors_can_be_pickled() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(QueryTooLarge("http://a", "too much")))
    assert type(error) is QueryTooLarge
    assert (str(error), error.server, error.text) == ("http://a: too much", "http://a", "too much")
    assert isinstance(error, ServerError)


@pytest.mark.parametrize("url", ["http://localhost:9090", "http://127.0.0.1", "http://[::1]:9090/prefix"])
def test_credentials_may_go_to_this_machine_without_tls(url: str) -> None:
    assert options(url=url, token="a").access.headers == (("Authorization", "Bearer a"),)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("0", 0), ("500ms", 500), ("1.5s", 1500), ("1h30m", 5_400_000), ("15d", 1_296_000_000), ("1y", 31_536_000_000)],
)
def test_durations_are_those_of_prometheus(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds
    if milliseconds:
        assert parse_duration(format_duration(milliseconds)) == milliseconds


@pytest.mark.parametrize("text", ["", "5", "ms", "1m1h", "1h 30m", "-1s", "1e3s", "½h"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration with its unit"):
        parse_duration(text)
