"""Parses and validates the data source's options into one frozen value, which is sent to every worker.

Spark passes options as text with names in any case. Every mistake is an OptionError that names the option.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from migratory_spark.prometheus.errors import OptionError
from migratory_spark.prometheus.selectors import BadSelector, Selector, is_label, narrow, parse

Api = Literal["auto", "remote_read", "remote_read_samples", "range_selector"]
Shape = Literal["samples", "series"]
Histograms = Literal["fail", "skip", "classic"]
"""Ways to treat native histograms for which there is no column."""
Word = TypeVar("Word", bound=str)

COLUMNS: dict[str, tuple[str, ...]] = {
    "samples": ("metric", "labels", "timestamp", "value"),
    "series": ("metric", "labels", "timestamps", "values"),
}
"""Default columns of each shape."""

SERIES, SOURCE = "series", "source"
"""Optional columns of both shapes: the series' fingerprint, and the server that a row comes from."""
TIME = "time"
"""Optional column of the shape `samples`: the time stamp as Spark's TIMESTAMP."""
HISTOGRAM = "histogram"
"""Optional column of the shape `samples`: the native histogram, null for a number."""
OPTIONAL: dict[str, tuple[str, ...]] = {"samples": (TIME, HISTOGRAM, SERIES, SOURCE), "series": (SERIES, SOURCE)}
"""Columns of each shape on request."""

HEADER = "header."
NAMES = (
    "url", "matchers", "start", "end", "partition", "shape", "columns", "labelColumns", "dropLabels", "api", "require",
    "whenEmpty", "token", "tokenFile", "user", "password", "passwordFile", "caFile", "certFile", "keyFile",
    "timeout", "answerLimit", "retries", "maxSamples", "pushdown", "delay", "histograms",
)  # fmt: skip

_SECONDS = re.compile(r"\d+(\.\d{1,3})?", re.ASCII)

_UNITS_MS = {
    "y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1
}  # fmt: skip
_DURATION = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in _UNITS_MS), re.ASCII)
"""A duration as Prometheus writes it, with a group for the number of each unit."""

DELAY_MS = 15_000
"""Default of the option `delay`: milliseconds after which a sample has arrived at its server. A scrape times out after
10 s by default."""


@dataclass(slots=True, frozen=True)
class Access:
    """The settings of requests to servers: headers, TLS files, time limits in seconds, retries."""

    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout: float = 60.0  # between two bytes from the server
    answer_limit: float = 900.0  # until a response is complete
    retries: int = 3


@dataclass(slots=True, frozen=True)
class SourceOptions:
    """All options of the data source, validated. Lengths are in ms, moments in ms since 1970.

    The window is [start_ms, end_ms). Each end is None if it was not given; a pushed-down filter may still set it.
    """

    urls: tuple[str, ...]
    selectors: tuple[Selector, ...]
    access: Access
    start_ms: int | None = None
    end_ms: int | None = None
    partition_ms: int | None = None
    shape: Shape = "samples"
    columns: tuple[str, ...] = COLUMNS["samples"]
    label_columns: tuple[str, ...] = ()
    drop_labels: frozenset[str] = frozenset()
    api: Api = "auto"
    require: Literal["all", "any"] = "all"
    when_empty: Literal["warn", "fail", "allow"] = "warn"
    max_samples: int = 200_000_000
    pushdown: bool = False
    delay_ms: int = DELAY_MS
    histograms: Histograms = "fail"

    @property
    def by_source(self) -> bool:
        """True if the column `source` is requested, so that samples of several servers are not merged."""
        return SOURCE in self.columns

    @property
    def with_histograms(self) -> bool:
        """True if the column `histogram` is requested."""
        return HISTOGRAM in self.columns

    def narrowed(self, metrics: Iterable[str]) -> SourceOptions:
        """Return the same options for those of the metrics that the selectors match. There may be none."""
        selectors = (narrow(selector, metrics) for selector in self.selectors)
        return replace(self, selectors=tuple(selector for selector in selectors if selector is not None))


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the validated options from their texts by name, with defaults for those not given. Raises OptionError."""
    options = _canonical_names(given)
    headers = tuple((name[len(HEADER) :], value) for name, value in given.items() if name.lower().startswith(HEADER))
    shape: Shape = _choice(options, "shape", ("samples", "series"), "samples")
    start, end = (_moment(name, options[name]) if name in options else None for name in ("start", "end"))
    if start is not None and end is not None and end < start:
        raise OptionError(f"end ({options['end']}) is before start ({options['start']})")
    drop_labels = frozenset(_split_list(options.get("dropLabels", "")))
    urls, access = _urls(options.get("url", "")), _access(options, headers)
    if {"token", "tokenFile", "user"} & options.keys() and (clear := next(filter(_is_clear_text, urls), None)):
        raise OptionError(f"option url: {clear} would send the credentials in clear text; use https")
    columns = _columns(options.get("columns"), shape)
    if HISTOGRAM in columns and "histograms" in options:
        raise OptionError(
            "option histograms: native histograms are in the column histogram, which option columns names"
        )
    return SourceOptions(
        urls=urls,
        selectors=_selectors(options.get("matchers", "")),
        access=access,
        start_ms=start,
        end_ms=end,
        partition_ms=_length_ms(options, "partition") if "partition" in options else None,
        shape=shape,
        columns=columns,
        label_columns=_label_columns(options.get("labelColumns", ""), drop_labels),
        drop_labels=drop_labels,
        api=_choice(options, "api", ("auto", "remote_read", "remote_read_samples", "range_selector"), "auto"),
        require=_choice(options, "require", ("all", "any"), "all"),
        when_empty=_choice(options, "whenEmpty", ("warn", "fail", "allow"), "warn"),
        max_samples=_integer(options, "maxSamples", 200_000_000, 1),
        pushdown=_choice(options, "pushdown", ("true", "false"), "false") == "true",
        delay_ms=_length_ms(options, "delay", minimum=0) if "delay" in options else DELAY_MS,
        histograms=_choice(options, "histograms", ("fail", "skip", "classic"), "fail"),
    )


def moment_ms(text: str) -> int:
    """Return a moment in ms since 1970, from an RFC 3339 time with a zone or from seconds since 1970. Raises ValueError
    for other text."""
    if _SECONDS.fullmatch(text):
        whole, _, part = text.partition(".")
        return int(whole) * 1000 + int(part.ljust(3, "0") or 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither seconds since 1970 nor a time such as 2026-11-27T10:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: add Z for UTC, or an offset such as +02:00")
    return math.floor(moment.timestamp() * 1000 + 0.5)


def parse_duration(text: str) -> int:
    """Return a duration in ms, from text such as "250ms", "1h30m" or "15d" as Prometheus writes it. Units are y (365
    days), w, d, h, m, s and ms, the largest first. Only 0 needs no unit. Raises ValueError for other text."""
    parts = _DURATION.fullmatch(text)
    if text == "0":
        return 0
    if not text or parts is None:
        raise ValueError(f'{text!r} is not a duration with its unit, such as "250ms", "4s", "2m", "1h" or "1m30s"')
    lengths = zip(parts.groups(), _UNITS_MS.values(), strict=True)
    return round(sum(float(number) * unit_ms for number, unit_ms in lengths if number))


def format_duration(length_ms: int) -> str:
    """Return a duration above 0 in the largest unit that leaves a whole number, such as "90s" or "2h"."""
    return next(f"{length_ms // unit}{name}" for name, unit in _UNITS_MS.items() if length_ms % unit == 0)


def _canonical_names(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their canonical names, without those for headers. Raises OptionError for an unknown
    name."""
    known = {name.lower(): name for name in NAMES}
    options = {}
    for name, value in given.items():
        if name.lower().startswith(HEADER):
            continue
        if name.lower() == "path":
            raise OptionError("load() takes no path here: the server is option url, the series are option matchers")
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(NAMES)} and {HEADER}NAME"
            raise OptionError(f"there is no option {name!r}{hint}")
        options[known[name.lower()]] = value
    return options


def _urls(text: str) -> tuple[str, ...]:
    urls = _split_list(text)
    if not urls:
        raise OptionError("option url is missing: the URL of a Prometheus server, or of several separated by commas")
    return tuple(dict.fromkeys(map(_url, urls)))


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise OptionError(f"option url: {text!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise OptionError(f"option url: {text!r} is not a URL such as http://prometheus:9090 or https://host/prefix")
    if parts.username is not None or parts.query or parts.fragment:
        raise OptionError(
            "option url: a user, query or fragment is not allowed in the URL; give user and passwordFile as options"
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _is_clear_text(url: str) -> bool:
    """Return whether requests to the URL cross a network without TLS: http, and not to this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    return parts.scheme == "http" and not is_loopback


def _selectors(text: str) -> tuple[Selector, ...]:
    if not text.strip():
        raise OptionError('option matchers is missing: which series to read, such as {__name__=~"http_.*",job="web"}')
    try:
        return tuple(dict.fromkeys(parse(text)))
    except BadSelector as error:
        raise OptionError(f"option matchers: {error}") from error


def _columns(text: str | None, shape: Shape) -> tuple[str, ...]:
    allowed = (*COLUMNS[shape], *OPTIONAL[shape])
    columns = COLUMNS[shape] if text is None else tuple(_split_list(text))
    unknown = [name for name in columns if name not in allowed]
    if unknown or not columns or len(set(columns)) != len(columns):
        raise OptionError(
            f"option columns: {text!r} is not a list of distinct columns; shape {shape} has {', '.join(allowed)}"
        )
    return columns


def _label_columns(text: str, drop_labels: frozenset[str]) -> tuple[str, ...]:
    labels = tuple(_split_list(text))
    taken = {name for shape in COLUMNS for name in (*COLUMNS[shape], *OPTIONAL[shape])}
    for label in labels:
        if not is_label(label):
            raise OptionError(f"option labelColumns: {label!r} is not the name of a label")
        if label in drop_labels:
            raise OptionError(f"option labelColumns: {label} is removed by option dropLabels")
        # Spark does not distinguish columns by case.
        if label.lower() in taken:
            raise OptionError(f"option labelColumns: there is already a column {label.lower()}; use labels['{label}']")
        taken.add(label.lower())
    return labels


def _access(options: dict[str, str], headers: tuple[tuple[str, str], ...]) -> Access:
    token, password = _secret(options, "token"), _secret(options, "password")
    if token is not None and "user" in options:
        raise OptionError("options token and user exclude each other: a request has one Authorization")
    if (password is not None) != ("user" in options):
        raise OptionError("options user and password (or passwordFile) go together")
    if ("certFile" in options) != ("keyFile" in options):
        raise OptionError("options certFile and keyFile go together")
    for name in ("caFile", "certFile", "keyFile"):
        if name in options and not Path(options[name]).is_file():
            raise OptionError(f"option {name}: there is no file {options[name]}")
    for name, value in headers:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not value.isprintable():
            raise OptionError(
                f"option {HEADER}{name}: the header's name or value has a character that HTTP does not allow"
            )
    defaults = Access()
    if token is not None:
        headers += (("Authorization", f"Bearer {token}"),)
    if password is not None:
        import base64

        pair = base64.b64encode(f"{options['user']}:{password}".encode()).decode()
        headers += (("Authorization", f"Basic {pair}"),)
    return Access(
        headers=headers,
        ca_file=options.get("caFile"),
        cert_file=options.get("certFile"),
        key_file=options.get("keyFile"),
        timeout=_length_ms(options, "timeout") / 1000 if "timeout" in options else defaults.timeout,
        answer_limit=_length_ms(options, "answerLimit") / 1000 if "answerLimit" in options else defaults.answer_limit,
        retries=_integer(options, "retries", defaults.retries, 0, 20),
    )


def _secret(options: dict[str, str], name: str) -> str | None:
    file = f"{name}File"
    if name in options and file in options:
        raise OptionError(f"options {name} and {file} exclude each other")
    secret = options.get(name)
    if file in options:
        try:
            secret = Path(options[file]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"option {file}: {options[file]} cannot be read: {error}") from error
    if secret is not None and (not secret or not secret.isprintable()):
        raise OptionError(f"option {name}: it is empty or has characters that HTTP does not allow")
    return secret


def _choice(options: dict[str, str], name: str, allowed: tuple[Word, ...], default: Word) -> Word:
    text = options.get(name, default).lower()
    for word in allowed:
        if word == text:
            return word
    raise OptionError(f"option {name}: {text!r} is not one of {', '.join(allowed)}")


def _integer(options: dict[str, str], name: str, default: int, minimum: int, maximum: int = 10**12) -> int:
    text = options.get(name, str(default))
    if not re.fullmatch(r"\d{1,13}", text, re.ASCII) or not minimum <= int(text) <= maximum:
        raise OptionError(f"option {name}: {text!r} is not an integer from {minimum} to {maximum}")
    return int(text)


def _length_ms(options: dict[str, str], name: str, minimum: int = 1) -> int:
    try:
        length = parse_duration(options[name])
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from None
    if length < minimum:
        raise OptionError(f"option {name}: {options[name]!r} is shorter than {minimum} ms")
    return length


def _moment(name: str, text: str) -> int:
    try:
        return moment_ms(text)
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from None


def _split_list(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,]+", text) if part]
