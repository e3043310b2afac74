"""Options, exit codes and errors of the jobs' command lines, for `spark-submit` and `migratory sla`.

A crash must not look like a verdict: Python exits with 1 after a crash, and 1 means "missed" here.
"""

from __future__ import annotations

import math
import re
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import click
from migratory_resources.objectives import DEFAULT_OBJECTIVES
from migratory_resources.quantities import format_duration, parse_duration

MET, MISSED, BAD_INPUT, INSUFFICIENT, UNREADABLE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130
VERDICTS = {"met": MET, "missed": MISSED, "insufficient": INSUFFICIENT}
CHANGES = {"same": MET, "better": MET, "worse": MISSED, "unknown": INSUFFICIENT}


class BadInput(click.ClickException):
    """Raised when an option, a file or a window is wrong; the command exits with BAD_INPUT.

    If the error came up with the samples (there are none, or they do not fit what is asked), the original error is the
    `__cause__`. Only then the message may quote what a server sent.
    """

    exit_code = BAD_INPUT


class SamplesUnreadable(click.ClickException):
    """Raised when the samples could not be read, or Spark failed; the command exits with UNREADABLE. Nothing is known
    about the objectives. The message may quote what a server sent."""

    exit_code = UNREADABLE


class ExitOnError:
    """A context that ends the program with INTERNAL and a traceback after an unexpected error, and with INTERRUPTED
    after Ctrl-C.

    Errors that Click reports itself (`ClickException`, `Exit`), and SystemExit, pass through. Without this context, the
    exit code after an unexpected error and after Ctrl-C would be 1.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Raise SystemExit with INTERRUPTED after Ctrl-C, and with INTERNAL after an unexpected error. Otherwise do
        nothing."""
        if isinstance(error, KeyboardInterrupt | click.Abort):
            click.echo("Interrupted", err=True)
            raise SystemExit(INTERRUPTED) from error
        expected = (click.ClickException, click.exceptions.Exit)
        if isinstance(error, Exception) and not isinstance(error, expected):
            traceback.print_exception(error)
            raise SystemExit(INTERNAL) from error


_MAX_MOMENT = 253_370_764_800
"""9999-01-01, a year before dates end, so that the days of every time zone can be computed."""

_MAX_DURATION = 3650 * 86_400
"""Seconds of the longest duration of an option: ten years, more than any history."""

Command = TypeVar("Command", bound=Callable[..., Any])


class MomentParam(click.ParamType[float]):
    """An option that is a moment: seconds since 1970, an RFC 3339 time (UTC without a zone), `now`, or a duration
    before now such as `-5m`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the moment in seconds since 1970; a float is taken for one. End the command with a message that says
        what is allowed if `value` is no moment from 1970 to 9998."""
        if isinstance(value, float):
            return value
        try:
            seconds = _seconds(value)
        except ValueError:
            self.fail(
                f"{value!r} is not a time; use seconds since 1970, a time such as 2026-11-27T10:00:00Z, now, or a "
                "duration before now such as -5m or -1h30m", param, ctx,
            )  # fmt: skip
        # `float` accepts `nan` and `inf`.
        if not 0 <= seconds < _MAX_MOMENT:
            self.fail(f"{value!r} is not between 1970 and 9998", param, ctx)
        return seconds


def _seconds(text: str) -> float:
    """Return the moment in seconds since 1970, which may be `nan`, infinite or before 1970. Raises ValueError if the
    text is not a moment."""
    if text == "now":
        return time.time()
    if text.startswith("-") and text[-1].isalpha():
        return time.time() - parse_duration(text[1:])
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class DurationParam(click.ParamType[float]):
    """An option that is a duration, such as `28d` or `12h`; its value is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds. End the command with a message that says what is allowed if `value` is no
        duration of a second to ten years."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, ctx)
        if not 1 <= seconds <= _MAX_DURATION:
            self.fail(f"{value!r} is not from 1s to 3650d", param, ctx)
        return float(seconds)


class SettingParam(click.ParamType[tuple[str, str]]):
    """An option of the form NAME=VALUE, which becomes a pair of texts."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return name and value. End the command with a message if `value` has no name or no equals sign."""
        if isinstance(value, tuple):
            return value
        name, sign, text = value.partition("=")
        if not sign or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


class LabelsParam(click.ParamType[tuple[str, ...]]):
    """An option that names labels, separated by commas, which become a tuple of distinct texts."""

    name = "labels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the labels, each once and in their order. End the command with a message if one is no label's name, or
        is `le`, which distinguishes the buckets of one histogram."""
        if isinstance(value, tuple):
            return value
        labels = tuple(dict.fromkeys(label.strip() for label in value.split(",")))
        for label in labels:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", label) or label == "le":
                self.fail(f"{label!r} is not a label to break a report down by; use names such as region", param, ctx)
        return labels


def result_file(option: str, text: str, name: str | None = None) -> Callable[[Command], Command]:
    """Return a decorator that adds to a command an option for the file into which a result is written.

    :param option: the option, such as `--json`.
    :param text: the help text.
    :param name: the command's parameter; by default `json_file` for the option `--json`.
    """
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(option, name or f"{option.removeprefix('--')}_file", type=path, metavar="FILE", help=text)


def objectives_option(text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the option --objectives to a command; its help text is `text` and the default
    objectives. The file must exist."""
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--objectives", type=kind, metavar="FILE", help=f"{text} By default: {describe_defaults()}.")


def describe_defaults() -> str:
    """Return the default objectives in words, separated by commas, each such as `latency within 250ms 99.9%`."""
    words = []
    for objective in DEFAULT_OBJECTIVES:
        within = f" within {format_duration(objective.threshold)}" if objective.threshold is not None else ""
        words.append(f"{objective.type}{within} {objective.target}%")
    return ", ".join(words)


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Return the value of an option, None if it is not given. End the command with a message for `nan` and `inf`, which
    are in any range without an upper end."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number of seconds", ctx, param)
    return value


REPORT = (
    click.option("--samples", type=click.Path(path_type=Path), metavar="DIR",
                 help="Folder of the recorder's Parquet files."),
    click.option("--prometheus", metavar="URL",
                 help="A Prometheus server, or several separated by commas, instead of --samples."),
    click.option("--prometheus-option", "settings", type=SettingParam(), multiple=True, metavar="NAME=VALUE",
                 help="An option of the data source, such as tokenFile=/run/token. May be given several times."),
    click.option("--start", type=MomentParam(), required=True,
                 help="Start of the window: -5m (before now), RFC 3339 (UTC) or seconds since 1970."),
    click.option("--end", type=MomentParam(), default="-15s", show_default=True,
                 help="End of the window, likewise. Samples take seconds to arrive: with a later end the report is "
                      "provisional."),
    objectives_option("A MigratoryCluster file; its spec.sla.objectives are judged."),
    click.option("--cluster", metavar="NAME", help="Count only series with this value of the label `cluster`."),
    click.option("--window", type=click.FloatRange(min=0.1), metavar="SECONDS", callback=_finite,
                 help="Length of the tables' rows. By default there are at most 240 rows."),
    click.option("--zone", default="UTC", show_default=True, help="Time zone of the table by hour or day."),
    click.option("--replica-label", "replica_labels", multiple=True, metavar="LABEL",
                 help="A label by which only servers that scrape the same targets differ. May be given several times."),
    click.option("--by", type=LabelsParam(), default=(), metavar="LABELS",
                 help="Break figures and objectives down by these labels, such as region,topic_class."),
    result_file("--json", "Write the report to this file."),
    result_file("--html", "Write the report to this file as one page with plots."),
    click.option("--csv", "csv_folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                 help="Write the report's tables to files *.csv in this folder."),
    click.option("--history", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                 help="Add the report's rows to Parquet tables in this folder, partitioned by day."),
)  # fmt: skip


def options(*wanted: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(wanted):
            command = option(command)
        return command

    return add
