"""Scripts of directed runs: takeovers, and the uncommitted entries of a coordinator that was cut off."""

from __future__ import annotations

from collections.abc import Generator

from migratory_broker.core.logic.membership.records import rendezvous
from migratory_protocol.positions import Position

from migratory_simulation.process import Process
from migratory_simulation.scripted import BROKERS, START, ScriptedCluster, Steps, Wait, schedule


def _leave_behind(cluster: ScriptedCluster) -> Generator[float | Wait, None, Process]:
    """Let the coordinator number publications that reach no other broker. Then cut it off and let its ZooKeeper session
    expire, so that another broker takes over with a list that still names it, because no link has been closed yet.
    Return the old coordinator, still cut off. The script ends if the cluster does not come that far in time."""
    yield cluster.up()
    unknown = cluster.newcomer(cluster.world.options.topics[0])
    yield cluster.random.uniform(0.5, 4.0) * cluster.tempo
    yield cluster.until(lambda: cluster.coordinator() is not None and unknown.ready, 10.0, "coordinator")
    first = cluster.current()
    length = cluster.random.choice((2, 4, 6))
    cluster.block(first, *cluster.others(first), both=False)
    unknown.publish(unknown.publishes[0])
    yield cluster.until(lambda: cluster.tail(first) >= length, 1.2, "tail")
    cluster.block(first, *cluster.others(first))
    cluster.cut_zookeeper(first, expire=True)
    yield cluster.taken_over(first, 8.0)
    return first


@schedule(25.0, publishers=4)
@schedule(25.0, name="made-up positions", publishers=4, messages_per_topic=4, probes=0.5)
def superseded_tail(cluster: ScriptedCluster) -> Steps:
    """The old coordinator never gets the Sync of the new epoch, though it is listed there. Then the new coordinator
    crashes. The old one answers the next candidate with its superseded entries, or is the candidate itself, because the
    third broker is without ZooKeeper. The checkers check that these entries do not count."""
    first = yield from _leave_behind(cluster)
    second = cluster.current()
    (third,) = cluster.others(first, second)
    yield cluster.commit(second, 6.0)
    cluster.crash(second, 8.0)
    cluster.unblock(first, third)
    cluster.restore_zookeeper(first)
    if cluster.random.random() < 0.5:
        cluster.cut_zookeeper(third, expire=False)
    yield cluster.taken_over(second, 20.0)
    cluster.restore_zookeeper(third)


@schedule(25.0, publishers=4)
def superseded_answer(cluster: ScriptedCluster) -> Steps:
    """The old coordinator is heard by brokers again before it hears ZooKeeper, and the new coordinator crashes. The old
    one cannot become a candidate, but answers one, with superseded entries that outnumber those committed since. The
    checkers check that its answer is not merged."""
    first = yield from _leave_behind(cluster)
    second = cluster.current()
    (third,) = cluster.others(first, second)
    yield cluster.commit(second, 6.0)
    cluster.unblock(first, third)
    yield cluster.until(lambda: cluster.linked(third, first), 6.0, "link to the one left behind")
    cluster.crash(second, 8.0)
    asked = cluster.world.coverage["answers below the source"]
    yield cluster.taken_over(second, 12.0)
    yield cluster.until(lambda: cluster.world.coverage["answers below the source"] > asked, 0.0, "answer")
    yield cluster.random.uniform(0.0, 3.0) * cluster.tempo
    cluster.restore_zookeeper(first)


@schedule(30.0, publishers=4)
@schedule(30.0, name="one tail of two cut", topics=2, publishers=4)
def tail_cut(cluster: ScriptedCluster) -> Steps:
    """The old coordinator gets the new epoch's Sync, which removes its uncommitted entries and their rows in the
    publisher table. Then the new coordinator crashes before publishers have sent those publications again. The
    checkers check that no broker treats the repeats as duplicates."""
    first = yield from _leave_behind(cluster)
    second = cluster.current()
    cluster.unblock(first, *cluster.others(first))
    cluster.restore_zookeeper(first)
    yield cluster.until(lambda: cluster.synced(first) == cluster.synced(second), 12.0, "Sync of the one left behind")
    yield cluster.random.choice((0.0, 0.0, 0.3)) * cluster.tempo
    cluster.crash(second, 8.0)
    yield cluster.taken_over(second, 20.0)
    yield 6.0 * cluster.tempo


@schedule(30.0, publishers=4)
def away_for_two_epochs(cluster: ScriptedCluster) -> Steps:
    """The old coordinator returns when the next epoch has ended as well, so that no part of its log is known to
    agree with the current one. It gets a Sync, after which the checkers compare its log."""
    first = yield from _leave_behind(cluster)
    second, record = cluster.current(), cluster.record()
    yield cluster.commit(second, 6.0)
    second.zk.expire_session()
    yield cluster.until(lambda: cluster.coordinator() is not None and cluster.record() != record, 12.0, "third epoch")
    cluster.unblock(first, *cluster.others(first))
    cluster.restore_zookeeper(first)
    yield cluster.until(lambda: cluster.synced(first) == cluster.synced(second), 12.0, "Sync of the one left behind")


@schedule(25.0)
def two_coordinators(cluster: ScriptedCluster) -> Steps:
    """ZooKeeper expires the session of the coordinator, which does not learn of it and continues to send; the others
    promise a higher epoch. The checkers check that nothing is committed in the old epoch from then on."""
    yield cluster.up()
    yield cluster.random.uniform(0.5, 4.0) * cluster.tempo
    yield cluster.coordinated()
    old, record = cluster.current(), cluster.record()
    for other in cluster.others(old):
        cluster.block(other, old, both=False)
    cluster.cut_zookeeper(old, expire=True)
    yield cluster.next_record(record, 3.0)
    candidate = cluster.owner()
    if candidate is not None:
        for other in cluster.others(old, candidate):
            cluster.clog(candidate, other, 1.5)
    yield 2.0 * cluster.tempo
    cluster.unblock(old, *cluster.others(old))
    cluster.restore_zookeeper(old)
    yield 6.0 * cluster.tempo


def _overtake(cluster: ScriptedCluster, *, adopted: bool) -> Steps:
    """Crash the coordinator, and end the next candidate's session between its record and its activation, so that
    another broker writes the record after that. With `adopted` the candidate has already adopted its log."""
    yield from cluster.settled(4.0)
    before = cluster.record()
    cluster.crash(cluster.current(), 6.0)
    yield cluster.next_record(before)
    record = cluster.record()
    candidate = cluster.owner()
    if record is None or candidate is None or candidate.zk.session is None:
        return
    if adopted:
        yield cluster.until(lambda: cluster.synced(candidate) == record.epoch, 2.0, "adopted log")
    for other in cluster.others(candidate):
        cluster.clog(other, candidate, cluster.random.uniform(0.8, 1.6))
    candidate.zk.expire_session()
    yield 8.0 * cluster.tempo


@schedule(30.0)
def overtaken(cluster: ScriptedCluster) -> Steps:
    """A candidate has adopted its log and is overtaken by another one; only then do the confirmations that it needs
    arrive. The checkers check that it activates nothing."""
    yield from _overtake(cluster, adopted=True)


@schedule(30.0)
def overtaken_early(cluster: ScriptedCluster) -> Steps:
    """A candidate is overtaken by another one before it has promises. The checkers check that the next candidate
    does not ask the members of a list that was never activated."""
    yield from _overtake(cluster, adopted=False)


@schedule(50.0)
def lost_reply(cluster: ScriptedCluster) -> Steps:
    """A candidate's record is written, and its connection to ZooKeeper breaks before the reply. Within the limit
    some broker must coordinate the group."""
    yield cluster.up()
    for _ in range(2):
        yield cluster.random.uniform(1.0, 3.0) * cluster.tempo
        yield cluster.until(cluster.all_ready, 30.0, "cluster that is at rest")
        record = cluster.record()
        cluster.crash(cluster.current(), 6.0)
        yield cluster.next_record(record)
        owner = cluster.owner()
        if owner is not None:
            owner.zk.lose_connection()
        yield cluster.expect(lambda: cluster.coordinator() is not None, 20.0, "nobody coordinates after a lost reply")


@schedule(50.0, safe=False, brokers=4)
def lost_activation(cluster: ScriptedCluster) -> Steps:
    """With four brokers, an epoch is activated, and its coordinator is cut from ZooKeeper. When it reaches ZooKeeper
    again, the two other members of its list have been replaced, so that its epoch must not continue: another record
    must follow."""
    yield from cluster.settled()
    before, old = cluster.record(), cluster.current()
    cluster.crash(old, 20.0)
    yield cluster.until(
        lambda: cluster.coordinator() is not None and cluster.record() != before, 12.0, "activated epoch"
    )
    owner, record = cluster.current(), cluster.record()
    cluster.cut_zookeeper(owner, expire=False)
    names = [other.name for other in cluster.others(owner)]
    for other in cluster.others(owner):
        cluster.crash(other, 0.1)

    def replaced() -> bool:
        found = [cluster.world.process_of(name) for name in names]
        return all(process is not None and process.incarnation > 1 for process in found)

    yield cluster.until(replaced, 3.0, "new lives of the others")
    cluster.restore_zookeeper(owner)
    yield cluster.expect(
        lambda: cluster.record() != record, 15.0, "nothing follows on an epoch whose owner lost the reply"
    )


@schedule(45.0)
def slow_first(cluster: ScriptedCluster) -> Steps:
    """The broker that should write the first record reaches ZooKeeper slowly, so that the next broker also tries,
    and both have read that there is no record. All brokers must become ready."""
    names = rendezvous(0, BROKERS)

    yield cluster.until(cluster.registered, START, "brokers that are registered")
    slow = cluster.world.process_of(names[0])
    assert slow is not None
    usual, slow.zk.delay = slow.zk.delay, cluster.random.uniform(0.4, 1.4) * cluster.tempo
    yield cluster.until(lambda: cluster.record() is not None, 20.0, "first record")
    yield 4.0 * cluster.tempo
    slow.zk.delay = usual
    yield cluster.expect(cluster.all_ready, 30.0, "the cluster does not come up")


@schedule(30.0, brokers=5, min_copies=3)
def late_word(cluster: ScriptedCluster) -> Steps:
    """With five brokers and minCopies 3, the notice that an epoch is activated reaches one member late. Meanwhile
    that member has got the Sync of the next epoch, with entries that only two brokers have and that are not
    committed. The checkers check that the late notice, which is about another epoch, commits nothing."""
    yield from cluster.settled()
    before, given_up = cluster.record(), cluster.current()
    cluster.cut_zookeeper(given_up, expire=True)
    yield cluster.next_record(before)
    record = cluster.record()
    first = cluster.owner()
    if record is None or first is None:
        return
    others = cluster.others(first)
    yield cluster.until(lambda: all(cluster.synced(other) == record.epoch for other in others), 4.0, "Sync everywhere")
    # The next candidate in turn holds the tail.
    order = rendezvous(0, [process.name for process in others if process is not given_up])
    second, late, *_ = sorted(
        (process for process in others if process.name in order), key=lambda p: order.index(p.name)
    )
    rest = [process for process in others if process not in (second, late)]
    cluster.clog(first, late, 1.8)
    yield cluster.until(lambda: cluster.coordinator() is first, 1.0, "activated epoch")
    yield cluster.commit(first, 1.0)  # publishers find it only through brokers that know of the activation
    cluster.block(first, *rest, both=False)
    yield cluster.until(lambda: cluster.tail(second) > 0, 1.0, "tail that two hold")
    cluster.cut_zookeeper(first, expire=True)
    cluster.block(second, first, both=False)
    yield cluster.until(lambda: (now := cluster.record()) is not None and now.epoch > record.epoch, 3.0, "next epoch")
    following = cluster.record()
    if following is None or following.owner[0] != second.name:
        return
    yield cluster.until(lambda: cluster.synced(second) == following.epoch, 1.0, "adopted log")
    for other in rest:
        cluster.block(other, second, both=False)  # too few brokers confirm it
    yield 4.0 * cluster.tempo


@schedule(40.0, brokers=5, min_copies=3)
def links_break(cluster: ScriptedCluster) -> Steps:
    """With five brokers and minCopies 3, the coordinator's messages reach all members but one late, and its link to
    that member breaks under load, again and again. The checkers check the Sync over each new link, which has entries
    that no third broker has yet."""
    yield cluster.up()
    yield 2.0 * cluster.tempo
    yield cluster.at_rest()
    coordinator = cluster.current()
    member = cluster.random.choice(cluster.others(coordinator))
    for other in cluster.others(coordinator, member):
        cluster.clog(coordinator, other, 0.6)
    for _ in range(8):
        cluster.burst(6)
        yield 0.3 * cluster.tempo
        cluster.trace(f"the link between {coordinator.label} and {member.label} breaks")
        cluster.world.network.break_link(coordinator.number, member.number)
        yield cluster.random.uniform(0.5, 1.5) * cluster.tempo


@schedule(30.0, window=6.0, give_up=1.5)
def undecided_for_a_window(cluster: ScriptedCluster) -> Steps:
    """ZooKeeper is away, and the coordinator's messages reach nobody for longer than the duplicate window. The checkers
    check that it forgets no publisher whose last publication it cannot commit. When the links are back, it must commit
    them all."""
    yield from cluster.settled()
    first = cluster.current()
    cluster.world.ensemble.set_available(False)
    cluster.block(first, *cluster.others(first), both=False)
    yield cluster.until(lambda: cluster.tail(first) > 0, 2.0, "tail")
    yield 9.0 * cluster.tempo
    cluster.unblock(first, *cluster.others(first))
    yield cluster.no_tail(first)
    cluster.world.ensemble.set_available(True)


@schedule(22.0, publishers=4, rate=40.0, link_delay=0.02, edges=1)
def steady_load(cluster: ScriptedCluster) -> Steps:
    """With so much load that some publications always wait for their commit, and no fault, nothing may change: the
    coordinator of the first epoch that lists all brokers keeps it."""
    yield from cluster.settled()
    record = cluster.record()
    yield 8.0 * cluster.tempo
    cluster.demand(cluster.record() == record, f"after {record} without a fault: {cluster.record()}")


@schedule(30.0)
def slow_way(cluster: ScriptedCluster) -> Steps:
    """Messages from a contact to the coordinator take longer and longer, in steps that no link notices. The checkers
    check that publishers are answered in time, though they send their publications again meanwhile."""
    yield from cluster.settled()
    coordinator = cluster.current()
    contact = max(cluster.others(coordinator), key=lambda process: process.clients)
    for step in range(1, 9):
        cluster.clog(contact, coordinator, 0.8 * step)
        yield 0.9 * cluster.tempo
    yield 7.0 * cluster.tempo


@schedule(45.0)
def ahead_without_coordinator(cluster: ScriptedCluster) -> Steps:
    """ZooKeeper is away and the coordinator is cut off, so that no coordinator is heard by a broker that is asked to
    continue ahead of its committed mark. The checkers check that it answers within the limit all the same."""
    yield from cluster.settled()
    coordinator = cluster.current()
    cluster.world.ensemble.set_available(False)
    cluster.block(coordinator, *cluster.others(coordinator))
    asked = cluster.others(coordinator)[0]
    asked.probe(cluster.world.options.topics[0], Position(cluster.synced(asked), cluster.committed(asked) + 1000))
    yield 33.0 * cluster.tempo
    cluster.world.ensemble.set_available(True)


@schedule(45.0)
def resigned_and_back(cluster: ScriptedCluster) -> Steps:
    """The coordinator is cut off from the other brokers, but not from ZooKeeper, and resigns. When all are listed
    again, its successor crashes, so that it becomes the coordinator again. It must stay that."""
    yield from cluster.settled()
    first = cluster.current()
    cluster.block(first, *cluster.others(first))
    yield cluster.taken_over(first, 12.0)
    cluster.unblock(first, *cluster.others(first))
    yield cluster.at_rest()
    second = cluster.current()
    cluster.crash(second, 12.0)
    yield cluster.until(lambda: cluster.coordinator() is first, 8.0, "return of the first coordinator")
    yield 3.0 * cluster.tempo
    cluster.demand(cluster.coordinator() is first, f"{first.label} lost the group again without a fault")


@schedule(25.0)
def asked_twice(cluster: ScriptedCluster) -> Steps:
    """The link between a candidate and the member that it needs breaks when the member has promised, and before its
    answer arrives. The checkers check that the member answers the repeated request."""
    yield from cluster.settled()
    before, old = cluster.record(), cluster.current()
    for one in cluster.others(old):
        for other in cluster.others(old, one):
            cluster.clog(one, other, 0.2)
    cluster.expire_session(old)
    cluster.crash(old, 8.0)
    yield cluster.next_record(before)
    record, candidate = cluster.record(), cluster.owner()
    if record is None or candidate is None:
        return
    (member,) = cluster.others(old, candidate)
    yield cluster.until(lambda: member.replica(0).promised == record.epoch, 2.0, "promise")
    cluster.world.network.break_link(candidate.number, member.number)
    yield cluster.expect(lambda: cluster.coordinator() is candidate, 1.9, "the repeated request is not answered")


def _restart_others(cluster: ScriptedCluster, coordinator: Process, copies: int) -> Steps:
    """Restart all brokers but the coordinator with `copies` as their `minCopies`, one after the other, as a rolling
    update that has come to its last broker."""
    for other in cluster.others(coordinator):
        cluster.world.copies[other.name] = copies
        cluster.crash(other, 0.3)
        yield cluster.tempo
        yield cluster.at_rest()


@schedule(70.0, brokers=5)
def copies_raised(cluster: ScriptedCluster) -> Steps:
    """Of five brokers, all but the coordinator run with minCopies 3 instead of 2. What it commits then is held by one
    more broker. It crashes, and that one is not heard. The checkers check that a candidate waits for it, as the list of
    the last epoch has two copies, and not three."""
    yield from cluster.settled()
    first = cluster.current()
    yield from _restart_others(cluster, first, 3)
    if cluster.coordinator() is not first:
        return
    holder, *rest = cluster.others(first)
    cluster.block(first, *rest, both=False)
    yield cluster.commit(holder, 1.0)
    cluster.block(holder, *rest)
    cluster.world.copies[first.name] = 3
    cluster.expire_session(first)  # so that the takeover begins while that broker is still linked
    cluster.crash(first, 10.0)
    yield 7.0 * cluster.tempo
    cluster.unblock(holder, *rest)
    yield cluster.expect(
        lambda: cluster.coordinator() not in (None, first), 15.0, "nobody coordinates after the change"
    )


@schedule(60.0, brokers=5, min_copies=3)
def copies_lowered(cluster: ScriptedCluster) -> Steps:
    """Of five brokers, all but the coordinator run with minCopies 2 instead of 3, and most of them are reached late.
    The checkers check that none of them delivers at its own accept, as the coordinator's list has three copies. In the
    end the last broker changes as well, and lists have two copies."""
    yield from cluster.settled()
    first = cluster.current()
    yield from _restart_others(cluster, first, 2)
    if cluster.coordinator() is not first:
        return
    for other in cluster.others(first)[1:]:
        cluster.clog(first, other, 0.6)
    yield 3.0 * cluster.tempo
    cluster.world.copies[first.name] = 2
    cluster.crash(first, 0.3)
    yield cluster.expect(
        lambda: (record := cluster.record()) is not None and record.activated and record.copies == 2,
        15.0,
        "no list has two copies",
    )
