"""Tables of a report for a terminal. Cells are folded if there is no room, because cut numbers would be wrong."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

COLUMNS = ("count", "median", "mean", "stdev", "p90", "p95", "p99", "max")
UNLIMITED_WIDTH = 10_000
COLORS = {"met": "bold green", "missed": "bold red", "insufficient": "bold yellow"}


def number(value: float | None, digits: int = 2) -> str:
    """Return a number as text with thousands separators, or a dash if it is unknown. A whole number (int) has no digits
    after the point, others have `digits`."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def plain_text(text: str) -> Text:
    """Return a text that Rich prints as it is: not read as markup, with control characters replaced.

    Rich would interpret `[red]` and reject `[/x]`, and a terminal would obey control characters.
    """
    return Text("".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text))


def wide_console() -> Console:
    """Return a console on the standard output with the terminal's width, or, if that is a pipe or a file, with
    UNLIMITED_WIDTH columns."""
    console = Console()
    return console if console.is_terminal else Console(width=UNLIMITED_WIDTH)


def render(report: dict[str, Any]) -> RenderableType:
    """Return the report as tables of latency, interruptions, deliveries and objectives, the reasons of verdicts, a
    table of the breakdown if there is one, notes and the verdict.

    :param report: the report as plain data, as in its JSON.
    """
    parts: list[RenderableType] = [_latency(report), _interruptions(report), _delivery(report), _objectives(report)]
    parts += _reasons(report)
    if report.get("breakdown"):
        parts.append(_breakdown(report["breakdown"]))
    parts += [plain_text(f"- {note}") for note in report.get("notes", ())]
    verdict = report["verdict"]
    suffix = " (provisional)" if report["window"].get("provisional") else ""
    parts.append(Text.assemble("verdict: ", (verdict, COLORS[verdict]), suffix))
    return Group(*parts)


def show(report: dict[str, Any], console: Console | None = None) -> None:
    """Print the report's tables, notes and verdict to `console`, by default the standard output.

    :param report: the report as plain data, as in its JSON.
    """
    (console or wide_console()).print(render(report))


def _distributions(title: str, first: str, rows: list[tuple[str, dict[str, float | None]]]) -> Table:
    """Return a table with a row for each distribution.

    :param first: the heading of the first column, which has the distribution's name.
    :param rows: name of each distribution, and its figures by the names in COLUMNS.
    """
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first, overflow="fold")
    for column in COLUMNS:
        table.add_column(column, justify="right", overflow="fold")
    for name, values in rows:
        table.add_row(plain_text(name), *(number(values[column]) for column in COLUMNS))
    return table


def _latency(report: dict[str, Any]) -> Table:
    """Return the table of latencies: of all brokers, of each broker, around each incident, and of replays if there were
    any."""
    latency = report["latency_ms"]
    rows = [("all brokers", latency["all"]), *latency["by_broker"].items()]
    for incident in report["incidents"]:
        label = f"{incident['kind']} {incident['broker']}".strip()
        rows += [(f"{when} {label}", incident["latency_ms"][when]) for when in ("before", "during", "after")]
    if report["replay_latency_ms"]["count"]:
        rows.append(("replayed", report["replay_latency_ms"]))
    return _distributions("Latency of deliveries, ms", "broker", rows)


def _interruptions(report: dict[str, Any]) -> Table:
    """Return the table of the times that clients waited to resume and publishers to be served again."""
    return _distributions(
        "Interruptions, s",
        "of",
        [("resume (clients)", report["resume_seconds"]), ("publish gap (publishers)", report["publish_gap_seconds"])],
    )


def _delivery(report: dict[str, Any]) -> Table:
    """Return the table of the counts of deliveries, reconnects and reported gaps."""
    delivery = report["delivery"]
    names = ["expected", "received", "lost", "duplicates", "reordered", "reconnects"]
    table = Table(title="Deliveries", title_justify="left", title_style="bold")
    for name in [*names, "truncated", "reset"]:
        table.add_column(name, justify="right", overflow="fold")
    table.add_row(
        *(number(delivery[name]) for name in names), *(number(delivery["gaps"][x]) for x in ("truncated", "reset"))
    )
    return table


def _objectives(report: dict[str, Any]) -> Table:
    """Return the table of the objectives with their verdicts."""
    table = Table(title="Objectives", title_justify="left", title_style="bold")
    for column, justify in (
        ("objective", "left"), ("type", "left"), ("target", "right"), ("compliance", "right"),
        ("good", "right"), ("total", "right"), ("budget left", "right"), ("verdict", "left"),
    ):  # fmt: skip
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for result in report["objectives"]:
        share = result["compliance"]
        budget_left = result["budget_left"]
        table.add_row(
            plain_text(result["name"]),
            result["type"],
            f"{result['target']}%",
            "-" if share is None else f"{share:.4%}",
            number(None if result["good"] is None else round(result["good"])),
            number(None if result["total"] is None else round(result["total"])),
            "-" if budget_left is None else f"{budget_left:.1%}",
            Text(result["verdict"], style=COLORS[result["verdict"]]),
        )
    return table


def _breakdown(breakdown: dict[str, Any]) -> Table:
    """Return the table of the breakdown: for each combination of labels expected and lost deliveries, P99, and the
    compliance with each objective."""
    table = Table(title=f"By {', '.join(breakdown['by'])}", title_justify="left", title_style="bold")
    for label in breakdown["by"]:
        table.add_column(plain_text(label), overflow="fold")
    for column in ("expected", "lost", "P99, ms"):
        table.add_column(column, justify="right", overflow="fold")
    names = list(dict.fromkeys(each["name"] for row in breakdown["rows"] for each in row["objectives"]))
    for name in names:
        table.add_column(plain_text(name), justify="right", overflow="fold")
    for row in breakdown["rows"]:
        results = {each["name"]: each for each in row["objectives"]}
        table.add_row(
            *map(plain_text, row["labels"]),
            number(row["expected"]), number(row["lost"]), number(row["latency_ms"]["p99"]),
            *(_compliance(results.get(name)) for name in names),
        )  # fmt: skip
    return table


def _compliance(result: dict[str, Any] | None) -> Text:
    """Return the cell of an objective's compliance in the color of its verdict, a dash if there is none."""
    if result is None or result["compliance"] is None:
        return Text("-")
    return Text(f"{result['compliance']:.4%}", style=COLORS[result["verdict"]])


def _reasons(report: dict[str, Any]) -> list[Text]:
    """Return a sentence for each verdict with a reason. They are printed below the table, which they would make wider
    than a terminal."""
    return [
        plain_text(f"- {result['name']}: {result['reason']}") for result in report["objectives"] if result["reason"]
    ]
