"""The operator's Prometheus metrics; docs/reference/operator.md lists them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from migratory_operator.names import Object


class OperatorMetrics:
    """Counters of reconciliations and changes, gauges of each cluster and of each namespace's Lease, and the time of
    the last list of clusters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        cluster = ("namespace", "cluster")
        self._reconciles = Counter(
            "migratory_operator_reconciles",
            "Reconciliations of a cluster or a report, by result",
            ("result",),
            registry=self.registry,
        )
        self._changes = Counter(
            "migratory_operator_changes",
            "Objects applied or deleted, pods replaced",
            ("action",),
            registry=self.registry,
        )
        self._condition = Gauge(
            "migratory_operator_condition",
            "1 where the condition is True, 0 where False, -1 where Unknown",
            (*cluster, "type"),
            registry=self.registry,
        )
        self._ready = Gauge(
            "migratory_operator_ready_brokers", "Brokers that accept clients", cluster, registry=self.registry
        )
        self._last_list = Gauge(
            "migratory_operator_last_list_timestamp_seconds",
            "When all clusters were listed last",
            registry=self.registry,
        )
        self._lease = Gauge(
            "migratory_operator_lease_held",
            "1 where the operator serves the namespace, 0 where another one does",
            ("namespace",),
            registry=self.registry,
        )
        self._lease_namespaces: set[str] = set()
        for result in ("done", "failed", "broken"):
            self._reconciles.labels(result)
        self._condition_types: dict[tuple[str, str], set[str]] = {}

    def reconciled(self, result: str) -> None:
        """Count a reconciliation of a cluster or report.

        :param result: done; failed (the API server rejected a request or did not answer); broken (a fault of the
            operator).
        """
        self._reconciles.labels(result).inc()

    def listed(self, time: float) -> None:
        """Record the time at which all clusters were listed.

        :param time: seconds since 1970.
        """
        self._last_list.set(time)

    def count_changes(self, *, applied: int, deleted: int, replaced: int) -> None:
        """Add these numbers to the counters of objects applied, objects deleted and pods replaced."""
        self._changes.labels("apply").inc(applied)
        self._changes.labels("delete").inc(deleted)
        self._changes.labels("replace").inc(replaced)

    def record_status(self, namespace: str, name: str, status: Object) -> None:
        """Set a cluster's gauges (conditions, number of ready brokers) from its status."""
        self._condition_types.setdefault((namespace, name), set())
        self.set_conditions(namespace, name, status["conditions"])
        self._ready.labels(namespace, name).set(status.get("readyBrokers", 0))

    def set_conditions(self, namespace: str, name: str, conditions: Iterable[Object]) -> None:
        """Set the gauges of these conditions of a cluster, and leave its others. Do nothing before the first
        `record_status` of the cluster, or after `forget`."""
        types = self._condition_types.get((namespace, name))
        if types is None:
            return
        for condition in conditions:
            types.add(condition["type"])
            value = {"True": 1, "False": 0}.get(condition["status"], -1)
            self._condition.labels(namespace, name, condition["type"]).set(value)

    def remove_condition(self, namespace: str, name: str, type_: str) -> None:
        """Remove the gauge of a condition that the cluster no longer has, because an alert on it would never end. Do
        nothing if there is no such gauge."""
        if type_ in self._condition_types.get((namespace, name), ()):
            self._condition_types[namespace, name].remove(type_)
            self._condition.remove(namespace, name, type_)

    def set_lease(self, namespace: str, *, is_held: bool) -> None:
        """Set the gauge of a namespace's Lease: 1 if this operator serves the namespace, 0 if another one does."""
        self._lease_namespaces.add(namespace)
        self._lease.labels(namespace).set(is_held)

    def forget_lease(self, namespace: str) -> None:
        """Remove the gauge of a namespace whose Lease this operator neither holds nor waits for any more."""
        if namespace in self._lease_namespaces:
            self._lease_namespaces.remove(namespace)
            self._lease.remove(namespace)

    def forget(self, namespace: str, name: str) -> None:
        """Remove all gauges of a cluster that was deleted, or that another operator serves."""
        types = self._condition_types.pop((namespace, name), None)
        if types is None:
            return
        for type_ in types:
            self._condition.remove(namespace, name, type_)
        self._ready.remove(namespace, name)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
