"""The JSON Schemas of reports and comparisons, made from their types by `python -m migratory_spark.report FOLDER`.

What is published is docs/schemas/; a test compares. A reader should take keys that it does not know for additions, as
the schema does; a changed or removed key is another version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from migratory_spark.document import SCHEMA as REPORT
from migratory_spark.document import Report
from migratory_spark.report.comparison import SCHEMA as COMPARISON
from migratory_spark.report.comparison import Comparison

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """File name to schema."""
    return {
        "sla-report.v1alpha2.json": _schema(Report, REPORT, "SLA report"),
        "sla-comparison.v1alpha2.json": _schema(Comparison, COMPARISON, "Comparison of two SLA reports"),
    }


def text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1) + "\n"


def _schema(kind: type[msgspec.Struct], name: str, title: str) -> dict[str, Any]:
    found = msgspec.json.schema(kind)
    definition = found["$defs"][kind.__name__]
    # What it says about itself is one word, always there.
    definition["properties"]["schema"] = {"const": name}
    definition["required"] = ["schema", *(each for each in definition["required"] if each != "schema")]
    return {"$schema": DIALECT, "$id": f"https://{name}.json", "title": title, **found}


if __name__ == "__main__":
    for file, schema in schemas().items():
        Path(sys.argv[1], file).write_text(text(schema))
