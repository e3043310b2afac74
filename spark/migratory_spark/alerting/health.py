"""Alerts about brokers and about what their operator says: what a person must look at before clients notice.

Each has its section in docs/operations/alerts.md. A cluster is told by its name and, on Kubernetes, its namespace, a
label that scraping adds; elsewhere there is none, and grouping by it changes nothing.
"""

from __future__ import annotations

from typing import Any

RUNBOOKS = "docs/operations/alerts.md"
_BY = "by (namespace, cluster)"


def runbook(alert: str) -> str:
    """The section about an alert, from the repository's root."""
    return f"{RUNBOOKS}#{alert.lower()}"


def _alert(name: str, expr: str, severity: str, summary: str, description: str, wait: str = "") -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": name, "expr": expr}
    if wait:
        rule["for"] = wait
    rule["labels"] = {"severity": severity}
    rule["annotations"] = {"summary": summary, "description": description, "runbook_url": runbook(name)}
    return rule


def health_alerts() -> list[dict[str, Any]]:
    cluster, broker = "{{ $labels.cluster }}", "{{ $labels.broker }}"
    return [
        _alert(
            "MigratoryBrokerMissing",
            # A broker that is gone has no series any more: what there were in the last hour is what there should be.
            # With the last one gone there is nothing to count either, and no value would be no alert.
            "max_over_time(migratory:brokers:count[1h])"
            f" - (count {_BY} (migratory_member) or max_over_time(migratory:brokers:count[1h]) * 0) > 0",
            "page",
            f"{cluster}: a broker is missing",
            f"{{{{ $value }}}} brokers of {cluster} that answered scrapes within the last hour do not any more.",
            "2m",
        ),
        {"record": "migratory:brokers:count", "expr": f"count {_BY} (migratory_member)"},
        _alert(
            "MigratoryBrokerNotMember",
            "migratory_member < 1",
            "ticket",
            f"{broker} of {cluster} is no synced member",
            f"{broker} still copies groups, or can't; until then it counts as failed. Restart no other broker.",
            "5m",
        ),
        _alert(
            "MigratoryBrokerFenced",
            "migratory_fenced > 0",
            "page",
            f"{broker} of {cluster} is cut off",
            f"{broker} hears too few of the others and has sent its clients away.",
            "30s",
        ),
        _alert(
            "MigratoryGroupsWait",
            f"sum {_BY} (migratory_waiting_groups) > 0",
            "page",
            f"{cluster}: publishing waits in {{{{ $value }}}} groups",
            "Too few brokers of these groups' last lists can be reached. Bring brokers back.",
            "30s",
        ),
        _alert(
            "MigratoryGroupsWithoutCoordinator",
            # Each broker knows all groups; coordinators of all brokers together should be as many. Where no broker has
            # any, there is no such series at all.
            f"max {_BY} (sum by (namespace, cluster, broker) (migratory_groups))"
            f' - (sum {_BY} (migratory_groups{{role="coordinator"}}) or sum {_BY} (migratory_groups) * 0) > 0',
            "page",
            f"{cluster}: {{{{ $value }}}} groups have no coordinator",
            "Nobody numbers publications in these groups; a takeover should take seconds.",
            "1m",
        ),
        _alert(
            "MigratoryReplicationLags",
            "migratory_replication_lag > 1000",
            "page",
            f"{broker} of {cluster}: {{{{ $value }}}} publications wait for their copies",
            "Members confirm late or not at all: look at their load and at the network between brokers.",
            "1m",
        ),
        _alert(
            "MigratoryTakeoversSlow",
            "histogram_quantile(0.9,"
            " sum by (namespace, cluster, le) (rate(migratory_takeover_seconds_bucket[15m]))) > 4",
            "ticket",
            f"{cluster}: a takeover takes {{{{ $value | humanizeDuration }}}}",
            "Publishing in a group waits for its takeover; two seconds are usual.",
        ),
        _alert(
            "MigratoryHistoryReset",
            f"sum {_BY} (increase(migratory_history_resets_total[15m])) > 0",
            "page",
            f"{cluster}: a history was lost",
            "So many brokers were replaced at once that a group's history was gone; clients got `reset`.",
        ),
        _alert(
            "MigratoryCacheTooSmall",
            "delta(migratory_cache_short[15m]) > 0",
            "ticket",
            f"{broker} of {cluster} forgets too early",
            "`maxBytes` forces publications out before `minAge`: resumes may be truncated.",
        ),
        _alert(
            "MigratoryQueuesGrow",
            "migratory_queue_bytes > 200e6",
            "ticket",
            f"{broker} of {cluster}: {{{{ $value | humanize1024 }}}}B wait for slow clients",
            "At `limits.queueTotal` (256 MiB by default) the slowest clients are closed.",
            "5m",
        ),
        _alert(
            "MigratorySlowConsumers",
            f'sum {_BY} (rate(migratory_closed_total{{reason="slow_consumer"}}[15m])) * 60 > 1',
            "ticket",
            f"{cluster}: {{{{ $value | humanize }}}} slow clients a minute are closed",
            "They read slower than their topics are published; `/v1/status` names them.",
            "15m",
        ),
        _alert(
            "MigratoryClientsUneven",
            f"max {_BY} (migratory_clients) / avg {_BY} (migratory_clients) > 1.5"
            f" and avg {_BY} (migratory_clients) > 100",
            "ticket",
            f"{cluster}: the fullest broker has {{{{ $value | humanize }}}} times the average of clients",
            "Clients choose at random by weight: after a restart it takes reconnects until they are even again.",
            "30m",
        ),
    ]


def operator_alerts() -> list[dict[str, Any]]:
    """From the operator's own metrics, whose `namespace` and `cluster` are those of the cluster that it speaks of."""
    cluster = "{{ $labels.namespace }}/{{ $labels.cluster }}"
    condition, listed = "migratory_operator_condition", "migratory_operator_last_list_timestamp_seconds"
    return [
        _alert(
            "MigratoryClusterNotReady",
            f'{condition}{{type="Ready"}} != 1',
            "page",
            f"{cluster} is not ready",
            "Brokers are missing, or coordination is: the condition Ready names the reason.",
            "5m",
        ),
        _alert(
            "MigratoryClusterDegraded",
            f'{condition}{{type="Degraded"}} == 1',
            "ticket",
            f"{cluster} needs a person",
            "Something will not mend itself: the condition Degraded names it.",
            "5m",
        ),
        _alert(
            "MigratorySLANotMet",
            f'{condition}{{type="SLAMet"}} == 0',
            "ticket",
            f"{cluster}: the last report missed an objective",
            "The condition SLAMet names the report and the objectives.",
        ),
        _alert(
            "MigratoryOperatorBlind",
            # Of an operator that is gone the last day still tells when it listed; no value would be no alert.
            f"time() - max by (namespace, service) (max_over_time({listed}[1d])) > 300",
            "ticket",
            "The operator has not listed its clusters for five minutes",
            "It is away, or the API server does not answer it. Clusters go on as they are; nothing heals or changes.",
            "1m",
        ),
    ]
