"""Scripts of directed runs: coordinators that are suspected (SUSPECT), because they are dead or only seem to be."""

from __future__ import annotations

from migratory_broker.core.logic.membership.records import rendezvous

from migratory_simulation.network import ways
from migratory_simulation.process import Process
from migratory_simulation.scripted import ScriptedCluster, Steps, schedule

SOON = 1.5
"""Seconds, scaled by the tempo, in which a dead coordinator is replaced: less than a session (4) and less than the
progress timeout (2), for which a candidate waits for the one before it."""


SILENT = 3.5
"""Seconds, scaled by the tempo, in which a coordinator that nobody hears is replaced: less than a session."""


def _refuse(cluster: ScriptedCluster, process: Process, *others: Process) -> None:
    """Reset the links between a process and the others, and let both sides refuse new ones until `_accept`."""
    cluster.trace(f"{process.label} and {', '.join(other.label for other in others)}: refuse each other")
    cluster.world.network.refuse(ways([process], others))


def _accept(cluster: ScriptedCluster, process: Process, *others: Process) -> None:
    """Let a process and the others accept connections from each other again."""
    cluster.trace(f"{process.label} and {', '.join(other.label for other in others)}: accept each other")
    cluster.world.network.accept(ways([process], others))


def _suspected(cluster: ScriptedCluster) -> int:
    """Return the number of records that were written by suspicion in this run."""
    return cluster.world.coverage["record suspect"]


@schedule(60.0, groups=3)
def dead_coordinator(cluster: ScriptedCluster) -> Steps:
    """A coordinator crashes. All its groups must have another coordinator long before its session ends."""
    yield cluster.up()
    for _ in range(3):
        yield cluster.random.uniform(1.0, 3.0) * cluster.tempo
        yield cluster.until(cluster.all_ready, 20.0, "cluster that is at rest")
        old = cluster.current(cluster.random.randrange(3))
        cluster.crash(old, 5.0)
        yield cluster.expect(
            lambda old=old: all(cluster.coordinator(group) not in (None, old) for group in range(3)),  # type: ignore[misc]
            SOON,
            "a coordinator that is known to be dead is not replaced",
        )


@schedule(60.0, groups=3, tempo=1.0, silence=1.0)
def silent_coordinator(cluster: ScriptedCluster) -> Steps:
    """A coordinator stands still, and its connections stand. All its groups must have another coordinator before its
    session ends. When it goes on, it steps down."""
    yield cluster.up()
    yield cluster.until(cluster.all_ready, 20.0, "cluster that is at rest")
    old = cluster.current(cluster.random.randrange(3))
    cluster.trace(f"{old.label}: stands still")
    old.freeze()
    yield cluster.expect(
        lambda: all(cluster.coordinator(group) not in (None, old) for group in range(3)),
        SILENT,
        "a coordinator that nobody hears is not replaced",
    )
    old.thaw()
    yield 4.0 * cluster.tempo


@schedule(60.0)
def wrongly_suspected(cluster: ScriptedCluster) -> Steps:
    """Again and again, the coordinator's connections are reset and refused for a moment, though it lives. Each broker
    may be suspected once in this time, and no more: a trusted one is left to its session."""
    yield from cluster.settled()
    for _ in range(8):
        yield cluster.until(lambda: cluster.coordinator() is not None and cluster.world.all_open(), 12.0, "calm")
        old = cluster.current()
        others = cluster.others(old)
        _refuse(cluster, old, *others)
        yield cluster.random.uniform(0.8, 1.6) * cluster.tempo
        _accept(cluster, old, *others)
        yield cluster.random.uniform(2.0, 4.0) * cluster.tempo
        cluster.demand(_suspected(cluster) <= len(cluster.world.names), "a broker is suspected wrongly again at once")
    cluster.demand(_suspected(cluster) > 0, "nobody was suspected")


@schedule(30.0)
def contradicted(cluster: ScriptedCluster) -> Steps:
    """The coordinator and one broker refuse each other. The third one has links to both, and contradicts."""
    yield from cluster.settled()
    for other in cluster.others(cluster.current()):
        old = cluster.current()
        _refuse(cluster, old, other)
        yield cluster.random.uniform(3.0, 6.0) * cluster.tempo
        _accept(cluster, old, other)
        cluster.demand(cluster.owner() is old, "a coordinator is replaced that another broker has a link to")
        yield 2.0 * cluster.tempo


@schedule(30.0)
def links_reset(cluster: ScriptedCluster) -> Steps:
    """All links of the coordinator are reset, again and again, and stand again soon: no reason to replace it."""
    yield from cluster.settled()
    old = cluster.current()
    for _ in range(8):
        for other in cluster.others(old):
            cluster.world.network.break_link(old.number, other.number)
        yield cluster.random.uniform(0.8, 2.0) * cluster.tempo
        cluster.demand(cluster.owner() is old, "a coordinator is replaced because its links were reset")


def _candidates(cluster: ScriptedCluster, old: Process) -> list[Process]:
    """Return the other brokers, in the order in which they try to take group 0 over from `old`."""
    names = rendezvous(0, [process.name for process in cluster.others(old)])
    return sorted(cluster.others(old), key=lambda process: names.index(process.name))


@schedule(30.0, brokers=4, publishers=4)
def suspected_while_it_commits(cluster: ScriptedCluster) -> Steps:
    """With four brokers, the coordinator and all but the last candidate refuse each other. What that last one says,
    which has links to all, comes late. The coordinator commits with it until it promises the next epoch. The checkers
    check that nothing of it is lost."""
    yield from cluster.settled()
    old = cluster.current()
    first, second, holder = _candidates(cluster, old)
    for other in (first, second):
        cluster.clog(holder, other, cluster.random.uniform(2.0, 3.0))
    _refuse(cluster, old, first, second)
    yield cluster.until(lambda: cluster.owner() is first, 6.0, "candidate that suspects")
    cluster.burst(6)
    yield 4.0 * cluster.tempo
    _accept(cluster, old, first, second)
    yield 4.0 * cluster.tempo


@schedule(40.0, brokers=5, min_copies=3, publishers=4)
def two_die_in_turn(cluster: ScriptedCluster) -> Steps:
    """With five brokers and minCopies 3, the coordinator crashes, and then the candidate, before its epoch is
    activated. The third one must ask the list that was activated last."""
    yield from cluster.settled()
    first, before = cluster.current(), cluster.record()
    cluster.crash(first, 20.0)
    yield cluster.next_record(before)
    record, second = cluster.record(), cluster.owner()
    if record is None or second is None:
        return
    others = cluster.others(first, second)
    for other in others:
        cluster.clog(other, second, 1.0)  # no confirmation reaches it
    yield cluster.until(lambda: any(cluster.synced(other) == record.epoch for other in others), 4.0, "Sync")
    cluster.crash(second, 20.0)
    yield cluster.expect(
        lambda: cluster.coordinator() not in (None, first, second), 12.0, "a candidate that died is not replaced"
    )


@schedule(40.0)
def slow_candidate(cluster: ScriptedCluster) -> Steps:
    """The coordinator crashes, and the first candidate reaches ZooKeeper slowly. The next one takes over after the
    first has read the record and before that writes its own. Only one of the two records may count."""
    yield from cluster.settled()
    old, before = cluster.current(), cluster.record()
    first, second = _candidates(cluster, old)
    usual, first.zk.delay = first.zk.delay, cluster.random.uniform(0.6, 1.0) * cluster.tempo
    cluster.crash(old, 8.0)
    yield cluster.until(lambda: cluster.record() != before and cluster.owner() is second, 5.0, "second candidate first")
    yield 4.0 * cluster.tempo
    first.zk.delay = usual
    yield cluster.expect(lambda: cluster.coordinator() not in (None, old), 12.0, "nobody coordinates")
