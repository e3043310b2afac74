"""The operator's own metrics; docs/operator.md lists them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from migratory_operator.decide import Plan
from migratory_operator.names import Object


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        cluster = ("namespace", "cluster")
        self._looks = Counter(
            "migratory_operator_reconciles",
            "Looks at a cluster or a report, by result",
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
            "migratory_operator_ready_brokers", "Brokers that take clients", cluster, registry=self.registry
        )
        self._synced = Gauge(
            "migratory_operator_last_list_timestamp_seconds",
            "When all clusters were listed last",
            registry=self.registry,
        )
        for result in ("done", "failed", "broken"):
            self._looks.labels(result)
        self._known: dict[tuple[str, str], set[str]] = {}

    def looked(self, result: str) -> None:
        """:param result: done; failed (the API refused or did not answer); broken (a fault of the operator)."""
        self._looks.labels(result).inc()

    def listed(self, time: float) -> None:
        self._synced.set(time)

    def saw(self, namespace: str, name: str, plan: Plan) -> None:
        self._changes.labels("apply").inc(len(plan.apply))
        self._changes.labels("delete").inc(len(plan.delete))
        self._changes.labels("replace").inc(len(plan.replace))
        if not plan.status:
            return
        self._known.setdefault((namespace, name), set())
        self.says(namespace, name, plan.status["conditions"])
        self._ready.labels(namespace, name).set(plan.status.get("readyBrokers", 0))

    def says(self, namespace: str, name: str, conditions: Iterable[Object]) -> None:
        """Of a cluster that was looked at before."""
        types = self._known.get((namespace, name))
        if types is None:
            return
        for condition in conditions:
            types.add(condition["type"])
            value = {"True": 1, "False": 0}.get(condition["status"], -1)
            self._condition.labels(namespace, name, condition["type"]).set(value)

    def unsays(self, namespace: str, name: str, type_: str) -> None:
        """A condition that a cluster has no more has no series, or its alert would never end."""
        if type_ in self._known.get((namespace, name), ()):
            self._known[namespace, name].remove(type_)
            self._condition.remove(namespace, name, type_)

    def forget(self, namespace: str, name: str) -> None:
        """A cluster that is gone has no series."""
        types = self._known.pop((namespace, name), None)
        if types is None:
            return
        for type_ in types:
            self._condition.remove(namespace, name, type_)
        self._ready.remove(namespace, name)

    def page(self) -> bytes:
        return generate_latest(self.registry)
