"""How `migratory status` looks: one line per broker, and remarks below for what has no place in it.

A line is never wrapped: where the terminal is too narrow for all columns, those at the end of `_GOES_FIRST` stay, and a
last line names the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from migratory_cli.tables import left_out

Answer = Mapping[str, Any]

SILENT = 4.0
"""Seconds without a word of ZooKeeper after which it is shown so: a session's length, by default. A broker asks much
more often, and its connection alone proves nothing: it stays open when every server is frozen."""

_HEADINGS = (
    "broker", "state", "pid", "clients", "topics", "coord", "waiting", "lag", "cache", "queued", "up", "ZooKeeper",
)  # fmt: skip
_LEFT = ("broker", "state", "ZooKeeper")
_GOES_FIRST = ("queued", "pid", "topics", "up", "lag", "cache", "coord", "waiting", "clients")
_GAP = "  "


def table(answers: Mapping[str, Answer], width: int) -> list[Text]:
    """The lines, heading first. `width`: of the terminal, in characters."""
    rows = [_HEADINGS, *(_cells(base, answer) for base, answer in answers.items())]
    full = [row for row in rows if len(row) == len(_HEADINGS)]
    widths = {name: max(len(row[place]) for row in full) for place, name in enumerate(_HEADINGS)}
    widths["broker"] = max(len(row[0]) for row in rows)
    gone = []
    for name in _GOES_FIRST:
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) <= width:
            break
        del widths[name]
        gone.append(name)
    clusters = sorted({str(answer["cluster"]) for answer in answers.values() if answer.get("cluster")})
    lines = [Text(f"cluster {', '.join(clusters)}", style="italic")] if clusters else []
    lines += [_line(row, widths) for row in rows]
    return [*lines, left_out(gone, " (--json has all)")] if gone else lines


def remarks(answers: Mapping[str, Answer]) -> list[str]:
    """Why brokers are not ready, slow consumers by name (the metrics only count those), and brokers of the cluster that
    were not asked, such as one that somebody started by hand."""
    lines = []
    asked = {answer.get("broker") for answer in answers.values()}
    linked = {peer for answer in answers.values() for peer in answer.get("peer_links") or {}}
    if others := sorted(linked - asked):
        urls = sorted({server["url"] for answer in answers.values() for server in answer.get("servers") or []})
        lines.append(
            f"not asked, though linked to these brokers: {', '.join(others)} (give the administration addresses of "
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
    """All columns of a broker, or its name and why there are none."""
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
    if len(row) != len(_HEADINGS):
        return Text.assemble(row[0].ljust(widths["broker"]), _GAP, (row[1], "red"))
    heading = row is _HEADINGS
    line = Text(style="bold" if heading else "")
    for name, cell in zip(_HEADINGS, row, strict=True):
        if name in widths:
            if line:
                line.append(_GAP)
            padded = cell.ljust(widths[name]) if name in _LEFT else cell.rjust(widths[name])
            line.append(padded, None if heading else _style(name, cell))
    line.rstrip()
    return line


def _style(name: str, cell: str) -> str | None:
    if name == "state":
        return "green" if cell == "ready" else "yellow"
    return "yellow" if name == "ZooKeeper" and cell != "connected" else None


def _state(answer: Answer, edge: Answer) -> str:
    if answer.get("ready") is True:
        return "ready"
    return "draining" if edge.get("draining") or answer.get("reason") == "draining" else "not ready"


def _zookeeper(answer: Answer, told: Answer) -> str:
    """The time since it was heard decides; a broker without that figure (it starts) is taken at its word."""
    if not answer.get("zookeeper_connected"):
        return "away"
    heard = told.get("age")
    if not isinstance(heard, int | float) or heard <= SILENT:
        return "connected"
    return f"no answer for {heard:.0f} s"


def number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def size(value: object) -> str:
    """Bytes, in the unit that reads best."""
    if not isinstance(value, int):
        return "-"
    found = float(value)
    for unit in ("B", "KiB", "MiB"):
        if found < 1024:
            return f"{found:.0f} {unit}" if unit == "B" else f"{found:.1f} {unit}"
        found /= 1024
    return f"{found:.1f} GiB"


def age(value: object) -> str:
    """Seconds, as minutes and hours."""
    if not isinstance(value, int | float):
        return "-"
    minutes, seconds = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"
