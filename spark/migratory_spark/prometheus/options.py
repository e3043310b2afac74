"""The data source's options, checked: one frozen value that travels to every worker.

Spark hands options over as text with names in any case. Every mistake is an `OptionError` that names the option.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

from migratory_spark.errors import OptionError
from migratory_spark.prometheus.selectors import BadSelector, Selector, parse

Api = Literal["auto", "remote_read", "remote_read_samples", "range_selector"]
Shape = Literal["samples", "series"]
Word = TypeVar("Word", bound=str)

COLUMNS: dict[str, tuple[str, ...]] = {
    "samples": ("metric", "labels", "timestamp", "value"),
    "series": ("metric", "labels", "timestamps", "values"),
}
"""What each shape has by default."""

SERIES, SOURCE = "series", "source"
"""Columns that both shapes have on request: a series' identity, and the server that a row comes from."""

HEADER = "header."
NAMES = (
    "url", "matchers", "start", "end", "partition", "shape", "columns", "dropLabels", "api", "require", "whenEmpty",
    "token", "tokenFile", "user", "password", "passwordFile", "caFile", "certFile", "keyFile",
    "timeout", "answerLimit", "retries", "maxSamples", "pushdown", "delay",
)  # fmt: skip

_SECONDS = re.compile(r"\d+(\.\d{1,3})?", re.ASCII)


@dataclass(slots=True, frozen=True)
class Access:
    """How servers are asked: who asks, whom to trust, how long to wait (seconds), how often to try again."""

    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout: float = 60.0  # without a byte from the server
    answer_limit: float = 900.0  # until an answer is complete
    retries: int = 3


@dataclass(slots=True, frozen=True)
class Options:
    """`start_ms` to `end_ms` is half open; None where a pushed-down filter may still tell. Lengths are in ms."""

    urls: tuple[str, ...]
    selectors: tuple[Selector, ...]
    access: Access
    start_ms: int | None = None
    end_ms: int | None = None
    partition_ms: int | None = None
    shape: Shape = "samples"
    columns: tuple[str, ...] = COLUMNS["samples"]
    drop_labels: frozenset[str] = frozenset()
    api: Api = "auto"
    require: Literal["all", "any"] = "all"
    when_empty: Literal["warn", "fail", "allow"] = "warn"
    max_samples: int = 200_000_000
    pushdown: bool = False
    delay_ms: int = 15_000

    @property
    def by_source(self) -> bool:
        """Whether each server's samples are told by themselves."""
        return SOURCE in self.columns


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises OptionError."""
    found = _named(given)
    headers = tuple((name[len(HEADER) :], value) for name, value in given.items() if name.lower().startswith(HEADER))
    shape: Shape = _one_of(found, "shape", ("samples", "series"), "samples")
    start, end = (_moment(name, found[name]) if name in found else None for name in ("start", "end"))
    if start is not None and end is not None and end < start:
        raise OptionError(f"end ({found['end']}) is before start ({found['start']})")
    return Options(
        urls=_urls(found.get("url", "")),
        selectors=_selectors(found.get("matchers", "")),
        access=_access(found, headers),
        start_ms=start,
        end_ms=end,
        partition_ms=_length_ms(found, "partition") if "partition" in found else None,
        shape=shape,
        columns=_columns(found.get("columns"), shape),
        drop_labels=frozenset(_listed(found.get("dropLabels", ""))),
        api=_one_of(found, "api", ("auto", "remote_read", "remote_read_samples", "range_selector"), "auto"),
        require=_one_of(found, "require", ("all", "any"), "all"),
        when_empty=_one_of(found, "whenEmpty", ("warn", "fail", "allow"), "warn"),
        max_samples=_whole(found, "maxSamples", 200_000_000, 1),
        pushdown=_one_of(found, "pushdown", ("true", "false"), "false") == "true",
        delay_ms=_length_ms(found, "delay", least=0) if "delay" in found else 15_000,
    )


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 of RFC 3339 with its zone, or of seconds since 1970. Raises ValueError."""
    if _SECONDS.fullmatch(text):
        whole, _, part = text.partition(".")
        return int(whole) * 1000 + int(part.ljust(3, "0") or 0)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither seconds since 1970 nor a time such as 2026-11-27T10:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no zone: add Z for UTC, or an offset such as +02:00")
    return math.floor(moment.timestamp() * 1000 + 0.5)


def _named(given: Mapping[str, str]) -> dict[str, str]:
    """By the names as they are written here."""
    known = {name.lower(): name for name in NAMES}
    found = {}
    for name, value in given.items():
        if name.lower().startswith(HEADER):
            continue
        if name.lower() == "path":
            raise OptionError("load() takes no path here: the server is option url, the series are option matchers")
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(NAMES)} and {HEADER}NAME"
            raise OptionError(f"there is no option {name!r}{hint}")
        found[known[name.lower()]] = value
    return found


def _urls(text: str) -> tuple[str, ...]:
    urls = _listed(text)
    if not urls:
        raise OptionError(
            "option url is missing: the address of a Prometheus server, or of several with commas between"
        )
    return tuple(dict.fromkeys(map(_url, urls)))


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise OptionError(f"option url: {text!r} is no address: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise OptionError(f"option url: {text!r} is no address such as http://prometheus:9090 or https://host/prefix")
    if parts.username is not None or parts.query or parts.fragment:
        raise OptionError(
            "option url: an address has no user, query or fragment here; give user and passwordFile as options"
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _selectors(text: str) -> tuple[Selector, ...]:
    if not text.strip():
        raise OptionError('option matchers is missing: which series to read, such as {__name__=~"http_.*",job="web"}')
    try:
        return tuple(dict.fromkeys(parse(text)))
    except BadSelector as error:
        raise OptionError(f"option matchers: {error}") from error


def _columns(text: str | None, shape: Shape) -> tuple[str, ...]:
    known = (*COLUMNS[shape], SERIES, SOURCE)
    columns = COLUMNS[shape] if text is None else tuple(_listed(text))
    unknown = [name for name in columns if name not in known]
    if unknown or not columns or len(set(columns)) != len(columns):
        raise OptionError(
            f"option columns: {text!r} is no list of different columns of shape {shape}, which has {', '.join(known)}"
        )
    return columns


def _access(found: dict[str, str], headers: tuple[tuple[str, str], ...]) -> Access:
    token, password = _secret(found, "token"), _secret(found, "password")
    if token is not None and "user" in found:
        raise OptionError("options token and user exclude each other: a request has one Authorization")
    if (password is not None) != ("user" in found):
        raise OptionError("options user and password (or passwordFile) go together")
    if ("certFile" in found) != ("keyFile" in found):
        raise OptionError("options certFile and keyFile go together")
    for name in ("caFile", "certFile", "keyFile"):
        if name in found and not Path(found[name]).is_file():
            raise OptionError(f"option {name}: there is no file {found[name]}")
    for name, value in headers:
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not value.isprintable():
            raise OptionError(f"option {HEADER}{name}: a header's name or value has a character that HTTP refuses")
    usual = Access()
    if token is not None:
        headers += (("Authorization", f"Bearer {token}"),)
    if password is not None:
        import base64

        pair = base64.b64encode(f"{found['user']}:{password}".encode()).decode()
        headers += (("Authorization", f"Basic {pair}"),)
    return Access(
        headers=headers,
        ca_file=found.get("caFile"),
        cert_file=found.get("certFile"),
        key_file=found.get("keyFile"),
        timeout=_length_ms(found, "timeout") / 1000 if "timeout" in found else usual.timeout,
        answer_limit=_length_ms(found, "answerLimit") / 1000 if "answerLimit" in found else usual.answer_limit,
        retries=_whole(found, "retries", usual.retries, 0, 20),
    )


def _secret(found: dict[str, str], name: str) -> str | None:
    file = f"{name}File"
    if name in found and file in found:
        raise OptionError(f"options {name} and {file} exclude each other")
    secret = found.get(name)
    if file in found:
        try:
            secret = Path(found[file]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"option {file}: {found[file]} can't be read: {error}") from error
    if secret is not None and (not secret or not secret.isprintable()):
        raise OptionError(f"option {name}: it is empty or has characters that HTTP refuses")
    return secret


def _one_of(found: dict[str, str], name: str, allowed: tuple[Word, ...], default: Word) -> Word:
    text = found.get(name, default).lower()
    for word in allowed:
        if word == text:
            return word
    raise OptionError(f"option {name}: {text!r} is none of {', '.join(allowed)}")


def _whole(found: dict[str, str], name: str, default: int, least: int, most: int = 10**12) -> int:
    text = found.get(name, str(default))
    if not re.fullmatch(r"\d{1,13}", text, re.ASCII) or not least <= int(text) <= most:
        raise OptionError(f"option {name}: {text!r} is no whole number from {least} to {most}")
    return int(text)


def _length_ms(found: dict[str, str], name: str, least: int = 1) -> int:
    # Not at the top: the models that come with it take longer to import than a worker needs for all else.
    from migratory_resources.quantities import parse_duration

    try:
        length = round(parse_duration(found[name]) * 1000)
    except ValueError as error:
        raise OptionError(f"option {name}: {found[name]!r} is not {error}") from error
    if length < least:
        raise OptionError(f"option {name}: {found[name]!r} is shorter than {least} ms")
    return length


def _moment(name: str, text: str) -> int:
    try:
        return moment_ms(text)
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from None


def _listed(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,]+", text) if part]
