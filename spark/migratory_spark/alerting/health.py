"""Alerts about brokers, which no objective says: what a person must look at before clients notice.

Each has its row in docs/operations.md ("Paged?") and its section in docs/monitoring.md.
"""

from __future__ import annotations

from typing import Any

DOCS = "docs/monitoring.md"


def _alert(
    name: str, expr: str, severity: str, summary: str, description: str, anchor: str, wait: str = ""
) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": name, "expr": expr}
    if wait:
        rule["for"] = wait
    rule["labels"] = {"severity": severity}
    rule["annotations"] = {"summary": summary, "description": description, "runbook": f"{DOCS}#{anchor}"}
    return rule


def health_alerts() -> list[dict[str, Any]]:
    cluster, broker = "{{ $labels.cluster }}", "{{ $labels.broker }}"
    return [
        _alert(
            "MigratoryBrokerMissing",
            # A broker that is gone has no series any more: what there were in the last hour is what there should be.
            # With the last one gone there is nothing to count either, and no value would be no alert.
            "max_over_time(migratory:brokers:count[1h])"
            " - (count by (cluster) (migratory_member) or max_over_time(migratory:brokers:count[1h]) * 0) > 0",
            "page",
            f"{cluster}: a broker is missing",
            f"{{{{ $value }}}} brokers of {cluster} that answered scrapes within the last hour do not any more.",
            "a-broker-is-missing",
            "2m",
        ),
        {"record": "migratory:brokers:count", "expr": "count by (cluster) (migratory_member)"},
        _alert(
            "MigratoryBrokerNotMember",
            "migratory_member < 1",
            "ticket",
            f"{broker} of {cluster} is no synced member",
            f"{broker} still copies groups, or can't; until then it counts as failed. Restart no other broker.",
            "a-broker-is-not-a-member",
            "5m",
        ),
        _alert(
            "MigratoryBrokerFenced",
            "migratory_fenced > 0",
            "page",
            f"{broker} of {cluster} is cut off",
            f"{broker} hears too few of the others and has sent its clients away.",
            "a-broker-is-fenced",
            "30s",
        ),
        _alert(
            "MigratoryGroupsWait",
            "sum by (cluster) (migratory_waiting_groups) > 0",
            "page",
            f"{cluster}: publishing waits in {{{{ $value }}}} groups",
            "Too few brokers of these groups' last lists can be reached. Bring brokers back.",
            "groups-wait",
            "30s",
        ),
        _alert(
            "MigratoryGroupsWithoutCoordinator",
            # Each broker knows all groups; coordinators of all brokers together should be as many. Where no broker has
            # any, there is no such series at all.
            "max by (cluster) (sum by (cluster, broker) (migratory_groups))"
            ' - (sum by (cluster) (migratory_groups{role="coordinator"}) or sum by (cluster) (migratory_groups) * 0)'
            " > 0",
            "page",
            f"{cluster}: {{{{ $value }}}} groups have no coordinator",
            "Nobody numbers publications in these groups; a takeover should take seconds.",
            "groups-have-no-coordinator",
            "1m",
        ),
        _alert(
            "MigratoryReplicationLags",
            "migratory_replication_lag > 1000",
            "page",
            f"{broker} of {cluster}: {{{{ $value }}}} publications wait for their copies",
            "Members confirm late or not at all: look at their load and at the network between brokers.",
            "replication-lags",
            "1m",
        ),
        _alert(
            "MigratoryTakeoversSlow",
            "histogram_quantile(0.9, sum by (cluster, le) (rate(migratory_takeover_seconds_bucket[15m]))) > 4",
            "ticket",
            f"{cluster}: a takeover takes {{{{ $value | humanizeDuration }}}}",
            "Publishing in a group waits for its takeover; two seconds are usual.",
            "takeovers-are-slow",
        ),
        _alert(
            "MigratoryHistoryReset",
            "sum by (cluster) (increase(migratory_history_resets_total[15m])) > 0",
            "page",
            f"{cluster}: a history was lost",
            "So many brokers were replaced at once that a group's history was gone; clients got `reset`.",
            "a-history-was-lost",
        ),
        _alert(
            "MigratoryCacheTooSmall",
            "delta(migratory_cache_short[15m]) > 0",
            "ticket",
            f"{broker} of {cluster} forgets too early",
            "`maxBytes` forces publications out before `minAge`: resumes may be truncated.",
            "a-cache-is-too-small",
        ),
        _alert(
            "MigratoryQueuesGrow",
            "migratory_queue_bytes > 200e6",
            "ticket",
            f"{broker} of {cluster}: {{{{ $value | humanize1024 }}}}B wait for slow clients",
            "At `limits.queueTotal` (256 MiB by default) the slowest clients are closed.",
            "queues-grow",
            "5m",
        ),
        _alert(
            "MigratorySlowConsumers",
            'sum by (cluster) (rate(migratory_closed_total{reason="slow_consumer"}[15m])) * 60 > 1',
            "ticket",
            f"{cluster}: {{{{ $value | humanize }}}} slow clients a minute are closed",
            "They read slower than their topics are published; `/v1/status` names them.",
            "slow-consumers",
            "15m",
        ),
        _alert(
            "MigratoryClientsUneven",
            "max by (cluster) (migratory_clients) / avg by (cluster) (migratory_clients) > 1.5"
            " and avg by (cluster) (migratory_clients) > 100",
            "ticket",
            f"{cluster}: the fullest broker has {{{{ $value | humanize }}}} times the average of clients",
            "Clients choose at random by weight: after a restart it takes reconnects until they are even again.",
            "clients-are-uneven",
            "30m",
        ),
    ]
