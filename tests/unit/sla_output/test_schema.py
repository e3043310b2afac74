"""The published schemas: generated from the types, up to date, and valid for real reports and comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from migratory_spark.report.__main__ import schemas, text
from migratory_spark.report.budget import KeptResult, rolling_budgets
from migratory_spark.report.comparison import compare
from migratory_testing.reports import empty_report, sample_report

PUBLISHED = Path(__file__).parents[3] / "docs" / "schemas"
REPORT, COMPARISON, BUDGETS = "sla-report.v1alpha2.json", "sla-comparison.v1alpha2.json", "sla-budget.v1alpha1.json"


def published(name: str, *, strict: bool = False) -> jsonschema.Draft202012Validator:
    """Return a validator for a published schema. With `strict` it refuses keys that the schema does not name, which
    shows whether the schema names all keys of a report."""
    schema = json.loads((PUBLISHED / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    if strict:
        for definition in schema["$defs"].values():
            definition["additionalProperties"] = False
    return jsonschema.Draft202012Validator(schema)


def plain(thing: Any) -> Any:
    return json.loads(msgspec.json.encode(thing))


@pytest.mark.parametrize("name", [REPORT, COMPARISON, BUDGETS])
def test_published_schemas_match_the_types(name: str) -> None:
    assert (PUBLISHED / name).read_text() == text(schemas()[name]), (
        f"docs/schemas/{name} is not up to date: python -m migratory_spark.report docs/schemas"
    )


@pytest.mark.parametrize("report", [sample_report(), sample_report(lost=5), empty_report()])
def test_reports_are_valid_and_have_only_published_keys(report: Any) -> None:
    published(REPORT, strict=True).validate(plain(report))


def test_comparisons_are_valid() -> None:
    for first, second in ((sample_report(), sample_report(lost=5)), (empty_report(), sample_report())):
        published(COMPARISON, strict=True).validate(plain(compare(first, second)))


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        (("schema",), "migratory.dev/sla-report/v1"),
        (("verdict",), "passed"),
        (("objectives", 0, "target"), 99.9),
        (("latency_ms", "all", "count"), None),
        (("window", "seconds"), "1200"),
        (("incidents", 0, "latency_ms"), {}),
    ],
)
def test_invalid_reports_are_rejected(where: tuple[str | int, ...], wrong: object) -> None:
    report = plain(sample_report())
    inner = report
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = wrong
    paths = [tuple(error.absolute_path) for error in published(REPORT).iter_errors(report)]
    assert paths
    assert all(path[: len(where)] == where for path in paths)


def test_a_report_with_a_missing_key_is_rejected() -> None:
    schema, whole = published(REPORT), plain(empty_report())
    schema.validate(whole)
    optional = {"breakdown"}  # earlier reports of this version lack it
    for key in whole:
        assert schema.is_valid({name: value for name, value in whole.items() if name != key}) == (key in optional), key


def test_additional_keys_are_allowed() -> None:
    published(REPORT).validate(plain(sample_report()) | {"weather": "fine"})


def test_budgets_are_valid_and_have_only_published_keys() -> None:
    result = KeptResult("quotes", "fast", ("latency", "99", 250.0, None), 0, 1000, 9, 9, 0, 0, 1.0, False)
    published(BUDGETS, strict=True).validate(plain(rolling_budgets([result], 1000, 1000)))
