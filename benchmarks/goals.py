"""What the measurements must show: one line for each goal, judged on a result file's own keys."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """`key` is a path in the result; a figure counts by its median."""

    key: str
    bound: float
    text: str
    most: bool = True  # at most; else at least

    def met(self, value: float) -> bool:
        compare: Callable[[float, float], bool] = operator.le if self.most else operator.ge
        return compare(value, self.bound)


GOALS = (
    Goal("fanout.ratio_raw", 1.10, "CPU per delivery, of the raw loop's"),
    Goal("fanout.ratio_best_peer", 0.65, "CPU per delivery, of the best peer's"),
    Goal("fanout.user_us", 1.0, "user-mode CPU per delivery, us"),
    Goal("fanout.syscalls_per_delivery", 1.05, "system calls per delivery"),
    Goal("batching.ratio_unbatched", 0.25, "CPU per message with batching, of that without"),
    Goal("memory.kib_per_client", 2.0, "KiB per idle subscribed client"),
    Goal("io.ratio_one_process", 1.1, "CPU per delivery of two I/O processes, of that of one"),
    Goal("io.spread", 1.1, "connections of the fuller I/O process, of the mean"),
    Goal("latency.worst_p99_ratio", 1.0, "P99 at 25, 50 and 75% load, of the best peer's (the worst of the three)"),
    Goal("publish.ratio_jetstream", 0.5, "acknowledged publications per second, of JetStream's", most=False),
    Goal("publish.single_ratio_jetstream", 1.5, "time of one acknowledged publication, of JetStream's"),
    Goal("failover.resume_seconds.p99", 3.0, "P99 of resume after a kill, seconds"),
    Goal("failover.others_disconnected", 0, "clients of other brokers that lost their link"),
    Goal("failover.p99_ratio", 1.5, "P99 from 10 s after the kill, of that before"),
    Goal("storm.live_ratio", 2.0, "live clients' P99 while others return, of that in quiet"),
    Goal("cycles.growth_ratio", 1.05, "memory after many cycles, of that after few"),
)


class Judged(NamedTuple):
    goal: Goal
    value: float | None  # None: not measured
    met: bool


def look_up(result: Mapping[str, Any], key: str) -> float | None:
    """The number at a path like `fanout.ratio_raw`; a figure's median; None when there is none."""
    found: Any = result
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    if isinstance(found, Mapping):
        found = found.get("median")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def judge(result: Mapping[str, Any], measured: list[str]) -> list[Judged]:
    """All goals of the measurements that were asked for; one without a number is not met."""
    judged = []
    for goal in GOALS:
        if goal.key.split(".")[0] in measured:
            value = look_up(result, goal.key)
            judged.append(Judged(goal, value, value is not None and goal.met(value)))
    return judged
