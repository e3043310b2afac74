"""The tables for a terminal: names are shown with all their characters, none of these controls the terminal, and
nothing is cut in a pipe or a narrow terminal."""

from __future__ import annotations

import msgspec
import pytest
from migratory_spark.render import comparison_tables, tables
from migratory_spark.report.comparison import compare
from migratory_testing.reports import sample_report
from rich.console import Console, RenderableType


def shown(what: RenderableType) -> str:
    console = Console(width=10_000)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


@pytest.mark.parametrize("name", ["b[red]0", "[/b]", "[link=file:///etc/passwd]x[/link]", "a\\[b", ":skull:"])
def test_names_are_not_interpreted_as_markup(name: str) -> None:
    full = sample_report()
    named = msgspec.structs.replace(
        full,
        cluster=name,
        notes=[name],
        latency_ms=msgspec.structs.replace(full.latency_ms, by_broker={name: full.latency_ms.all}),
        incidents=[msgspec.structs.replace(full.incidents[0], broker=name)],
        objectives=[msgspec.structs.replace(full.objectives[0], name=name, reason=name)],
    )
    assert shown(tables.render(msgspec.to_builtins(named))).count(name) == 8
    assert shown(comparison_tables.render(compare(named, named, (name, name)))).count(name) == 6


def test_control_characters_are_replaced() -> None:
    full = sample_report()
    named = msgspec.structs.replace(full, notes=["\x1b]0;title\x07\x9b31m\r\u202e"], cluster="\x1b[2J")
    for text in (
        shown(tables.render(msgspec.to_builtins(named))),
        shown(comparison_tables.render(compare(named, named))),
    ):
        assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(text)


def test_tables_in_a_pipe_are_not_cut_and_reasons_follow() -> None:
    full = sample_report()
    reason = "no metrics of clients or load generators were recorded in the window: " + "loss, " * 20 + "end"
    named = msgspec.structs.replace(
        full, objectives=[msgspec.structs.replace(full.objectives[0], name="fast", reason=reason)]
    )
    lines = shown(tables.render(msgspec.to_builtins(named))).splitlines()
    assert f"- fast: {reason}" in lines
    assert max(len(line) for line in lines if not line.startswith("- ")) <= 130


@pytest.mark.parametrize("width", [30, 60, 80, 100])
def test_a_narrow_terminal_folds_and_cuts_nothing(width: int) -> None:
    full = msgspec.to_builtins(sample_report())
    for what in (tables.render(full), comparison_tables.render(compare(sample_report(), sample_report()))):
        console = Console(width=width, force_terminal=True, color_system=None)
        with console.capture() as captured:
            console.print(what)
        assert max(map(len, captured.get().splitlines())) <= width
        assert "…" not in captured.get()
