"""Prometheus rules made from objectives: error ratios over several windows, the error budget left, burn-rate alerts.

Burn rate 1 spends the error budget exactly in the objective's period, which is 30 days here, whatever the objective's
window is. An alert requires the rate in a long window, so that the fault matters, and in a short one, so that the alert
ends soon after the fault. It also requires enough events to prove the target, so that one bad event at night does not
page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import yaml
from migratory_resources.objectives import Objective

from migratory_spark.alerting.health import health_alerts, operator_alerts, runbook
from migratory_spark.alerting.indicators import JUDGED, duration, indicator, seconds, slice_measure

Rule = dict[str, Any]

PERIOD = "30d"
RATIO, EVENTS, BURN = "migratory_slo:bad_ratio", "migratory_slo:events", "migratory_slo:burn_rate"
BAD = "migratory_slo:bad_events"
TARGET, BUDGET = "migratory_slo:target", "migratory_slo:budget_left"


class BurnAlert(NamedTuple):
    """The parameters of a burn-rate alert: it fires if the burn rate is above `rate` in both windows, `long` and
    `short`, and `long` has enough events. `severity` is `page` or `ticket`. `spends` says in words how much of the
    budget is spent at this rate."""

    rate: float
    long: str
    short: str
    severity: str
    spends: str


BURNS = (
    BurnAlert(14.4, "1h", "5m", "page", "2% of a month's budget in an hour"),
    BurnAlert(6, "6h", "30m", "page", "5% of a month's budget in six hours"),
    BurnAlert(3, "1d", "2h", "ticket", "10% of a month's budget in a day"),
    BurnAlert(1, "3d", "6h", "ticket", "10% of a month's budget in three days"),
)
WINDOWS = tuple(dict.fromkeys(window for burn in BURNS for window in (burn.short, burn.long)))
QUANTILES = (("50", "0.5"), ("90", "0.9"), ("95", "0.95"), ("99", "0.99"))


def rule_file(objectives: Sequence[Objective]) -> str:
    """Return a Prometheus rule file in YAML: latency percentiles, recording rules and alerts of the objectives, and the
    health alerts of brokers and operator.

    :raises ValueError: two objectives have the same name.
    """
    return _to_yaml(rules_of(objectives))


def rule_resource(objectives: Sequence[Objective], name: str) -> str:
    """Return the rules of `rule_file` as a PrometheusRule resource in YAML, for the Prometheus operator.

    :param name: the name of the resource.
    :raises ValueError: two objectives have the same name.
    """
    head = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": {"name": name}}
    return _to_yaml({**head, "spec": rules_of(objectives)})


def rules_of(objectives: Sequence[Objective]) -> dict[str, Any]:
    """Return the rules of `rule_file` as data that can be written as YAML.

    :raises ValueError: two objectives have the same name.
    """
    names = [objective.name for objective in objectives]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two objectives are named {', '.join(sorted(duplicates))}: names must be unique")
    groups: list[dict[str, Any]] = [{"name": "migratory-latency", "rules": _percentiles()}]
    for objective in objectives:
        groups.append({"name": f"migratory-objective-{objective.name}", "rules": objective_rules(objective)})
    groups.append({"name": "migratory-health", "rules": health_alerts()})
    groups.append({"name": "migratory-operator", "rules": operator_alerts()})
    return {"groups": groups}


def _to_yaml(content: dict[str, Any]) -> str:
    """Return the content as YAML, with keys in their order, and without folding lines of up to 1000 characters."""
    return yaml.dump(content, Dumper=_PlainDumper, sort_keys=False, width=1000)


def objective_rules(objective: Objective) -> list[Rule]:
    """Return the rules of one objective: recorded error ratios, events and target, then for a target of 100% an alert
    on any bad event, otherwise burn rates, the budget left and alerts on burn rates. An objective that counts events
    and has a threshold also has an alert that fires if the threshold is not a bound of the exported histogram."""
    labels = {"objective": objective.name}
    target = objective.target / Decimal(100)
    rules = _slices(objective) if objective.slices is not None else _events(objective)
    rules.append({"record": TARGET, "expr": f"vector({_decimal(target)})", "labels": labels})
    selector = f'{{objective="{objective.name}"}}'
    if target == 1:
        rules.append(_any_bad_event(objective, selector))
    else:
        allowed = _decimal(1 - target)
        for window in WINDOWS:
            expr = f"{RATIO}_{window}{selector} / {allowed}"
            rules.append({"record": f"{BURN}_{window}", "expr": expr, "labels": labels})
        rules.append({"record": BUDGET, "expr": _budget_left(selector, allowed), "labels": labels})
        rules += [_burning(objective, selector, burn, target) for burn in BURNS]
    events = indicator(objective)
    if events is not None and events.measured is not None:
        rules.append(_unmeasured(objective, events.total("1h"), events.measured("1h")))
    return rules


def _percentiles() -> list[Rule]:
    """Return rules that record the percentiles in QUANTILES of the latency over five minutes, by cluster and by broker,
    of live deliveries between a sender and a receiver on one clock. They have no value without a delivery."""
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
                    # Without deliveries the quantile is NaN, which would count as a value.
                    "expr": f"histogram_quantile({share}, {buckets}) and {moving}",
                }
            )
    return rules


def _events(objective: Objective) -> list[Rule]:
    """Return the recording rules of an objective that counts events: the series that others read, the share of bad
    events and the number of events in each of WINDOWS, and the number of bad events in five minutes."""
    events = indicator(objective)
    assert events is not None
    labels = {"objective": objective.name}
    rules: list[Rule] = [{"record": name, "expr": expr, "labels": labels} for name, expr in events.recorded]
    for window in WINDOWS:
        bad, total = events.bad(window), events.total(window)
        # Without events there is no ratio, rather than NaN.
        rules.append({"record": f"{RATIO}_{window}", "expr": f"({bad}) / ({total} > 0)", "labels": labels})
        rules.append({"record": f"{EVENTS}_{window}", "expr": f"({total}) * {seconds(window)}", "labels": labels})
    rules.append({"record": f"{BAD}_5m", "expr": f"({events.bad('5m')}) * 300", "labels": labels})
    return rules


def _slices(objective: Objective) -> list[Rule]:
    """Return the recording rules of an objective that counts slices of time: what a slice is judged by, the share of
    bad slices and the number of slices in each of WINDOWS, and the number of bad slices in five minutes."""
    assert objective.slices is not None
    labels, measure = {"objective": objective.name}, slice_measure(objective)
    selector = f'{measure.record}{{objective="{objective.name}"}} {measure.bad}'
    step = duration(objective.slices.length)
    rules: list[Rule] = [{"record": measure.record, "expr": measure.expression, "labels": labels}]
    for window in WINDOWS:
        over = f"({selector})[{window}:{step}]"
        rules.append({"record": f"{RATIO}_{window}", "expr": f"avg_over_time({over})", "labels": labels})
        rules.append({"record": f"{EVENTS}_{window}", "expr": f"count_over_time({over})", "labels": labels})
    rules.append({"record": f"{BAD}_5m", "expr": f"sum_over_time(({selector})[5m:{step}])", "labels": labels})
    return rules


def _budget_left(selector: str, allowed: str) -> str:
    """Return the PromQL of the share of the error budget that is left over the last PERIOD, weighted by events: a bad
    minute of a quiet night spends little.

    The expression reads recorded series, because thirty days of raw samples are too many for each evaluation.

    :param selector: PromQL matchers of the objective's recorded series, in braces.
    :param allowed: the share (0 to 1) of events that may be bad, as text.
    """
    bad, total = f"sum_over_time({BAD}_5m{selector}[{PERIOD}])", f"sum_over_time({EVENTS}_5m{selector}[{PERIOD}])"
    return f"1 - {bad} / ({total} > 0) / {allowed}"


def _burning(objective: Objective, selector: str, burn: BurnAlert, target: Decimal) -> Rule:
    """Return the alert of an objective that `burn` describes. It requires as many events in the long window as are
    needed to prove the target.

    :param selector: PromQL matchers of the objective's recorded series, in braces.
    :param target: the share (0 to 1) of events that must be good, less than 1.
    """
    needed = math.ceil(1 / (1 - target))
    return {
        "alert": "MigratoryBudgetBurns",
        "expr": (
            f"{BURN}_{burn.long}{selector} > {burn.rate:g} and {BURN}_{burn.short}{selector} > {burn.rate:g}"
            f" and {EVENTS}_{burn.long}{selector} >= {needed}"
        ),
        "labels": {"severity": burn.severity, "objective": objective.name, "window": burn.long},
        "annotations": {
            "summary": f"{{{{ $labels.cluster }}}}: objective {objective.name} spends {burn.spends}",
            "description": (
                f"Objective {objective.name} ({_describe(objective)}) burns its error budget "
                f"{{{{ $value | humanize }}}} times as fast as allowed in {PERIOD}, over {burn.long} and {burn.short}."
            ),
            "runbook_url": runbook("MigratoryBudgetBurns"),
        },
    }


def _any_bad_event(objective: Objective, selector: str) -> Rule:
    """Return the alert of an objective with a target of 100%, which fires on any bad event (or slice of time) within
    five minutes.

    Losses are verified at the end of a run, when no delivery is expected any more, so a ratio would not show them.

    :param selector: PromQL matchers of the objective's recorded series, in braces.
    """
    events = indicator(objective)
    return {
        "alert": "MigratoryPromiseBroken",
        "expr": f"({events.bad('5m')}) > 0" if events is not None else f"{RATIO}_5m{selector} > 0",
        "labels": {"severity": "page", "objective": objective.name},
        "annotations": {
            "summary": f"{{{{ $labels.cluster }}}}: objective {objective.name} allows no bad event, and there was one",
            "description": f"Within the last five minutes this was broken: {_describe(objective)}.",
            "runbook_url": runbook("MigratoryPromiseBroken"),
        },
    }


def _unmeasured(objective: Objective, total: str, measured: str) -> Rule:
    """Return the alert that fires while there are events, but the exported histogram has no bucket with the objective's
    threshold as its bound: then the objective's other alerts cannot fire.

    :param total: PromQL of the rate of all events, by cluster.
    :param measured: PromQL with a value for each cluster whose histogram has that bucket.
    """
    return {
        "alert": "MigratoryObjectiveNotMeasured",
        "expr": f"({total} > 0) unless on (cluster) ({measured})",
        "for": "15m",
        "labels": {"severity": "ticket", "objective": objective.name},
        "annotations": {
            "summary": f"{{{{ $labels.cluster }}}}: objective {objective.name} is not measured",
            "description": (
                f"The threshold of {objective.name} ({_describe(objective)}) is not a bound of the exported "
                "histogram, so it cannot be judged. Add it to the exporter (`migratory bench --threshold SECONDS`)."
            ),
            "runbook_url": runbook("MigratoryObjectiveNotMeasured"),
        },
    }


def _describe(objective: Objective) -> str:
    """Return what the objective asks for, in words, such as `latency: 99.9% within 250ms`."""
    slices = objective.slices
    if slices is not None:
        text = f"slices of {duration(slices.length)} with "
        if slices.threshold is not None:
            text += f"P{slices.percentile} within {duration(slices.threshold)}"
        else:
            text += f"{slices.share}% acknowledged"
    elif objective.threshold is not None:
        text = f"within {duration(objective.threshold)}"
    else:
        text = "delivered once and in order" if objective.type == "delivery" else "acknowledged"
    return f"{objective.type}: {objective.target}% {text}"


def _decimal(value: Decimal) -> str:
    """Return the number in decimal digits, without an exponent and trailing zeros."""
    return format(value.normalize(), "f")


class _PlainDumper(yaml.SafeDumper):
    """A YAML dumper that repeats equal values instead of referring to them by anchors, which are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
