"""The SLA report: what happened in a window of time, per broker, around each incident, and whether it was as promised.

`sla_report` is the whole job. Its answer is plain data, ready for JSON; every key is described in docs/sla.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from migratory_resources.objectives import Objective
from pyspark.sql import DataFrame, SparkSession

from migratory_spark.distributions import summary
from migratory_spark.observations import Observations, Row, coverage, observe
from migratory_spark.samples import read_parquet
from migratory_spark.verdicts import LATENCY, judge, judged_latency, overall

SCHEMA = "migratory.dev/sla-report/v1alpha1"
WINDOW_SECONDS = 10.0


@dataclass(slots=True, frozen=True)
class Incident:
    """Something that happened to the cluster, in seconds of wall-clock time. `until` is when it was over: the last
    client resumed, the last publisher was served again."""

    kind: str
    broker: str
    at: float
    until: float


def sla_report(
    session: SparkSession,
    samples: Path | DataFrame,
    start: float,
    end: float,
    objectives: Sequence[Objective],
    incidents: Sequence[Incident] = (),
    window_seconds: float = WINDOW_SECONDS,
) -> dict[str, Any]:
    """Reads samples (a folder of Parquet files, or a table as `samples.with_series` gives it), judges [start, end).

    `start` and `end` are wall-clock seconds. Raises `samples.NoSamples` where nothing was recorded, ValueError for a
    window that is empty.
    """
    if end <= start:
        raise ValueError(f"the window ends at {end} before it starts at {start}")
    table = read_parquet(session, samples) if isinstance(samples, Path) else samples
    table = table.cache()
    start_ms, end_ms = round(start * 1000), round(end * 1000)
    moments = sorted({round(moment * 1000) for incident in incidents for moment in (incident.at, incident.until)})
    seen = observe(table, start_ms, end_ms, round(window_seconds * 1000), moments)
    covered = coverage(table, start_ms, end_ms)
    results = [judge(objective, seen, covered) for objective in objectives]
    return {
        "schema": SCHEMA,
        "window": {"start": _iso(start), "end": _iso(end), "seconds": round(end - start, 3)},
        "coverage": {
            "share": round(covered.share, 4),
            "scrape_interval_seconds": None if covered.scrapes == 0 else round(covered.interval, 3),
            "longest_gap_seconds": round(covered.longest_gap, 3),
            "scrapes": covered.scrapes,
        },
        "delivery": _delivery(seen),
        "latency_ms": _latency(seen, start, window_seconds),
        "replay_latency_ms": _milliseconds(seen, lambda row: row.clock == "same" and row.phase == "replayed"),
        "resume_seconds": _seconds(seen, "migratory_resume_seconds"),
        "publish_gap_seconds": _seconds(seen, "migratory_publish_gap_seconds"),
        "publish_ms": _summary(seen, "migratory_publish_seconds", 1000.0),
        "incidents": [_incident(seen, incident, moments) for incident in incidents],
        "objectives": [asdict(result) for result in results],
        "verdict": overall(results),
    }


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _delivery(seen: Observations) -> dict[str, Any]:
    """Counts; None for what nobody counted, which is not the same as none."""
    counts: dict[str, Any] = {
        name: round(seen.total(f"migratory_{name}_total")) if seen.has(f"migratory_{name}_total") else None
        for name in ("expected", "received", "lost", "duplicates", "reordered", "reconnects", "publish_errors")
    }
    counts["gaps"] = {
        receipt: round(seen.total("migratory_gaps_total", lambda row, receipt=receipt: row.receipt == receipt))  # type: ignore[misc]
        if seen.has("migratory_gaps_total")
        else None
        for receipt in ("truncated", "reset")
    }
    return counts


def _summary(seen: Observations, histogram: str, scale: float, where: Any = None) -> dict[str, float | None]:
    distribution = seen.distribution(histogram, where) if where else seen.distribution(histogram)
    return summary(distribution, seen.bounds(histogram), scale)


def _milliseconds(seen: Observations, where: Any) -> dict[str, float | None]:
    return _summary(seen, LATENCY, 1000.0, where)


def _seconds(seen: Observations, histogram: str) -> dict[str, float | None]:
    return _summary(seen, histogram, 1.0)


def _latency(seen: Observations, start: float, window_seconds: float) -> dict[str, Any]:
    brokers = seen.brokers(LATENCY)
    by_window = []
    for window in seen.windows:
        for broker in brokers:

            def inside(row: Row, window: int = window, broker: str = broker) -> bool:
                return judged_latency(row) and row.window == window and row.broker == broker

            if (found := _milliseconds(seen, inside))["count"]:
                by_window.append({"start": _iso(start + window * window_seconds), "broker": broker, **found})
    return {
        "all": _milliseconds(seen, judged_latency),
        "by_broker": {
            broker: _milliseconds(seen, lambda row, broker=broker: judged_latency(row) and row.broker == broker)
            for broker in brokers
        },
        "by_window": by_window,
        "window_seconds": window_seconds,
    }


def _incident(seen: Observations, incident: Incident, moments: list[int]) -> dict[str, Any]:
    """Latency before the incident, while it lasted, and after it: the paper's table around a failure."""
    first = moments.index(round(incident.at * 1000)) + 1
    last = moments.index(round(incident.until * 1000)) + 1
    return {
        "kind": incident.kind,
        "broker": incident.broker,
        "at": _iso(incident.at),
        "until": _iso(incident.until),
        "latency_ms": {
            "before": _milliseconds(seen, lambda row: judged_latency(row) and row.segment < first),
            "during": _milliseconds(seen, lambda row: judged_latency(row) and first <= row.segment < last),
            "after": _milliseconds(seen, lambda row: judged_latency(row) and row.segment >= last),
        },
        "resume_seconds": _summary(seen, "migratory_resume_seconds", 1.0, lambda row: row.segment >= first),
        "publish_gap_seconds": _summary(seen, "migratory_publish_gap_seconds", 1.0, lambda row: row.segment >= first),
    }
