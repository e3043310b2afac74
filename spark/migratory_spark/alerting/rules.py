"""The rule file of objectives: error ratios over several windows, what is left of the budget, burn-rate alerts.

Burn rate 1 spends the error budget exactly in the objective's period, which is 30 days here. An alert needs the rate
in a long window, so that it is worth somebody's time, and in a short one, so that it ends soon after the fault; and as
many events as can show the target at all, so that one bad event at night wakes nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import yaml
from migratory_resources.objectives import Objective

from migratory_spark.alerting.health import health_alerts, operator_alerts, runbook
from migratory_spark.alerting.indicators import JUDGED, duration, indicator, slice_measure

Rule = dict[str, Any]

PERIOD = "30d"
RATIO, EVENTS, BURN = "migratory_slo:bad_ratio", "migratory_slo:events", "migratory_slo:burn_rate"
BAD = "migratory_slo:bad_events"
TARGET, BUDGET = "migratory_slo:target", "migratory_slo:budget_left"


class Burn(NamedTuple):
    """Page or ticket when `long` and `short` both burn faster than `rate`."""

    rate: float
    long: str
    short: str
    severity: str
    spends: str


BURNS = (
    Burn(14.4, "1h", "5m", "page", "2% of a month's budget in an hour"),
    Burn(6, "6h", "30m", "page", "5% of a month's budget in six hours"),
    Burn(3, "1d", "2h", "ticket", "10% of a month's budget in a day"),
    Burn(1, "3d", "6h", "ticket", "10% of a month's budget in three days"),
)
WINDOWS = tuple(dict.fromkeys(window for burn in BURNS for window in (burn.short, burn.long)))
QUANTILES = (("50", "0.5"), ("90", "0.9"), ("95", "0.95"), ("99", "0.99"))


def rule_file(objectives: Sequence[Objective]) -> str:
    """YAML for Prometheus' `rule_files`.

    :raises ValueError: for two objectives of one name.
    """
    return _written(rules_of(objectives))


def rule_resource(objectives: Sequence[Objective], name: str) -> str:
    """The same as a PrometheusRule, for the Prometheus operator."""
    head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": name}}
    return _written({**head, "spec": rules_of(objectives)})


def rules_of(objectives: Sequence[Objective]) -> dict[str, Any]:
    """:raises ValueError: for two objectives of one name."""
    names = [objective.name for objective in objectives]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two objectives are named {', '.join(sorted(twice))}: rules tell them apart by name")
    groups: list[dict[str, Any]] = [{"name": "migratory-latency", "rules": _percentiles()}]
    for objective in objectives:
        groups.append({"name": f"migratory-objective-{objective.name}", "rules": objective_rules(objective)})
    groups.append({"name": "migratory-health", "rules": health_alerts()})
    groups.append({"name": "migratory-operator", "rules": operator_alerts()})
    return {"groups": groups}


def _written(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, width=1000)


def objective_rules(objective: Objective) -> list[Rule]:
    labels = {"objective": objective.name}
    target = objective.target / Decimal(100)
    rules = _slices(objective) if objective.slices is not None else _events(objective)
    rules.append({"record": TARGET, "expr": f"vector({_plain(target)})", "labels": labels})
    here = f'{{objective="{objective.name}"}}'
    if target == 1:
        rules.append(_nothing_allowed(objective, here))
    else:
        allowed = _plain(1 - target)
        for window in WINDOWS:
            expr = f"{RATIO}_{window}{here} / {allowed}"
            rules.append({"record": f"{BURN}_{window}", "expr": expr, "labels": labels})
        rules.append({"record": BUDGET, "expr": _budget_left(here, allowed), "labels": labels})
        rules += [_burning(objective, here, burn, target) for burn in BURNS]
    found = indicator(objective)
    if found is not None and found.measured is not None:
        rules.append(_unmeasured(objective, found.total("1h"), found.measured("1h")))
    return rules


def _percentiles() -> list[Rule]:
    name = "migratory_delivery_latency_seconds"
    rules = []
    for suffix, share in QUANTILES:
        for by in ("cluster", "cluster, broker"):
            level = "cluster" if by == "cluster" else "broker"
            buckets = f"sum by ({by}, le) (rate({name}_bucket{{{JUDGED}}}[5m]))"
            moving = f"sum by ({by}) (rate({name}_count{{{JUDGED}}}[5m])) > 0"
            rules.append(
                {
                    "record": f"{level}:{name}:p{suffix}_5m",
                    # Without deliveries the quantile is NaN, which would look like a value to whoever adds up.
                    "expr": f"histogram_quantile({share}, {buckets}) and {moving}",
                }
            )
    return rules


def _events(objective: Objective) -> list[Rule]:
    found = indicator(objective)
    assert found is not None
    labels = {"objective": objective.name}
    rules: list[Rule] = []
    for window in WINDOWS:
        bad, total = found.bad(window), found.total(window)
        # A window without events has no ratio, rather than NaN.
        rules.append({"record": f"{RATIO}_{window}", "expr": f"({bad}) / ({total} > 0)", "labels": labels})
        rules.append({"record": f"{EVENTS}_{window}", "expr": f"({total}) * {_seconds(window)}", "labels": labels})
    rules.append({"record": f"{BAD}_5m", "expr": f"({found.bad('5m')}) * 300", "labels": labels})
    return rules


def _slices(objective: Objective) -> list[Rule]:
    assert objective.slices is not None
    labels, measure = {"objective": objective.name}, slice_measure(objective)
    here = f'{measure.record}{{objective="{objective.name}"}} {measure.bad}'
    step = duration(objective.slices.length)
    rules: list[Rule] = [{"record": measure.record, "expr": measure.expression, "labels": labels}]
    for window in WINDOWS:
        over = f"({here})[{window}:{step}]"
        rules.append({"record": f"{RATIO}_{window}", "expr": f"avg_over_time({over})", "labels": labels})
        rules.append({"record": f"{EVENTS}_{window}", "expr": f"count_over_time({over})", "labels": labels})
    rules.append({"record": f"{BAD}_5m", "expr": f"sum_over_time(({here})[5m:{step}])", "labels": labels})
    return rules


def _budget_left(here: str, allowed: str) -> str:
    """Weighted by events: a quiet night's bad minute spends little. From what was recorded already, for thirty days of
    raw samples are too many to read at each evaluation."""
    bad, total = f"sum_over_time({BAD}_5m{here}[{PERIOD}])", f"sum_over_time({EVENTS}_5m{here}[{PERIOD}])"
    return f"1 - {bad} / ({total} > 0) / {allowed}"


def _burning(objective: Objective, here: str, burn: Burn, target: Decimal) -> Rule:
    needed = math.ceil(1 / (1 - target))
    return {
        "alert": "MigratoryBudgetBurns",
        "expr": (
            f"{BURN}_{burn.long}{here} > {burn.rate:g} and {BURN}_{burn.short}{here} > {burn.rate:g}"
            f" and {EVENTS}_{burn.long}{here} >= {needed}"
        ),
        "labels": {"severity": burn.severity, "objective": objective.name, "window": burn.long},
        "annotations": {
            "summary": f"{{{{ $labels.cluster }}}}: objective {objective.name} loses {burn.spends}",
            "description": (
                f"Objective {objective.name} ({_said(objective)}) burns its error budget {{{{ $value | humanize }}}} "
                f"times as fast as its {PERIOD} allow, over {burn.long} and over {burn.short}."
            ),
            "runbook_url": runbook("MigratoryBudgetBurns"),
        },
    }


def _nothing_allowed(objective: Objective, here: str) -> Rule:
    """From the bad events themselves: losses are verified at a run's end, when nothing is expected any more."""
    found = indicator(objective)
    return {
        "alert": "MigratoryPromiseBroken",
        "expr": f"({found.bad('5m')}) > 0" if found is not None else f"{RATIO}_5m{here} > 0",
        "labels": {"severity": "page", "objective": objective.name},
        "annotations": {
            "summary": f"{{{{ $labels.cluster }}}}: objective {objective.name} allows nothing bad, and something was",
            "description": f"Within the last five minutes this was broken: {_said(objective)}.",
            "runbook_url": runbook("MigratoryPromiseBroken"),
        },
    }


def _unmeasured(objective: Objective, total: str, measured: str) -> Rule:
    """Without it an objective whose threshold no histogram has as a bound would be silent for ever."""
    return {
        "alert": "MigratoryObjectiveNotMeasured",
        "expr": f"({total} > 0) unless on (cluster) ({measured})",
        "for": "15m",
        "labels": {"severity": "ticket", "objective": objective.name},
        "annotations": {
            "summary": f"{{{{ $labels.cluster }}}}: nobody measures objective {objective.name}",
            "description": (
                f"The threshold of {objective.name} ({_said(objective)}) is no bound of the exported histogram, so "
                "nothing can be said about it. Name it to who exports (`migratory bench --threshold SECONDS`)."
            ),
            "runbook_url": runbook("MigratoryObjectiveNotMeasured"),
        },
    }


def _said(objective: Objective) -> str:
    slices = objective.slices
    if slices is not None:
        what = f"slices of {duration(slices.length)} with "
        if slices.threshold is not None:
            what += f"P{slices.percentile} within {duration(slices.threshold)}"
        else:
            what += f"{slices.share}% acknowledged"
    elif objective.threshold is not None:
        what = f"within {duration(objective.threshold)}"
    else:
        what = "delivered once and in order" if objective.type == "delivery" else "acknowledged"
    return f"{objective.type}: {objective.target}% {what}"


def _plain(value: Decimal) -> str:
    return format(value.normalize(), "f")


def _seconds(window: str) -> int:
    return int(window[:-1]) * {"m": 60, "h": 3600, "d": 86_400}[window[-1]]


class _Plain(yaml.SafeDumper):
    """No anchors: Prometheus reads them, people do not."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
