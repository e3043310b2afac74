"""Scripts of directed schedules: takeovers, and what a coordinator that was left behind brings with it."""

from __future__ import annotations

from collections.abc import Generator

from migratory_broker.core.logic.records import rendezvous

from migratory_simulation.process import Process
from migratory_simulation.stage import BROKERS, START, Stage, Steps, Wait


def _leave_behind(stage: Stage) -> Generator[float | Wait, None, Process]:
    """The coordinator numbers on, alone: what it sends is held up. Then it is cut off whole, ZooKeeper gives it up, and
    the others take over, with it on their list because no link has been given up yet. Returns the one left behind."""
    yield stage.up()
    unknown = stage.newcomer(stage.world.options.topics[0])
    yield stage.random.uniform(0.5, 4.0) * stage.tempo
    yield stage.until(lambda: stage.coordinator() is not None and unknown.ready, 10.0, "coordinator")
    first = stage.current()
    length = stage.random.choice((2, 4, 6))
    stage.block(first, *stage.others(first), both=False)
    unknown.publish(unknown.publishes[0])
    yield stage.until(lambda: stage.tail(first) >= length, 1.2, "tail")
    stage.block(first, *stage.others(first))
    stage.cut_zookeeper(first, expire=True)
    yield stage.until(lambda: stage.coordinator() not in (None, first), 8.0, "takeover")
    return first


def superseded_tail(stage: Stage) -> Steps:
    """The one left behind never gets the Sync of the new epoch, though it is listed there. Then the new coordinator
    dies, and the superseded tail is among the answers to the next candidate: it must count for nothing."""
    first = yield from _leave_behind(stage)
    second = stage.current()
    (third,) = stage.others(first, second)
    begun = stage.committed(second)
    yield stage.until(lambda: stage.committed(second) > begun, 6.0, "commit of the new epoch")
    stage.crash(second, 8.0)
    stage.unblock(first, third)
    stage.restore_zookeeper(first)
    yield stage.until(lambda: stage.coordinator() not in (None, second), 20.0, "second takeover")


def tail_cut(stage: Stage) -> Steps:
    """The one left behind takes the new epoch's Sync, which cuts its tail, table and all. At once the new coordinator
    dies, before the publishers have sent again what was in the tail: nothing of it may be remembered."""
    first = yield from _leave_behind(stage)
    second = stage.current()
    stage.unblock(first, *stage.others(first))
    stage.restore_zookeeper(first)
    yield stage.until(lambda: stage.synced(first) == stage.synced(second), 12.0, "Sync of the one left behind")
    yield stage.random.choice((0.0, 0.0, 0.3)) * stage.tempo
    stage.crash(second, 8.0)
    yield stage.until(lambda: stage.coordinator() not in (None, second), 20.0, "second takeover")
    yield 6.0 * stage.tempo


def away_for_two_epochs(stage: Stage) -> Steps:
    """The one left behind comes back when the epoch after it is over as well: nothing of its log can be trusted to
    agree with what is the source now."""
    first = yield from _leave_behind(stage)
    second, record = stage.current(), stage.record()
    begun = stage.committed(second)
    yield stage.until(lambda: stage.committed(second) > begun, 6.0, "commit of the new epoch")
    session = second.zk.session
    if session is not None:
        stage.world.ensemble.expire(session.number)
    yield stage.until(lambda: stage.coordinator() is not None and stage.record() != record, 12.0, "third epoch")
    stage.unblock(first, *stage.others(first))
    stage.restore_zookeeper(first)
    yield stage.until(lambda: stage.synced(first) == stage.synced(second), 12.0, "Sync of the one left behind")


def two_coordinators(stage: Stage) -> Steps:
    """ZooKeeper gives the coordinator up, which does not hear of it and goes on sending; the others promise a higher
    epoch. From then on nothing more may be committed in the old one."""
    yield stage.up()
    yield stage.random.uniform(0.5, 4.0) * stage.tempo
    yield stage.coordinated()
    old, record = stage.current(), stage.record()
    for other in stage.others(old):
        stage.block(other, old, both=False)
    stage.cut_zookeeper(old, expire=True)
    yield stage.until(lambda: stage.record() != record, 3.0, "next record")
    taken = stage.record()
    candidate = None if taken is None else stage.world.process_of(taken.owner[0])
    if candidate is not None:
        for other in stage.others(old, candidate):
            stage.clog(candidate, other, 1.5)
    yield 2.0 * stage.tempo
    stage.unblock(old, *stage.others(old))
    stage.restore_zookeeper(old)
    yield 6.0 * stage.tempo


def _overtake(stage: Stage, *, adopted: bool) -> Steps:
    """A candidate's session ends between its record and its activation, and another one writes the next record."""
    yield from stage.settled(4.0)
    before = stage.record()
    stage.crash(stage.current(), 6.0)
    yield stage.until(lambda: stage.record() != before, 12.0, "next record")
    record = stage.record()
    candidate = None if record is None else stage.world.process_of(record.owner[0])
    if record is None or candidate is None or candidate.zk.session is None:
        return
    if adopted:
        yield stage.until(lambda: stage.synced(candidate) == record.epoch, 2.0, "adopted log")
    for other in stage.others(candidate):
        stage.clog(other, candidate, stage.random.uniform(0.8, 1.6))
    stage.world.ensemble.expire(candidate.zk.session.number)
    yield 8.0 * stage.tempo


def overtaken(stage: Stage) -> Steps:
    """The first candidate has adopted its log; the confirmations that it waits for come when it was overtaken."""
    yield from _overtake(stage, adopted=True)


def overtaken_early(stage: Stage) -> Steps:
    """The first candidate has not got its promises yet, and nobody may ask its list."""
    yield from _overtake(stage, adopted=False)


def lost_reply(stage: Stage) -> Steps:
    """A candidate's record is written, and its connection to ZooKeeper breaks before it hears so. It must find out, or
    nobody ever coordinates the group."""
    yield stage.up()
    for _ in range(2):
        yield stage.random.uniform(1.0, 3.0) * stage.tempo
        yield stage.until(stage.all_ready, 30.0, "cluster that is at rest")
        record = stage.record()
        stage.crash(stage.current(), 6.0)
        yield stage.until(lambda record=record: stage.record() != record, 12.0, "next record")  # type: ignore[misc]
        written = stage.record()
        owner = None if written is None else stage.world.process_of(written.owner[0])
        if owner is not None:
            owner.zk.lose_connection()
        yield stage.expect(lambda: stage.coordinator() is not None, 20.0, "nobody coordinates after a lost reply")


def lost_activation(stage: Stage) -> Steps:
    """Four brokers. An epoch is activated, and its owner's connection to ZooKeeper breaks before it hears so; when it
    can ask again, the two others of its list have been replaced, so that it may not activate anything."""
    yield from stage.settled()
    before, old = stage.record(), stage.current()
    stage.crash(old, 20.0)
    yield stage.until(lambda: stage.coordinator() is not None and stage.record() != before, 12.0, "activated epoch")
    owner, record = stage.current(), stage.record()
    stage.cut_zookeeper(owner, expire=False)
    names = [other.name for other in stage.others(owner)]
    for other in stage.others(owner):
        stage.crash(other, 0.1)

    def replaced() -> bool:
        found = [stage.world.process_of(name) for name in names]
        return all(process is not None and process.incarnation > 1 for process in found)

    yield stage.until(replaced, 3.0, "new lives of the others")
    stage.restore_zookeeper(owner)
    yield stage.expect(lambda: stage.record() != record, 15.0, "nothing follows on an epoch whose owner lost the reply")


def slow_first(stage: Stage) -> Steps:
    """The broker whose turn it is to write the first record reaches ZooKeeper slowly: the next one's turn comes, and
    both have read that there is none."""
    names = rendezvous(0, BROKERS)

    yield stage.until(stage.registered, START, "brokers that are registered")
    slow = stage.world.process_of(names[0])
    assert slow is not None
    usual, slow.zk.delay = slow.zk.delay, stage.random.uniform(0.4, 1.4) * stage.tempo
    yield stage.until(lambda: stage.record() is not None, 20.0, "first record")
    yield 4.0 * stage.tempo
    slow.zk.delay = usual
    yield stage.expect(stage.all_ready, 30.0, "the cluster does not come up")


def late_word(stage: Stage) -> Steps:
    """Five brokers, three copies. A coordinator's word that its epoch is activated comes to one member late: that one
    took the Sync of the next epoch meanwhile, with a tail that only two hold, and which nobody has activated. The late
    word is about another epoch."""
    yield from stage.settled()
    before, given_up = stage.record(), stage.current()
    stage.cut_zookeeper(given_up, expire=True)
    yield stage.until(lambda: stage.record() != before, 12.0, "next record")
    record = stage.record()
    first = None if record is None else stage.world.process_of(record.owner[0])
    if record is None or first is None:
        return
    others = stage.others(first)
    yield stage.until(lambda: all(stage.synced(other) == record.epoch for other in others), 4.0, "Sync everywhere")
    # The next one in turn holds the tail.
    order = rendezvous(0, [process.name for process in others if process is not given_up])
    second, late, *_ = sorted(
        (process for process in others if process.name in order), key=lambda p: order.index(p.name)
    )
    rest = [process for process in others if process not in (second, late)]
    stage.clog(first, late, 1.8)
    yield stage.until(lambda: stage.coordinator() is first, 1.0, "activated epoch")
    begun = stage.committed(first)  # publishers find it only by brokers that were told
    yield stage.until(lambda: stage.committed(first) > begun, 1.0, "commit of the activated epoch")
    stage.block(first, *rest, both=False)
    yield stage.until(lambda: stage.tail(second) > 0, 1.0, "tail that two hold")
    stage.cut_zookeeper(first, expire=True)
    stage.block(second, first, both=False)
    yield stage.until(lambda: (now := stage.record()) is not None and now.epoch > record.epoch, 3.0, "next epoch")
    following = stage.record()
    if following is None or following.owner[0] != second.name:
        return
    yield stage.until(lambda: stage.synced(second) == following.epoch, 1.0, "adopted log")
    for other in rest:
        stage.block(other, second, both=False)  # it is confirmed by too few
    yield 4.0 * stage.tempo


def links_break(stage: Stage) -> Steps:
    """Five brokers, three copies. All but one member are told late, and the coordinator's link to that one breaks under
    load, again and again: the Sync over the new link brings what no third one holds yet."""
    yield stage.up()
    yield 2.0 * stage.tempo
    yield stage.at_rest()
    coordinator = stage.current()
    member = stage.random.choice(stage.others(coordinator))
    for other in stage.others(coordinator, member):
        stage.clog(coordinator, other, 0.6)
    for _ in range(8):
        stage.burst(6)
        yield 0.3 * stage.tempo
        stage.trace(f"the link between {coordinator.label} and {member.label} breaks")
        stage.world.network.break_link(coordinator.number, member.number)
        yield stage.random.uniform(0.5, 1.5) * stage.tempo
