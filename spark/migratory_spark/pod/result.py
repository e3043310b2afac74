"""Builds the content of a result's ConfigMap: the account, which is a summary for the resource's status, and the
compressed report and report page. Pure.

A ConfigMap holds 1 MiB. If report and page are too large, the page is left out, then the report's longest lists, then
the report. A note in the account says so.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Sequence
from decimal import ROUND_DOWN, Decimal
from typing import Any

import msgspec

from migratory_spark.document import DistributionSummary, Incident, LatencySection, ObjectiveResult, SlaReport

ACCOUNT = "account.json"
REPORT = "report.json.gz"
PAGE = "report.html.gz"
MAX_BYTES = 900 * 1024
"""Bytes of report and page together, in base64 as in the ConfigMap. The account and the object's metadata need the
rest."""

_MAX_BROKERS = 100
_MAX_INCIDENTS = 20
_MAX_NOTES = 10
_MAX_TEXT = 1000

NO_SAMPLES = "Prometheus has no usable samples of the cluster in the window; the log of the driver's pod says more"
_CAUSES = (
    "cannot be reached",
    "TLS failed",
    "did not answer",
    "redirects",
    "refuses access",
    "has no such interface",
    "refuses",
    "the response",
    "Java does not start",
)
"""Phrases of the errors of reading, one of which a status may have; the more specific one comes first."""


def success(
    run: str, report: SlaReport, page: Callable[[SlaReport], str], max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """Return the fields `data` and `binaryData` of the ConfigMap for a report that was made.

    :param run: the id of the report's run.
    :param page: makes the report page (HTML).
    :param max_bytes: the most bytes that report and page may have together, compressed and in base64.
    """
    account = _account(run, report)
    report_data, page_data = _compress(_json(report)), _compress(page(report).encode())
    files, note = {REPORT: report_data, PAGE: page_data}, ""
    if len(report_data) + len(page_data) > max_bytes:
        files, note = {REPORT: report_data}, "the page was too large to be stored"
    if len(report_data) > max_bytes:
        files = {REPORT: _compress(_json(_shorten(report)))}
        note = "the report was too large to be stored: its lists over time and the page are left out"
    if sum(map(len, files.values())) > max_bytes:
        files, note = {}, "report and page were too large to be stored: only this account is left"
    if note:
        account["notes"] = [*account["notes"][: _MAX_NOTES - 1], note]
    account["files"] = sorted(files)
    return {"data": {ACCOUNT: json.dumps(account, allow_nan=False)}, "binaryData": files}


def failure(run: str, reason: str, message: str) -> dict[str, Any]:
    """Return the field `data` of the ConfigMap for a report that failed. A message of more than 1000 characters is cut
    off.

    :param run: the id of the report's run.
    :param reason: one word for a condition, such as `InvalidInput`.
    :param message: a sentence for the resource's status.
    """
    account = {"run": run, "failure": {"reason": reason, "message": message[:_MAX_TEXT]}}
    return {"data": {ACCOUNT: json.dumps(account)}}


def unreadable_message(message: str) -> str:
    """Return a fixed sentence for the status in place of `message`, an error of reading that may quote what a server
    sent. It has the kind of the error and the HTTP status code, as far as the message has them."""
    code = re.search(r"\bHTTP ([1-5][0-9]{2})\b", message)
    facts = [cause for cause in _CAUSES if cause in message][:1] + ([code[0]] if code else [])
    known = f" ({', '.join(facts)})" if facts else ""
    return f"the samples could not be read{known}; the log of the driver's pod says more"


def _account(run: str, report: SlaReport) -> dict[str, Any]:
    """Return the account, a summary of the report for the resource's status, with its first incidents and notes.
    Numbers that may have a fraction are text, because the Kubernetes API has no decimals."""
    delivery = report.delivery
    return {
        "run": run,
        "verdict": report.verdict,
        "window": {"start": report.window.start, "end": report.window.end},
        "coverage": {
            "share": _percent(report.coverage.share),
            "scrapes": report.coverage.scrapes,
            "longestGap": f"{report.coverage.longest_gap_seconds:g}s",
        },
        "delivery": _without_none(
            expected=delivery.expected,
            received=delivery.received,
            lost=delivery.lost,
            duplicates=delivery.duplicates,
            reordered=delivery.reordered,
            reconnects=delivery.reconnects,
        ),
        "objectives": [_objective(each) for each in report.objectives],
        "latency": _latency(report.latency_ms),
        "gaps": [_incident(each) for each in report.incidents[:_MAX_INCIDENTS]],
        "notes": [note[:_MAX_TEXT] for note in report.notes[:_MAX_NOTES]],
    }


def _objective(result: ObjectiveResult) -> dict[str, Any]:
    """Return the summary of an objective's result, without figures that are unknown. The reason is cut off after 1000
    characters."""
    return _without_none(
        name=result.name,
        type=result.type,
        target=result.target,
        verdict=result.verdict,
        good=result.good,
        total=result.total,
        compliance=None if result.compliance is None else _percent(result.compliance),
        budgetLeft=None if result.budget_left is None else _decimal(result.budget_left),
        burn=[
            {"window": f"{burn.window_seconds:g}s", "rate": _decimal(burn.rate)}
            for burn in result.burn
            if burn.rate is not None
        ],
        reason=result.reason[:_MAX_TEXT] or None,
    )


def _latency(latency: LatencySection) -> list[dict[str, Any]]:
    """Return latencies by broker, at most 100 entries in the order of the brokers' names. The first is that of all
    brokers together, with an empty name."""
    named: Sequence[tuple[str, DistributionSummary]] = [
        ("", latency.all),
        *sorted(latency.by_broker.items())[: _MAX_BROKERS - 1],
    ]
    return [
        _without_none(
            broker=broker,
            count=each.count,
            median=_milliseconds(each.median),
            p90=_milliseconds(each.p90),
            p95=_milliseconds(each.p95),
            p99=_milliseconds(each.p99),
            max=_milliseconds(each.max),
        )
        for broker, each in named
    ]


def _incident(incident: Incident) -> dict[str, Any]:
    """Return the summary of an incident, without figures that are unknown."""
    return _without_none(
        kind=incident.kind,
        broker=incident.broker or None,
        at=incident.at,
        until=incident.until,
        clients=incident.affected.clients,
        longestResume=_seconds(incident.resume_seconds.max),
        longestPublishGap=_seconds(incident.publish_gap_seconds.max),
    )


def _shorten(report: SlaReport) -> SlaReport:
    """Return the report without its longest lists: latency by row and broker, heat map, rows, connections, budgets over
    time, and all but the first incidents."""
    latency = msgspec.structs.replace(
        report.latency_ms,
        by_window=[],
        heat=msgspec.structs.replace(report.latency_ms.heat, starts=[], bounds_ms=[], counts=[]),
    )
    results = [msgspec.structs.replace(each, budget_over_time=[]) for each in report.objectives]
    return msgspec.structs.replace(
        report,
        latency_ms=latency,
        objectives=results,
        windows=[],
        connections=[],
        incidents=report.incidents[:_MAX_INCIDENTS],
    )


def _json(report: SlaReport) -> bytes:
    return msgspec.json.encode(report)


def _compress(data: bytes) -> str:
    # Without a time stamp, so that the same report is the same bytes.
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _percent(share: float) -> str:
    """Return a share (0 to 1) as a percentage with at most four decimals, rounded down: 99.99999% must not read as
    100."""
    return format((Decimal(repr(share)) * 100).quantize(Decimal("0.0001"), ROUND_DOWN).normalize(), "f")


def _decimal(number: float) -> str:
    """Return a number as text with at most four decimals."""
    return format(Decimal(repr(number)).quantize(Decimal("0.0001")).normalize(), "f")


def _milliseconds(number: float | None) -> str | None:
    """Return milliseconds as text with three digits, or all digits before the point from 100 on; None for None."""
    return None if number is None else f"{number:.3g}ms" if number < 100 else f"{number:.0f}ms"


def _seconds(number: float | None) -> str | None:
    """Return seconds as text with three digits; None for None."""
    return None if number is None else f"{number:.3g}s"
