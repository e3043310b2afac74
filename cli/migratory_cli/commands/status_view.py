"""Formats the output of `migratory status`: a table with one line per broker, and remarks below.

On a terminal that is too narrow for the table, columns of `_OPTIONAL` are omitted in that order, and a last line names
them. The command prints the lines without wrapping them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from migratory_cli.output import omitted_columns
from migratory_cli.terminal import printable

Answer = Mapping[str, Any]

ZOOKEEPER_SILENCE = 4.0
"""Seconds since ZooKeeper's last answer above which the silence is shown: the default session timeout. A broker sends
requests much more often. An open connection alone proves nothing, because it stays open when every server is frozen."""

_HEADINGS = (
    "broker", "state", "pid", "clients", "topics", "coord", "waiting", "lag", "cache", "queued", "up", "ZooKeeper",
)  # fmt: skip
_LEFT_ALIGNED = ("broker", "state", "ZooKeeper")
_OPTIONAL = ("queued", "pid", "topics", "up", "lag", "cache", "coord", "waiting", "clients")
_GAP = "  "


def format_table(answers: Mapping[str, Answer], width: int) -> list[Text]:
    """Return the lines of the table: the names of the clusters if any are known, the headings, a line for each broker,
    and a line that names the columns that were omitted for the width.

    :param answers: a broker's status page, or {"error": reason}, by address.
    :param width: the terminal's width in characters.
    """
    rows = [_HEADINGS, *(tuple(map(printable, _cells(base, answer))) for base, answer in answers.items())]
    full = [row for row in rows if len(row) == len(_HEADINGS)]
    widths = {name: max(len(row[index]) for row in full) for index, name in enumerate(_HEADINGS)}
    widths["broker"] = max(len(row[0]) for row in rows)
    omitted = []
    for name in _OPTIONAL:
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) <= width:
            break
        del widths[name]
        omitted.append(name)
    clusters = sorted({str(answer["cluster"]) for answer in answers.values() if answer.get("cluster")})
    lines = [Text(printable(f"cluster {', '.join(clusters)}"), style="italic")] if clusters else []
    lines += [_line(row, widths) for row in rows]
    return [*lines, omitted_columns(omitted, " (--json has all)")] if omitted else lines


def format_remarks(answers: Mapping[str, Answer]) -> list[str]:
    """Return the remarks below the table: brokers of the cluster that were not queried (such as one that was started by
    hand), the reasons for which brokers are not ready, and the slow consumers by name."""
    lines = []
    queried = {answer.get("broker") for answer in answers.values()}
    linked = {peer for answer in answers.values() for peer in answer.get("peer_links") or {}}
    if others := sorted(linked - queried):
        urls = sorted({server["url"] for answer in answers.values() for server in answer.get("servers") or []})
        lines.append(
            f"not queried, but linked to these brokers: {', '.join(others)} (give the administration addresses of "
            f"all; the server list is {', '.join(urls) or 'empty'})"
        )
    for base, answer in answers.items():
        name = answer.get("broker", base)
        if "error" not in answer and answer.get("ready") is not True and answer.get("reason"):
            lines.append(f"{name} is not ready: {answer['reason']}")
        for client in (answer.get("edge") or {}).get("slow") or []:
            lines.append(f"slow consumer at {name}: {json.dumps(client, ensure_ascii=False)}")
    return lines


def _cells(base: str, answer: Answer) -> tuple[str, ...]:
    """Return a broker's cells in all columns, or only its name and the error if it did not answer. A broker whose name
    is unknown has its address, `base`, as its name."""
    name = str(answer.get("broker", base))
    if "error" in answer:
        return name, str(answer["error"])
    logic: Answer = answer.get("logic") or {}
    edge: Answer = answer.get("edge") or {}
    return (
        name,
        _state(answer, edge),
        str(answer.get("pid", "-")),
        number(edge.get("clients")),
        number(logic.get("topics")),
        number((logic.get("roles") or {}).get("coordinator")),
        number(logic.get("waiting_groups")),
        number(logic.get("replication_lag")),
        size(logic.get("cache_bytes")),
        size(edge.get("queue_bytes")),
        age(answer.get("uptime_seconds")),
        _zookeeper(answer, logic.get("zookeeper") or {}),
    )


def _line(row: tuple[str, ...], widths: Mapping[str, int]) -> Text:
    """Return a row as a line: its cells in the columns of `widths`, or the name and the error of a broker that did not
    answer."""
    if len(row) != len(_HEADINGS):
        return Text.assemble(row[0].ljust(widths["broker"]), _GAP, (row[1], "red"))
    heading = row is _HEADINGS
    line = Text(style="bold" if heading else "")
    for name, cell in zip(_HEADINGS, row, strict=True):
        if name in widths:
            if line:
                line.append(_GAP)
            padded = cell.ljust(widths[name]) if name in _LEFT_ALIGNED else cell.rjust(widths[name])
            line.append(padded, None if heading else _style(name, cell))
    line.rstrip()
    return line


def _style(name: str, cell: str) -> str | None:
    """Return the colour of a cell: that of good or bad news in the columns state and ZooKeeper, None elsewhere."""
    if name == "state":
        return "green" if cell == "ready" else "yellow"
    return "yellow" if name == "ZooKeeper" and cell != "connected" else None


def _state(answer: Answer, edge: Answer) -> str:
    """Return the state of a broker that answered: `ready`, `draining` or `not ready`."""
    if answer.get("ready") is True:
        return "ready"
    return "draining" if edge.get("draining") or answer.get("reason") == "draining" else "not ready"


def _zookeeper(answer: Answer, zookeeper: Answer) -> str:
    """Return the state of the broker's ZooKeeper connection in words: `away`, `connected`, or for how long ZooKeeper
    has not answered. A broker that is starting has no time of the last answer yet."""
    if not answer.get("zookeeper_connected"):
        return "away"
    silence = zookeeper.get("age")
    if not isinstance(silence, int | float) or silence <= ZOOKEEPER_SILENCE:
        return "connected"
    return f"no answer for {silence:.0f} s"


def number(value: object) -> str:
    """Return a whole number with commas between thousands, or "-" if it is not known."""
    return f"{value:,}" if isinstance(value, int) else "-"


def size(value: object) -> str:
    """Return a number of bytes with a binary unit, such as "1.5 MiB", or "-" if it is not known."""
    if not isinstance(value, int):
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def age(value: object) -> str:
    """Return a number of seconds as hours and minutes ("3h05m"), or minutes and seconds ("5m09s"), or "-" if it is not
    known."""
    if not isinstance(value, int | float):
        return "-"
    minutes, seconds = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"
