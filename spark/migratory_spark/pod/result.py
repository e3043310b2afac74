"""What a pod answers: a short account for the resource's status, and report and page, compressed, within bounds.

A ConfigMap holds 1 MiB. Report and page are written with all that they have, or, where that is too much, the report
without its longest lists, and no page; the account says so. Pure.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from decimal import ROUND_DOWN, Decimal
from typing import Any

import msgspec

from migratory_spark.document import Incident, Latency, Report, Result, Summary

ACCOUNT = "account.json"
REPORT = "report.json.gz"
PAGE = "report.html.gz"
BOUND = 900 * 1024
"""Bytes of report and page together as base64, in which ConfigMaps travel. The account and what belongs to the object
itself have the rest."""

_BROKERS = 100
_GAPS = 20
_NOTES = 10
_LONGEST = 1000


def answer(run: str, report: Report, page: Callable[[Report], str], bound: int = BOUND) -> dict[str, Any]:
    """`data` and `binaryData` of the ConfigMap."""
    account = _account(run, report)
    whole, html = _packed(_json(report)), _packed(page(report).encode())
    kept, short = {REPORT: whole, PAGE: html}, ""
    if len(whole) + len(html) > bound:
        kept, short = {REPORT: whole}, "the page was too large to be kept"
    if len(whole) > bound:
        kept = {REPORT: _packed(_json(_shortened(report)))}
        short = "the report was too large to be kept: it is without its lists over time, and there is no page"
    if sum(map(len, kept.values())) > bound:
        kept, short = {}, "report and page were too large to be kept: this account is all"
    if short:
        account["notes"] = [*account["notes"][: _NOTES - 1], short]
    account["files"] = sorted(kept)
    return {"data": {ACCOUNT: json.dumps(account, allow_nan=False)}, "binaryData": kept}


def failure(run: str, reason: str, message: str) -> dict[str, Any]:
    """:param reason: one word."""
    account = {"run": run, "failure": {"reason": reason, "message": message[:_LONGEST]}}
    return {"data": {ACCOUNT: json.dumps(account)}}


def _account(run: str, report: Report) -> dict[str, Any]:
    """Numbers are text where they may have a fraction: the API knows no decimals."""
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
        "delivery": _there(
            expected=delivery.expected,
            received=delivery.received,
            lost=delivery.lost,
            duplicates=delivery.duplicates,
            reordered=delivery.reordered,
            reconnects=delivery.reconnects,
        ),
        "objectives": [_objective(one) for one in report.objectives],
        "latency": _latency(report.latency_ms),
        "gaps": [_gap(one) for one in report.incidents[:_GAPS]],
        "notes": [note[:_LONGEST] for note in report.notes[:_NOTES]],
    }


def _objective(result: Result) -> dict[str, Any]:
    return _there(
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
        reason=result.reason[:_LONGEST] or None,
    )


def _latency(latency: Latency) -> list[dict[str, Any]]:
    """Of all brokers together first (an empty name)."""
    named: Sequence[tuple[str, Summary]] = [("", latency.all), *sorted(latency.by_broker.items())[: _BROKERS - 1]]
    return [
        _there(
            broker=broker,
            count=one.count,
            median=_milliseconds(one.median),
            p90=_milliseconds(one.p90),
            p95=_milliseconds(one.p95),
            p99=_milliseconds(one.p99),
            max=_milliseconds(one.max),
        )
        for broker, one in named
    ]


def _gap(incident: Incident) -> dict[str, Any]:
    return _there(
        kind=incident.kind,
        broker=incident.broker or None,
        at=incident.at,
        until=incident.until,
        clients=incident.affected.clients,
        longestResume=_seconds(incident.resume_seconds.max),
        longestPublishGap=_seconds(incident.publish_gap_seconds.max),
    )


def _shortened(report: Report) -> Report:
    latency = msgspec.structs.replace(
        report.latency_ms,
        by_window=[],
        heat=msgspec.structs.replace(report.latency_ms.heat, starts=[], bounds_ms=[], counts=[]),
    )
    results = [msgspec.structs.replace(one, budget_over_time=[]) for one in report.objectives]
    return msgspec.structs.replace(
        report, latency_ms=latency, objectives=results, windows=[], connections=[], incidents=report.incidents[:_GAPS]
    )


def _json(report: Report) -> bytes:
    return msgspec.json.encode(report)


def _packed(data: bytes) -> str:
    # no time in it: the same report is the same bytes
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _there(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _percent(share: float) -> str:
    """Rounded down: 99.99999% of a target of 100% must not read as 100."""
    return format((Decimal(repr(share)) * 100).quantize(Decimal("0.0001"), ROUND_DOWN).normalize(), "f")


def _decimal(number: float) -> str:
    return format(Decimal(repr(number)).quantize(Decimal("0.0001")).normalize(), "f")


def _milliseconds(number: float | None) -> str | None:
    return None if number is None else f"{number:.3g}ms" if number < 100 else f"{number:.0f}ms"


def _seconds(number: float | None) -> str | None:
    return None if number is None else f"{number:.3g}s"
