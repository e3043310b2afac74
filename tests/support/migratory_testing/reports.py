"""SLA reports without Spark: of samples that a test makes, and of a recording in which a broker dies.

Packing, merging, storing and both passes are the product's own code. Only the Spark session is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import pyarrow as pa
from migratory_resources.objectives import DEFAULT_OBJECTIVES, Objective
from migratory_spark.document import SlaReport
from migratory_spark.read import sample_reader
from migratory_spark.read.samples import SampleSource
from migratory_spark.read.series_pack import SampleQuery, SeriesPack, pack_batches
from migratory_spark.read.series_store import SeriesStore, local_stores
from migratory_spark.report import build as spark_report
from migratory_spark.report.build import as_plain, build_report

from migratory_testing.recordings import SECONDS, START, recording

Sample = tuple[str, dict[str, str], int, float]
MAP = pa.map_(pa.string(), pa.string())
SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "sla-report.v1alpha2.json"
END = START + SECONDS
DEAD, SILENT = SECONDS // 2, SECONDS // 6
"""The second of the recording in which `b1` dies, and the one without a publication."""


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
    """Return the report that `build_report` makes of the batches that `found` returns, over [start, end) in wall-clock
    seconds."""
    return of_packs(lambda wanted: pack_batches(found(), wanted), start, end, objectives, **options)


def of_packs(
    pack: Callable[[SampleQuery], Iterable[SeriesPack]],
    start: float,
    end: float,
    objectives: Sequence[Objective] = (),
    **options: Any,
) -> SlaReport:
    """Return the report that `build_report` makes of the packs that `pack` returns for a query, over [start, end) in
    wall-clock seconds. Check that it is the same when samples are read in one step, and thinned in two."""

    def open_stores(
        _session: object, _source: object, wanted: SampleQuery, after_ms: Sequence[int], *_: object
    ) -> list[SeriesStore]:
        return local_stores(list(pack(wanted)), after_ms)

    def made(tasks: int | None) -> SlaReport:
        source = SampleSource(None, 10**7, tasks=tasks)  # type: ignore[arg-type]
        with (
            mock.patch.object(sample_reader, "open_stores", open_stores),
            mock.patch.object(spark_report, "_sample_source", return_value=source),
        ):
            return build_report(None, None, start, end, objectives, **options)  # type: ignore[arg-type]

    in_one_step, in_two = made(None), made(1)
    assert in_one_step == in_two
    return in_one_step


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
EVERY_KIND = [
    *DEFAULT_OBJECTIVES,
    objective(name="served", type="availability", target="99.9"),
    objective(name="serving", type="availability", target="99", slices={"length": "10s", "share": "99.5"}),
    objective(name="again", type="publish", threshold="5s", target="99"),
    objective(name="far", type="latency", threshold="1s", target="99", clock="any", window={"rolling": "7d"}),
    objective(
        name="steady", type="latency", target="99.5",
        slices={"length": "10s", "percentile": "99", "threshold": "250ms"},
    ),
]  # fmt: skip
"""Objectives of every kind, for tests of everything that is generated from objectives. Slices are short, so that a
run of a minute has some."""


def many_objectives(count: int) -> list[Objective]:
    """Return at least nine objectives: EVERY_KIND, and latency objectives with rising thresholds, of which every third
    counts slices."""
    made = list(EVERY_KIND)
    for number in range(1, count - len(made) + 1):
        name, within = f"team-{number}-answers-within-{4 * number}-ms", f"{4 * number}ms"
        slices = {"length": "10s", "percentile": "95", "threshold": within}
        told = {"slices": slices} if number % 3 == 0 else {"threshold": within}
        made.append(objective(name=name, type="latency", target="99.5", **told))
    return made


@cache
def sample_report(*, slower: float = 1.0, lost: int = 0, objectives: int | None = None) -> SlaReport:
    """Return the report of a recording in which `b1` dies, with one second without publications. Latencies are
    multiplied by `slower`: from 3 on, the objective `fast` is missed. With `lost` deliveries, the objective `complete`
    is missed. The objectives are the default ones, or with `objectives` that number of `many_objectives`."""

    def latency(second: int) -> float | None:
        if second == SILENT:
            return None
        return slower * (0.1 if second == DEAD else 0.004 + 0.0005 * (second % 10))

    samples = [*recording(lost=lost, latency=latency), *_scrapes_of_brokers()]
    judged = DEFAULT_OBJECTIVES if objectives is None else many_objectives(objectives)
    return of_batches(lambda: batches(samples), START, END, judged, by=("broker",) if objectives else ())


@cache
def empty_report() -> SlaReport:
    """Return a report without samples: its verdicts are insufficient data, and its numbers null."""
    return of_batches(lambda: batches([]), START, END, DEFAULT_OBJECTIVES)


def _scrapes_of_brokers() -> list[Sample]:
    """Return samples of the brokers' own metrics: after the death of `b1`, `b0` has the clients of both, and has
    taken four groups over."""
    found: list[Sample] = []
    for second in range(SECONDS + 1):
        for broker, alive, clients in (("b0", True, 25 if second <= DEAD else 50), ("b1", second <= DEAD, 25)):
            labels = {"cluster": "quotes", "job": "broker", "instance": broker, "broker": broker}
            takeovers = 4 if broker == "b0" and second > DEAD else 0
            if alive:
                at = 1000 * (START + second)
                found += [
                    ("migratory_clients", labels, at, float(clients)),
                    ("migratory_takeovers_total", labels, at, float(takeovers)),
                ]
    return found
