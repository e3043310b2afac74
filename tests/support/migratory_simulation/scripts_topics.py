"""Scripts of directed schedules: topics that are removed because they are idle, and made again."""

from __future__ import annotations

from typing import Any

from migratory_simulation.process import Process
from migratory_simulation.scripted import ScriptedCluster, Steps, schedule

IDLE: dict[str, Any] = {"topics": 3, "window": 6.0, "give_up": 1.5, "max_age": 0.3, "topic_idle": 0.5, "publishers": 0}


def _publish(cluster: ScriptedCluster, topics: tuple[str, ...], most: int, *, everywhere: bool = True) -> Steps:
    """Let a new publisher publish up to `most` messages on each topic, and wait until they are acknowledged and, with
    `everywhere`, committed at every broker. The script ends if that takes too long."""
    publisher = cluster.newcomer(*topics)
    for topic in topics:
        for _ in range(cluster.random.randint(1, most)):
            publisher.publish(topic, qos=cluster.random.choice((0, 1)), final=True)
            yield cluster.random.choice((0.0, 0.02))
    yield cluster.until(lambda: publisher.ready, 8.0, "publisher that is served")
    if everywhere:
        yield cluster.until(lambda: _committed_everywhere(cluster), 8.0, "commit at every broker")


def _committed_everywhere(cluster: ScriptedCluster) -> bool:
    """Return whether all brokers hold the same logs of group 0, and all of them is committed."""
    ends = [
        {name: (log.last, log.committed) for name, log in process.replica(0).topics.items()}
        for process in cluster.others()
    ]
    return all(end == ends[0] and all(last == mark for last, mark in end.values()) for end in ends)


def _removal(cluster: ScriptedCluster) -> Steps:
    """Wait until the coordinator has written a record that removes topics. It is a violation if that does not happen in
    time."""
    yield cluster.expect(lambda: any(_removes(process) for process in cluster.others()), 60.0, "nothing is removed")


def _removes(process: Process) -> bool:
    """Return whether a broker is the owner of an epoch that removes topics, and has not activated it yet."""
    term = process.logic.groups[0].term
    return term is not None and term.phase in ("syncing", "activating") and bool(process.replica(0).removed)


def _removed(cluster: ScriptedCluster) -> Steps:
    """Wait until no broker has a topic of group 0 any more. It is a violation if that does not happen in time."""
    yield cluster.expect(
        lambda: not any(process.replica(0).topics for process in cluster.others()), 60.0, "topics stay though idle"
    )


@schedule(600.0, **IDLE | {"max_age": 8.0})
def idle_topics(cluster: ScriptedCluster) -> Steps:
    """Topics of different lengths are removed, made again one after the other, and removed again."""
    yield from cluster.settled()
    topics = cluster.world.options.topics
    for _ in range(3):
        for topic in cluster.random.sample(topics, len(topics)):
            yield from _publish(cluster, (topic,), 9)
            if cluster.random.random() < 0.6:
                yield from _removed(cluster)
        cluster.random.choice(cluster.world.clients).toggle(cluster.random.choice(topics))
        yield from _removed(cluster)


@schedule(400.0, **IDLE | {"topic_idle": 12.0})
def topics_in_use(cluster: ScriptedCluster) -> Steps:
    """Topics whose publications and publishers are gone, and that are used again before they are idle, stay."""
    yield from cluster.settled()
    for _ in range(4):
        yield from _publish(cluster, cluster.world.options.topics, 3)
        yield cluster.random.uniform(7.0, 9.0)
    yield from _removed(cluster)


@schedule(400.0, **IDLE)
def removal_and_crash(cluster: ScriptedCluster) -> Steps:
    """The coordinator crashes while it removes topics, before or after others know of that, before or after the
    activation. One that does not know may become the candidate, because the other is without ZooKeeper. Then the topics
    are used again."""
    yield from cluster.settled()
    topics = cluster.world.options.topics
    for _ in range(3):
        yield from _publish(cluster, topics, 9)
        yield from _removal(cluster)
        one = cluster.owner()
        if one is None:
            return
        witness = cluster.random.choice(cluster.others(one))
        blind = [other for other in cluster.others(one) if other is not witness]
        hidden = cluster.random.random() < 0.4
        if hidden:
            cluster.block(one, *blind)  # these learn nothing of the removal
        if cluster.random.random() < 0.5:
            yield cluster.random.choice((0.0, 0.005, 0.02, 0.1, 0.4)) * cluster.random.random()
        else:  # before anybody learns of the activation
            yield cluster.until(lambda: (record := cluster.record()) is not None and record.activated, 4.0)
        if cluster.world.internal.may_lose(one):
            cluster.world.process_ends(one, "crash", restart=cluster.random.uniform(0.5, 6.0) * cluster.tempo)
            if hidden and cluster.random.random() < 0.5:
                cluster.cut_zookeeper(witness, expire=False)
                yield cluster.random.uniform(2.0, 8.0) * cluster.tempo
                cluster.restore_zookeeper(witness)
        elif hidden:
            cluster.unblock(one, *blind)
        if cluster.random.random() < 0.5:
            yield cluster.random.uniform(0.0, 12.0) * cluster.tempo
        yield from _publish(cluster, topics, 5)
        yield cluster.at_rest()


@schedule(400.0, **IDLE)
def removal_behind_a_link(cluster: ScriptedCluster) -> Steps:
    """A member is cut off while topics are removed and made again, and learns of both when it returns."""
    yield from cluster.settled()
    topics = cluster.world.options.topics
    for _ in range(2):
        yield from _publish(cluster, topics, 9)
        yield from _removal(cluster)
        one = cluster.owner()
        if one is None:
            return
        other = cluster.random.choice(cluster.others(one))
        yield cluster.random.choice((0.0, 0.01, 0.05))
        cluster.block(one, other)
        yield cluster.random.uniform(0.2, 3.0) * cluster.tempo
        yield from _publish(cluster, topics[:2], 4, everywhere=False)
        cluster.unblock(one, other)
        yield cluster.at_rest()
