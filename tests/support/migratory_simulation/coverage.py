"""Counters of what the runs exercised, added up over seeds. `REQUIRED` counters must not stay zero."""

from __future__ import annotations

from collections import Counter

from migratory_simulation.plans import NAMES

REQUIRED = (
    *(f"fault {name}" for name in NAMES.values()),
    "fault one-way partition",
    # how the cluster reacted
    "hung processes ended",
    "takeovers",
    "note broker_suspected",
    "note suspected_wrongly",
    "record suspect",
    "adopted suffixes",
    "answers below the source",
    "relistings",
    "promotions",
    "histories",
    "fences",
    "zookeeper outcomes unknown",
    "evictions",
    "stops",
    "halts",
    "brokers rolled",
    "rollouts finished",
    "minCopies changed",
    "brokers left",
    # what clients observed
    "published",
    "acknowledged",
    "delivered",
    "replayed",
    "resumes",
    "resumes from made-up positions",
    "truncated",
    "reset",
    "gap answers",
    "retry answers",
    "duplicates answered",
    "ids misused",
    "id_reused answers",
    "outcome_unknown answers",
    "topics removed",
    "given up",
    "live gaps",
    "pages",
    "paused",
    "note slow_consumer",
    "snapshots",
    "clients broken",
    "clients drained",
    "clients moved",
    "replaced before they were left",
    "begun anew",
    "conflated",
    "batches",
)


class Coverage(Counter[str]):
    """Counters by name. Names that begin with "fault " count faults that took effect."""

    def missing(self) -> list[str]:
        """Return the names of the required counters that are zero."""
        return [name for name in REQUIRED if not self[name]]

    def faults(self) -> int:
        """Return the number of faults that took effect."""
        return sum(count for name, count in self.items() if name.startswith("fault "))

    def table(self, seeds: int) -> str:
        """Return the counters as text, with totals and means per seed: the required ones first."""
        names = list(REQUIRED) + sorted(name for name in self if name not in REQUIRED)
        width = max(len(name) for name in names)
        lines = [f"{'exercised':<{width}}  {'total':>10}  {'per seed':>10}"]
        lines += [f"{name:<{width}}  {self[name]:>10}  {self[name] / max(seeds, 1):>10.2f}" for name in names]
        return "\n".join(lines)
