"""The options of the jobs, shared by `spark-submit` and `migratory sla`."""

from __future__ import annotations

import math
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
    """The question itself is wrong: a file, an option, a window."""

    exit_code = BAD_INPUT


class Unreadable(click.ClickException):
    """The samples could not be read, or Spark could not work: nothing is known about the objectives."""

    exit_code = UNREADABLE


class Ending:
    """`with Ending(): …`: an error that nobody expected ends with INTERNAL and its traceback, Ctrl-C with INTERRUPTED,
    where click would say 1."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt | click.Abort):
            click.echo("Interrupted", err=True)
            raise SystemExit(INTERRUPTED) from error
        expected = (click.ClickException, click.exceptions.Exit)
        if isinstance(error, Exception) and not isinstance(error, expected):
            traceback.print_exception(error)
            raise SystemExit(INTERNAL) from error


_LATEST = 253_370_764_800
"""9999-01-01: a year before dates end, for the days of all zones."""

Command = TypeVar("Command", bound=Callable[..., Any])


class Moment(click.ParamType[float]):
    """Seconds since 1970, an RFC 3339 time (without a zone it is UTC), `now`, or `-5m`: as long before now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            seconds = _seconds(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither seconds since 1970, nor a time such as 2026-11-27T10:00:00Z, nor now, nor one "
                "before now such as -5m or -1h30m", param, ctx,
            )  # fmt: skip
        # `nan` and `inf` are numbers, too.
        if not 0 <= seconds < _LATEST:
            self.fail(f"{value!r} is no moment from 1970 to 9998", param, ctx)
        return seconds


def _seconds(text: str) -> float:
    """Raises ValueError."""
    if text == "now":
        return time.time()
    if text.startswith("-") and text[-1].isalpha():
        return time.time() - parse_duration(text[1:])
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class Setting(click.ParamType[tuple[str, str]]):
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, sign, text = value.partition("=")
        if not sign or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


def result_file(option: str, text: str, name: str | None = None) -> Callable[[Command], Command]:
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(option, name or f"{option.removeprefix('--')}_file", type=path, metavar="FILE", help=text)


def objectives_option(text: str) -> Callable[[Command], Command]:
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option("--objectives", type=kind, metavar="FILE", help=f"{text} Without it: {defaults()}.")


def defaults() -> str:
    """What is judged unless a file says otherwise, in words."""
    words = []
    for one in DEFAULT_OBJECTIVES:
        within = f" within {format_duration(one.threshold)}" if one.threshold is not None else ""
        words.append(f"{one.type}{within} {one.target}%")
    return ", ".join(words)


def _countable(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """`nan` and `inf` are in any range without an upper end."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds", ctx, param)
    return value


REPORT = (
    click.option("--samples", type=click.Path(path_type=Path), metavar="DIR", help="Folder of the recorder's files."),
    click.option("--prometheus", metavar="URL", help="Or: a Prometheus server, or several with commas between."),
    click.option("--prometheus-option", "settings", type=Setting(), multiple=True, metavar="NAME=VALUE",
                 help="An option of the data source, such as tokenFile=/run/token. May be given several times."),
    click.option("--start", type=Moment(), required=True,
                 help="Start of the window: -5m (before now), RFC 3339 (UTC) or seconds since 1970."),
    click.option("--end", type=Moment(), default="now", show_default=True, help="End of the window, likewise."),
    objectives_option("A MigratoryCluster file; its spec.sla.objectives are judged."),
    click.option("--cluster", metavar="NAME", help="Only series whose label `cluster` says so."),
    click.option("--window", type=click.FloatRange(min=0.1), metavar="SECONDS", callback=_countable,
                 help="Length of the tables' rows. Without it: so that there are at most 240."),
    click.option("--zone", default="UTC", show_default=True, help="Time zone of the table by hour or day."),
    click.option("--replica-label", "replica_labels", multiple=True, metavar="LABEL",
                 help="A label that tells servers apart which scrape the same. May be given several times."),
    result_file("--json", "Write the report here."),
    result_file("--html", "Write the report here as one page with plots."),
    click.option("--history", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
                 help="Add the report's rows to tables there, partitioned by day."),
)  # fmt: skip


def options(*wanted: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(wanted):
            command = option(command)
        return command

    return add
