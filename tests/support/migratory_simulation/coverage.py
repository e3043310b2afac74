"""What runs exercised, as counters that add up over seeds; `REQUIRED` are those that may not stay zero."""

from __future__ import annotations

from collections import Counter

REQUIRED = (
    # faults that took effect
    "fault crash",
    "fault freeze",
    "fault link break",
    "fault partition",
    "fault one-way partition",
    "fault clog",
    "fault zookeeper away",
    "fault zookeeper cut off",
    "fault zookeeper connection lost",
    "fault session expiry",
    "fault slow broker",
    "fault clients dropped",
    "fault edge restart",
    "fault drain",
    "fault restart of all",
    "fault replaced while running",
    "fault burst",
    "fault ambush",
    "fault slow zookeeper",
    "fault client stalled",
    "fault clock jump",
    "fault silent client",
    "fault broker behind",
    "fault rolling restart",
    "fault broker added",
    "fault broker removed",
    # what the cluster did about them
    "takeovers",
    "adopted suffixes",
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
    "brokers left",
    # what clients saw
    "published",
    "acknowledged",
    "delivered",
    "replayed",
    "resumes",
    "truncated",
    "reset",
    "gap answers",
    "retry answers",
    "duplicates answered",
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
    def missing(self) -> list[str]:
        return [name for name in REQUIRED if not self[name]]

    def faults(self) -> int:
        """Faults that took effect."""
        return sum(count for name, count in self.items() if name.startswith("fault "))

    def table(self, seeds: int) -> str:
        names = list(REQUIRED) + sorted(name for name in self if name not in REQUIRED)
        width = max(len(name) for name in names)
        lines = [f"{'exercised':<{width}}  {'total':>10}  {'per seed':>10}"]
        lines += [f"{name:<{width}}  {self[name]:>10}  {self[name] / max(seeds, 1):>10.2f}" for name in names]
        return "\n".join(lines)
