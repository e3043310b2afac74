"""`python -m migratory_spark.report FOLDER` writes the JSON Schemas of reports, comparisons and rolling budgets, made
from their types.

The published schemas are in docs/schemas/; a test compares them. The schemas allow additional keys, and readers must
ignore keys that they do not know. A changed or removed key needs another version.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from migratory_spark.document import SCHEMA as REPORT
from migratory_spark.document import SlaReport
from migratory_spark.report.budget import SCHEMA as BUDGETS
from migratory_spark.report.budget import RollingBudgets
from migratory_spark.report.comparison import SCHEMA as COMPARISON
from migratory_spark.report.comparison import Comparison

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of reports, comparisons and rolling budgets, by the name of the file in which each is
    published."""
    return {
        "sla-report.v1alpha2.json": _schema(SlaReport, REPORT, "SLA report"),
        "sla-comparison.v1alpha2.json": _schema(Comparison, COMPARISON, "Comparison of two SLA reports"),
        "sla-budget.v1alpha1.json": _schema(RollingBudgets, BUDGETS, "Rolling error budgets of kept SLA reports"),
    }


def text(schema: dict[str, Any]) -> str:
    """Return a schema as the text that is written to its file."""
    return json.dumps(schema, indent=1) + "\n"


def _schema(kind: type[msgspec.Struct], name: str, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a type, whose key `schema` must have the value `name`. The docstrings of the types are
    its descriptions."""
    content = msgspec.json.schema(kind)
    definition = content["$defs"][kind.__name__]
    # The key `schema` is a required constant.
    definition["properties"]["schema"] = {"const": name}
    definition["required"] = ["schema", *(name_ for name_ in definition["required"] if name_ != "schema")]
    for described in content["$defs"].values():
        if "description" in described:  # docstrings are indented before Python 3.13 and msgspec 0.23
            described["description"] = inspect.cleandoc(described["description"])
    return {"$schema": DIALECT, "$id": f"https://{name}.json", "title": title, **content}


if __name__ == "__main__":
    for file, schema in schemas().items():
        Path(sys.argv[1], file).write_text(text(schema))
