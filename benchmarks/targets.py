"""Performance targets: one line for each, checked against a result file's own keys."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class PerformanceTarget(NamedTuple):
    """An upper or lower bound of one figure. `key` is a path in the result, where the median counts."""

    key: str
    bound: float
    text: str
    upper: bool = True  # at most; else at least

    def is_met(self, value: float) -> bool:
        """Return whether the value keeps the bound."""
        compare: Callable[[float, float], bool] = operator.le if self.upper else operator.ge
        return compare(value, self.bound)


TARGETS = (
    PerformanceTarget("fanout.ratio_raw", 1.10, "CPU per delivery, of the raw loop's"),
    PerformanceTarget("fanout.ratio_best_peer", 0.65, "CPU per delivery, of the best peer's"),
    PerformanceTarget("fanout.user_us", 1.0, "user-mode CPU per delivery, us"),
    PerformanceTarget("fanout.syscalls_per_delivery", 1.05, "system calls per delivery"),
    PerformanceTarget("batching.ratio_unbatched", 0.25, "CPU per message with batching, of that without"),
    PerformanceTarget("memory.kib_per_client", 2.0, "KiB per idle subscribed client"),
    PerformanceTarget("io.ratio_one_process", 1.1, "CPU per delivery of two I/O processes, of that of one"),
    PerformanceTarget("io.spread", 1.1, "connections of the fuller I/O process, of the mean"),
    PerformanceTarget(
        "latency.worst_p99_ratio", 1.0, "P99 at 25, 50 and 75% load, of the best peer's (the worst of the three)"
    ),
    PerformanceTarget(
        "publish.ratio_jetstream", 0.5, "acknowledged publications per second, of JetStream's", upper=False
    ),
    PerformanceTarget("publish.single_ratio_jetstream", 1.5, "time of one acknowledged publication, of JetStream's"),
    PerformanceTarget("failover.resume_seconds.p99", 3.0, "P99 of resume after a kill, seconds"),
    PerformanceTarget("failover.others_disconnected", 0, "clients of other brokers that lost their link"),
    PerformanceTarget("failover.p99_ratio", 1.5, "P99 from 10 s after the kill, of that before"),
    PerformanceTarget("takeover.kill.publish_gap_p99", 1.0, "P99 of publish gaps after a coordinator's kill, seconds"),
    PerformanceTarget(
        "takeover.kill_many_groups.publish_gap_p99", 2.0, "the same with ten times as many topic groups, seconds"
    ),
    PerformanceTarget(
        "takeover.hang.publish_gap_p99", 3.0, "P99 of publish gaps after a coordinator's SIGSTOP, seconds"
    ),
    PerformanceTarget("storm.live_ratio", 2.0, "live clients' P99 while others reconnect, of that before"),
    PerformanceTarget(
        "attack.worst_p99_ratio", 1.25, "P99 of others under attack, of that with as much CPU used elsewhere"
    ),
    PerformanceTarget("attack.others_disconnected", 0, "others that lost their link under attack"),
    PerformanceTarget("attack.memory_ratio", 1.0, "memory under attack, of its limit (the worst of all limits)"),
    PerformanceTarget("tls.ratio_raw", 1.3, "CPU per delivery with TLS, of the raw TLS loop's"),
    PerformanceTarget("tls.kib_per_client", 12.0, "KiB per idle subscribed client with TLS"),
    PerformanceTarget("identity.share_of_delivery", 0.02, "CPU of tokens and rules, of a delivery's"),
    PerformanceTarget("cycles.growth_ratio", 1.05, "memory after many cycles, of that after few"),
)


class TargetResult(NamedTuple):
    """A target with the measured value, None if it was not measured."""

    target: PerformanceTarget
    value: float | None
    met: bool


def look_up(result: Mapping[str, Any], key: str) -> float | None:
    """Return the number at a path like `fanout.ratio_raw`, the median for statistics, None when there is none."""
    value: Any = result
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    if isinstance(value, Mapping):
        value = value.get("median")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def check_targets(result: Mapping[str, Any], measured: list[str]) -> list[TargetResult]:
    """Check all targets of the measurements that were requested. A target without a number is not met."""
    results = []
    for target in TARGETS:
        if target.key.split(".")[0] in measured:
            value = look_up(result, target.key)
            results.append(TargetResult(target, value, value is not None and target.is_met(value)))
    return results
