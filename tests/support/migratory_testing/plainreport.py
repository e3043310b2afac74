"""Whole SLA reports without Spark, for tests of what a report contains.

Packing, merging, keeping and both passes are the product's own code. Only the Spark session is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import pyarrow as pa
from migratory_resources.objectives import Objective
from migratory_spark.document import SlaReport
from migratory_spark.read.merge import merge_packs
from migratory_spark.read.series_pack import SampleQuery, pack_batches
from migratory_spark.read.series_store import LocalSeriesStore, SeriesStore
from migratory_spark.report import build as spark_report
from migratory_spark.report.build import as_plain, build_report

Sample = tuple[str, dict[str, str], int, float]
MAP = pa.map_(pa.string(), pa.string())
SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "sla-report.v1alpha2.json"


def batches(samples: Sequence[Sample], sources: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the samples as one record batch with the recorder's columns. `sources` become the column `source`."""
    metrics, labels, moments, values = zip(*samples, strict=True) if samples else ((), (), (), ())
    columns = [
        pa.array(metrics, pa.string()),
        pa.array([list(each.items()) for each in labels], MAP),
        pa.array(moments, pa.int64()),
        pa.array(values, pa.float64()),
    ]
    names = ["metric", "labels", "timestamp", "value"]
    if sources is not None:
        columns, names = [*columns, pa.array(sources, pa.string())], [*names, "source"]
    yield pa.record_batch(columns, names=names)


def of_batches(
    found: Callable[[], Iterable[pa.RecordBatch]],
    start: float,
    end: float,
    objectives: Sequence[Objective] = (),
    **options: Any,
) -> SlaReport:
    """Return the report that `build_report` makes of the batches that `found` returns."""

    def open_store(_session: object, _source: object, wanted: SampleQuery, _few: int) -> SeriesStore:
        return LocalSeriesStore(merge_packs(list(pack_batches(found(), wanted))))

    with mock.patch.object(spark_report, "open_store", open_store), mock.patch.object(spark_report, "_sample_source"):
        return build_report(None, None, start, end, objectives, **options)  # type: ignore[arg-type]


def plain_report(
    samples: Sequence[Sample],
    start: float,
    end: float,
    objectives: Sequence[Objective] = (),
    sources: Sequence[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the report of the samples as its JSON has it, after a check that the published schema allows it."""
    report = as_plain(of_batches(lambda: batches(samples, sources), start, end, objectives, **options))
    schema = json.loads(SCHEMA.read_text())
    for definition in schema["$defs"].values():
        definition["additionalProperties"] = False
    jsonschema.Draft202012Validator(schema).validate(report)
    return report


def objective(**told: Any) -> Objective:
    return Objective.model_validate({"name": "o", **told})


FAST = objective(type="latency", threshold="250ms", target="99")
COMPLETE = objective(name="complete", type="delivery", target="100")
