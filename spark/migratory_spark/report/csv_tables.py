"""The tables of a report as CSV: one file for each, with a header, for spreadsheets and scripts.

A nested figure is a column with both names, such as `latency_ms_p99`. What is unknown is empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from migratory_spark.document import BreakdownRow, SlaReport


def csv_files(report: SlaReport) -> dict[str, str]:
    """Return the content of each file by its name: objectives, windows, latency and incidents, and the breakdown if the
    report has one. Tables without rows are empty files."""
    tables: dict[str, Iterable[dict[str, Any]]] = {
        "objectives": map(_row, report.objectives),
        "windows": map(_row, report.windows),
        "latency": map(_row, [*report.latency_ms.over_time, *report.latency_ms.by_window]),
        "incidents": map(_row, report.incidents),
    }
    if report.breakdown is not None:
        by = report.breakdown.by
        tables["breakdown"] = (_breakdown_row(by, row) for row in report.breakdown.rows)
    return {f"{name}.csv": _to_text(list(rows)) for name, rows in tables.items()}


def _to_text(rows: list[dict[str, Any]]) -> str:
    """Return the rows as CSV with a header, in which a column stands where it occurs first; "" without rows."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue() if rows else ""


def _row(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct and of the structs inside it by column, without lists. A field inside another has
    both names, joined by an underscore."""
    return dict(_fields("", msgspec.to_builtins(struct)))


def _fields(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield column and value of each field that is no list, also of nested ones. Columns begin with `prefix`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _fields(f"{prefix}{name}_", value)
        elif not isinstance(value, list | tuple):
            yield f"{prefix}{name}", value


def _breakdown_row(by: list[str], row: BreakdownRow) -> dict[str, Any]:
    """Return a row of the breakdown by column: a column `label_…` for each label, the figures, and the figures of each
    objective with its name in front."""
    columns = {f"label_{label}": value for label, value in zip(by, row.labels, strict=True)} | _row(row)
    for objective in row.objectives:
        columns |= {f"{objective.name}_{name}": value for name, value in _row(objective).items() if name != "name"}
    return columns
