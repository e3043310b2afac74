"""Alerts on the health of brokers and of the operator, which need no objective.

Each alert has a section in docs/operations/alerts.md. Clusters are identified by name and, on Kubernetes, by the label
`namespace`, which the scraper adds. Elsewhere that label is missing, and grouping by it changes nothing.
"""

from __future__ import annotations

from typing import Any

RUNBOOKS = "docs/operations/alerts.md"
_BY = "by (namespace, cluster)"


def runbook(alert: str) -> str:
    """Return the place of the documentation's section about an alert: the page's path from the repository's root, and
    the section's anchor."""
    return f"{RUNBOOKS}#{alert.lower()}"


def _alert(name: str, expr: str, severity: str, summary: str, description: str, wait: str = "") -> dict[str, Any]:
    """Return a Prometheus alerting rule, with a link to its section of the documentation.

    :param expr: PromQL; the alert fires for each series that it returns.
    :param severity: `page` or `ticket`.
    :param wait: how long the expression must hold before the alert fires, such as `5m`; "" for at once.
    """
    rule: dict[str, Any] = {"alert": name, "expr": expr}
    if wait:
        rule["for"] = wait
    rule["labels"] = {"severity": severity}
    rule["annotations"] = {"summary": summary, "description": description, "runbook_url": runbook(name)}
    return rule


def health_alerts() -> list[dict[str, Any]]:
    """Return the Prometheus alerts on the metrics of brokers, and a recording rule (the number of brokers) that one of
    them uses."""
    cluster, broker = "{{ $labels.cluster }}", "{{ $labels.broker }}"
    return [
        _alert(
            "MigratoryBrokerMissing",
            # A broker that is gone has no series, so the number of brokers in the last hour is the expected one.
            # Without any broker there is nothing to count, and a missing value would not alert: hence `* 0`.
            "max_over_time(migratory:brokers:count[1h])"
            f" - (count {_BY} (migratory_member) or max_over_time(migratory:brokers:count[1h]) * 0) > 0",
            "page",
            f"{cluster}: a broker is missing",
            f"{{{{ $value }}}} brokers of {cluster} answered scrapes within the last hour and no longer do.",
            "2m",
        ),
        {"record": "migratory:brokers:count", "expr": f"count {_BY} (migratory_member)"},
        _alert(
            "MigratoryBrokerNotMember",
            "migratory_member < 1",
            "ticket",
            f"{broker} of {cluster} is not a synced member",
            f"{broker} has not finished copying groups and counts as failed until then. Do not restart another broker.",
            "5m",
        ),
        _alert(
            "MigratoryBrokerFenced",
            "migratory_fenced > 0",
            "page",
            f"{broker} of {cluster} is cut off",
            f"{broker} reaches too few of the other brokers and has disconnected its clients.",
            "30s",
        ),
        _alert(
            "MigratoryGroupsWait",
            f"sum {_BY} (migratory_waiting_groups) > 0",
            "page",
            f"{cluster}: publishing waits in {{{{ $value }}}} groups",
            "Too few members of these groups can be reached. Bring brokers back.",
            "30s",
        ),
        _alert(
            "MigratoryGroupsWithoutCoordinator",
            # Each broker knows all groups, and all brokers together should have as many coordinators. Without any
            # coordinator there is no such series at all.
            f"max {_BY} (sum by (namespace, cluster, broker) (migratory_groups))"
            f' - (sum {_BY} (migratory_groups{{role="coordinator"}}) or sum {_BY} (migratory_groups) * 0) > 0',
            "page",
            f"{cluster}: {{{{ $value }}}} groups have no coordinator",
            "Publications in these groups are not sequenced; a takeover should take seconds.",
            "1m",
        ),
        _alert(
            "MigratoryReplicationLags",
            "migratory_replication_lag > 1000",
            "page",
            f"{broker} of {cluster}: {{{{ $value }}}} publications wait for their copies",
            "Members acknowledge late or not at all: check their load and the network between brokers.",
            "1m",
        ),
        _alert(
            "MigratoryTakeoversSlow",
            "histogram_quantile(0.9,"
            " sum by (namespace, cluster, le) (rate(migratory_takeover_seconds_bucket[15m]))) > 4",
            "ticket",
            f"{cluster}: a takeover takes {{{{ $value | humanizeDuration }}}}",
            "Publishing in a group waits for its takeover, which usually takes two seconds.",
        ),
        _alert(
            "MigratoryHistoryReset",
            f"sum {_BY} (increase(migratory_history_resets_total[15m])) > 0",
            "page",
            f"{cluster}: a history was lost",
            "Too many brokers were replaced at once and a group's history was lost; clients received `reset`.",
        ),
        _alert(
            "MigratoryZooKeeperDataLost",
            f"max {_BY} (increase(migratory_zookeeper_data_losses_total[15m])) > 0",
            "page",
            f"{cluster}: ZooKeeper lost its data, or came back with older data",
            "Brokers restore the records from memory. Restart no broker until all of them are ready.",
        ),
        _alert(
            "MigratoryZooKeeperAccessDenied",
            "increase(migratory_zookeeper_denied_total[5m]) > 0",
            "page",
            f"ZooKeeper denies {broker} of {cluster} access to its nodes",
            "The broker's password is wrong, or another program changed who may access the nodes.",
        ),
        _alert(
            "MigratoryCacheTooSmall",
            "delta(migratory_cache_short[15m]) > 0",
            "ticket",
            f"{broker} of {cluster} evicts publications too early",
            "`maxBytes` evicts publications younger than `minAge`: resumes may be truncated.",
        ),
        _alert(
            "MigratoryCertificateRejected",
            "increase(migratory_certificates_rejected_total[15m]) > 0",
            "ticket",
            f"{broker} of {cluster} cannot use its new certificate for {{{{ $labels.purpose }}}}",
            "The certificate before it serves on, until it expires.",
        ),
        _alert(
            "MigratoryCertificateExpires",
            "migratory_certificate_expiry_timestamp_seconds - time() < 7 * 86400",
            "page",
            f"a certificate of {broker} of {cluster} expires in {{{{ $value | humanizeDuration }}}}",
            "Without a new one, clients or other brokers cannot connect from then on.",
        ),
        _alert(
            "MigratoryCredentialsRejected",
            "migratory_credential_sources_failing > 0",
            "ticket",
            f"{broker} of {cluster} cannot use keys or revocations of clients' tokens",
            "The last good keys and revocations are in use: new keys are refused, and new revocations have no effect.",
        ),
        _alert(
            "MigratoryClientsRateLimited",
            "sum by (namespace, cluster, limit) (increase(migratory_rate_limited_total[15m])) > 100",
            "ticket",
            f"clients of {cluster} wait for a rate again and again ({{{{ $labels.limit }}}})",
            "What they publish or subscribe to is late, and nothing is lost.",
        ),
        _alert(
            "MigratoryPeerRefused",
            "sum by (namespace, cluster, broker, reason) (increase(migratory_peer_messages_refused_total[15m])) > 0",
            "ticket",
            f"{broker} of {cluster} refuses what a peer sends ({{{{ $labels.reason }}}})",
            "Somebody else reaches the peers' port, or a broker says what the rules exclude.",
        ),
        _alert(
            "MigratoryLoopStalls",
            "increase(migratory_loop_stalls_total[15m]) > 10",
            "ticket",
            f"the event loop of {broker} of {cluster} stands still now and then",
            "Everything on this broker waits meanwhile. A loop that stands for three quarters of a session ends it.",
        ),
        _alert(
            "MigratoryQueuesGrow",
            "migratory_queue_bytes > 200e6",
            "ticket",
            f"{broker} of {cluster}: {{{{ $value | humanize1024 }}}}B are queued for slow clients",
            "At `limits.queueTotal` (256 MiB by default) the slowest clients are disconnected.",
            "5m",
        ),
        _alert(
            "MigratoryClientMemoryFull",
            "migratory_client_bytes / migratory_client_bytes_limit > 0.8",
            "ticket",
            f"{broker} of {cluster}: clients use {{{{ $value | humanizePercentage }}}} of the memory for "
            "{{ $labels.kind }}",
            "At the limit clients are refused (`overloaded`) or closed; `migratory_refusals_total` and "
            "`migratory_closed_total` count them.",
            "5m",
        ),
        _alert(
            "MigratorySlowConsumers",
            f'sum {_BY} (rate(migratory_closed_total{{reason="slow_consumer"}}[15m])) * 60 > 1',
            "ticket",
            f"{cluster}: {{{{ $value | humanize }}}} slow clients a minute are disconnected",
            "They read more slowly than their topics are published; `/v1/status` lists them.",
            "15m",
        ),
        _alert(
            "MigratoryClientsUneven",
            f"max {_BY} (migratory_clients) / avg {_BY} (migratory_clients) > 1.5"
            f" and avg {_BY} (migratory_clients) > 100",
            "ticket",
            f"{cluster}: the fullest broker has {{{{ $value | humanize }}}} times the average of clients",
            "Clients choose brokers at random by weight: after a restart it takes reconnects until they are balanced.",
            "30m",
        ),
    ]


def operator_alerts() -> list[dict[str, Any]]:
    """Return the Prometheus alerts on the operator's metrics. In alerts on a cluster's conditions, the labels
    `namespace` and `cluster` are those of that cluster, not of the operator."""
    cluster = "{{ $labels.namespace }}/{{ $labels.cluster }}"
    condition, listed = "migratory_operator_condition", "migratory_operator_last_list_timestamp_seconds"
    return [
        _alert(
            "MigratoryClusterNotReady",
            f'{condition}{{type="Ready"}} != 1',
            "page",
            f"{cluster} is not ready",
            "Too few brokers accept clients, or topic groups are not coordinated: the condition Ready has the reason.",
            "5m",
        ),
        _alert(
            "MigratoryClusterDegraded",
            f'{condition}{{type="Degraded"}} == 1',
            "ticket",
            f"{cluster} needs manual intervention",
            "A fault will not heal by itself: the condition Degraded names it.",
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
            # Of an operator that is gone the last day still has the value; a missing value would not alert.
            f"time() - max by (namespace, service) (max_over_time({listed}[1d])) > 300",
            "ticket",
            "The operator has not listed its clusters for five minutes",
            "It is down, or the API server does not answer it. Clusters keep running; nothing is healed or changed.",
            "1m",
        ),
    ]
