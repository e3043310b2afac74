"""Scripts of directed runs: brokers that restart, are replaced, drain, or end together."""

from __future__ import annotations

from migratory_broker.core.logic.membership.records import GroupRecord, rendezvous

from migratory_simulation.process import Process
from migratory_simulation.scripted import BROKERS, POLL, START, ScriptedCluster, Steps, schedule


@schedule(45.0, safe=False)
def replaced_while_serving(cluster: ScriptedCluster) -> Steps:
    """New processes of all three brokers start while the old ones still run with their clients, cut off from
    ZooKeeper and from the new ones; two of the old processes still reach each other. The checkers check that no old
    process acknowledges anything once the new ones have begun a new history. In the end the old processes stop."""
    yield cluster.up()
    yield cluster.random.uniform(0.5, 3.0) * cluster.tempo
    old = cluster.others()
    alone = cluster.random.choice(old)
    record = cluster.record()
    cluster.replace(*old, together=tuple(process for process in old if process is not alone))
    yield cluster.next_record(record, 40.0)
    yield 8.0 * cluster.tempo
    for process in old:
        cluster.world.process_ends(process, "a replaced process ends")


@schedule(25.0, safe=False)
def newer_life(cluster: ScriptedCluster) -> Steps:
    """Start a new process of a broker while the old one still runs, cut off. The old process must end once it
    reaches ZooKeeper and learns of its newer incarnation."""
    yield cluster.up()
    yield cluster.random.uniform(0.5, 3.0) * cluster.tempo
    old = cluster.random.choice(cluster.others())
    cluster.replace(old)
    yield cluster.until(cluster.all_ready, 40.0, "cluster with the new process")
    cluster.restore_zookeeper(old)
    yield cluster.expect(lambda: not old.running, 8.0, f"{old.label} hears ZooKeeper and did not end")


@schedule(60.0, safe=False)
def lives_at_once(cluster: ScriptedCluster) -> Steps:
    """All brokers crash before they were ever ready. The next process of each hangs just after it has registered and
    requested its presence node; a further process starts and creates the node. Then the hanging one continues with
    what it read, a node of the same version. The newest processes must still become ready."""

    yield cluster.until(cluster.registered, START, "brokers that are registered")
    yield cluster.random.uniform(0.3, 1.0) * cluster.tempo
    for process in cluster.others():
        cluster.crash(process, 1.0)
    first = [cluster.world.start_process(name) for name in BROKERS]
    while not all(process.frozen for process in first):
        yield POLL
        for process in first:
            if process.incarnation > 0 and not process.frozen:
                process.freeze()
    for name in BROKERS:
        cluster.world.start_process(name)
    yield cluster.until(cluster.registered, 5.0, "newest lives")
    yield cluster.random.uniform(0.2, 1.0) * cluster.tempo
    for process in first:
        process.thaw()
    yield cluster.expect(cluster.all_ready, 50.0, "the newest lives take no clients")


@schedule(60.0, subscribers=8, messages_per_topic=100000)
def rolling_restart(cluster: ScriptedCluster) -> Steps:
    """One broker after the other restarts without a drain, each as soon as all report ready. Some subscribers leave
    their topic meanwhile and return to a broker that copied the log. No receipt may report a gap, because every
    cache holds everything."""
    yield cluster.up()
    for name in (*BROKERS, *BROKERS):
        for client in cluster.readers():
            if cluster.random.random() < 0.5:
                client.toggle(client.subscribes[0])
        yield cluster.expect(cluster.world.all_open, 15.0, "not every broker takes clients again")
        yield cluster.random.choice((0.0, 0.3, 1.0)) * cluster.tempo
        process = cluster.world.process_of(name)
        if process is not None and cluster.world.all_open():
            cluster.crash(process, cluster.random.uniform(0.1, 2.0))
        yield cluster.tempo
    lost = cluster.world.coverage["truncated"] > 0
    cluster.demand(not lost, "a subscriber was truncated though every cache holds all", invariant=1)


@schedule(60.0, groups=3, publishers=2, subscribers=3)
def drain(cluster: ScriptedCluster) -> Steps:
    """Drain a broker and start it again. Its groups must move to other brokers while it still runs, then its clients
    must leave. When it is back, each broker must coordinate a group again."""
    yield cluster.up()
    yield cluster.random.uniform(0.5, 3.0) * cluster.tempo
    groups = range(cluster.world.options.groups)
    yield cluster.until(lambda: None not in [cluster.coordinator(group) for group in groups], 10.0, "coordinators")
    leaving = max([cluster.current(group) for group in groups], key=lambda process: process.clients)
    leaving.drain(12.0 * cluster.tempo)

    def handed_over() -> bool:
        return all(cluster.coordinator(group) not in (None, leaving) for group in groups)

    yield cluster.expect(handed_over, 3.0, f"{leaving.label} drains and still coordinates")
    yield cluster.no_clients(leaving, 11.0)
    cluster.world.process_ends(leaving, "drained", restart=cluster.tempo)
    yield cluster.expect(cluster.all_ready, 15.0, "not all brokers are listed again after a drain")

    def even() -> bool:
        return len({cluster.coordinator(group) for group in groups}) == len(groups)

    yield cluster.expect(even, 15.0, "groups are not spread over the brokers again")


@schedule(70.0, min_copies=1, groups=2)
def only_copy_leaves(cluster: ScriptedCluster) -> Steps:
    """With minCopies 1, the coordinator drains while its messages are delayed, and ends as soon as it reports
    drained. The checkers check that its successor has its log."""
    for _ in range(3):
        yield cluster.up()
        yield cluster.coordinated()
        leaving = cluster.current()
        for other in cluster.others(leaving):
            cluster.clog(leaving, other, cluster.random.uniform(0.3, 1.0))
        yield cluster.random.uniform(2.0, 3.0) * cluster.tempo
        leaving.drain(10.0 * cluster.tempo)
        yield cluster.drained(leaving, 9.0)
        cluster.world.process_ends(leaving, "drained", restart=0.5 * cluster.tempo)
        yield cluster.tempo


@schedule(22.0)
def member_dies(cluster: ScriptedCluster) -> Steps:
    """A broker that coordinates no group crashes. The coordinator must continue to commit without waiting for the
    end of the broker's session."""
    yield from cluster.settled()
    coordinator = cluster.current()
    cluster.crash(min(cluster.others(coordinator), key=lambda process: process.clients), 10.0)
    yield 0.5 * cluster.tempo  # messages in flight
    yield cluster.commits(1.2, "a member that coordinates nothing died, and nothing is committed any more", coordinator)


@schedule(35.0)
def learner(cluster: ScriptedCluster) -> Steps:
    """A restarted broker has copied the log and is not listed yet, when the coordinator's link to the one listed
    member is blocked and then the coordinator crashes. The checkers check that entries that only the restarted
    broker got do not count as committed."""
    yield from cluster.settled()
    coordinator = cluster.current()
    member, restarted = cluster.others(coordinator)
    cluster.crash(restarted, cluster.random.choice((0.2, 6.0)))
    name = restarted.name

    def follows() -> bool:
        process = cluster.world.process_of(name)
        return process not in (None, restarted) and process is not None and cluster.synced(process) != 0

    yield cluster.until(follows, 12.0, "learner")
    cluster.block(coordinator, member, both=False)
    yield 0.4 * cluster.tempo
    if cluster.world.internal.may_lose(coordinator):
        cluster.crash(coordinator, 1.0)
    yield 3.0 * cluster.tempo
    cluster.unblock(coordinator, member)


@schedule(40.0, safe=False)
def two_lives(cluster: ScriptedCluster) -> Steps:
    """The coordinator and one member have what is committed; the third broker lags behind. The member restarts, then
    the coordinator crashes. The checkers check that the third broker does not continue alone, because the member's
    new incarnation has an empty log."""
    yield from cluster.settled()
    coordinator = cluster.current()
    member, lagging = cluster.random.sample(cluster.others(coordinator), 2)
    cluster.block(coordinator, lagging, both=False)
    yield cluster.commit(coordinator, 1.5, more=1)
    cluster.crash(member, 0.1)
    name = member.name

    def is_back() -> bool:
        process = cluster.world.process_of(name)
        return process is not None and process.incarnation > 0 and cluster.linked(lagging, process)

    yield cluster.until(is_back, 3.0, "new life of the member")
    cluster.crash(coordinator, 3.0)
    yield 14.0 * cluster.tempo


@schedule(30.0, messages_per_topic=8, give_up=25.0)
def late_answer(cluster: ScriptedCluster) -> Steps:
    """A publisher does not read its acknowledgement and sends the publication again, to another coordinator, after
    it was evicted from every cache. The checkers check that it is not numbered a second time."""
    yield cluster.up()
    topic = cluster.world.options.topics[0]
    unread = cluster.newcomer(topic)
    yield cluster.until(lambda: cluster.all_ready() and unread.ready, 10.0, "cluster that is at rest")
    coordinator = cluster.current()
    unread.stall()
    unread.publish(topic)
    cluster.burst(40)
    yield 1.2 * cluster.tempo
    cluster.crash(coordinator, 6.0)
    yield 8.0 * cluster.tempo
    unread.flow()
    yield 3.0 * cluster.tempo


@schedule(70.0, safe=False, groups=2, publishers=2, subscribers=4, page=60)
def memory_gone(cluster: ScriptedCluster) -> Steps:
    """All brokers crash at once, twice, while subscribers come and go and the machines' clocks change. The checkers
    check that every subscriber learns of each new history, also on topics without publications."""
    yield cluster.up()
    for _ in range(2):
        for name in BROKERS:
            cluster.world.wall_skews[name] = cluster.random.choice((-7200.0, -60.0, 0.0, 60.0))
        for client in cluster.readers():
            if cluster.random.random() < 0.5:
                client.toggle(cluster.random.choice(client.subscribes))
        yield cluster.random.uniform(0.5, 4.0) * cluster.tempo
        for process in cluster.others():
            cluster.crash(process, cluster.random.uniform(0.1, 1.0))
        yield cluster.until(cluster.all_ready, 40.0, "cluster that is up again")
        yield 2.0 * cluster.tempo


@schedule(70.0, min_copies=1)
def overtaken_leaves(cluster: ScriptedCluster) -> Steps:
    """With minCopies 1, the coordinator loses its session, and another broker writes a record and asks for the log
    late. Meanwhile the old coordinator learns from ZooKeeper that it was superseded, and drains. It has no group to
    hand over any more, but its log is still needed, and the checkers check that nothing is lost."""
    for _ in range(2):
        yield cluster.up()
        yield cluster.coordinated()
        leaving, before = cluster.current(), cluster.record()
        yield cluster.random.uniform(2.0, 3.0) * cluster.tempo
        for other in cluster.others(leaving):
            cluster.clog(other, leaving, cluster.random.uniform(1.0, 1.5))
        cluster.cut_zookeeper(leaving, expire=True)
        yield cluster.until(lambda before=before: cluster.record() != before, 10.0, "successor")  # type: ignore[misc]
        successor = cluster.record()
        for other in cluster.others(leaving):
            if successor is not None and other.name == successor.owner[0]:
                cluster.expire_session(other)  # else its ephemeral is all that there is to see
        cluster.restore_zookeeper(leaving)
        leaving.drain(10.0 * cluster.tempo)
        yield cluster.drained(leaving, 9.5)
        cluster.world.process_ends(leaving, "drained", restart=0.5 * cluster.tempo)
        yield cluster.tempo


@schedule(30.0, min_copies=1, topics=2, rate=50.0, messages_per_topic=4)
def hangs_in_a_turn(cluster: ScriptedCluster) -> Steps:
    """With minCopies 1 and small caches, messages to the coordinator are delayed, and it hangs for a moment, so that
    publications and confirmations of earlier ones arrive in one turn. It must then commit all of them."""
    for _ in range(6):
        yield cluster.up()
        yield cluster.coordinated()
        hanging = cluster.current()
        for other in cluster.others(hanging):
            cluster.clog(other, hanging, cluster.random.uniform(0.3, 1.0))
        yield cluster.random.uniform(0.5, 1.5) * cluster.tempo
        hanging.freeze()
        yield cluster.random.uniform(0.2, 0.8)
        hanging.thaw()
        yield cluster.no_tail(hanging)


@schedule(80.0)
def hung_loop(cluster: ScriptedCluster) -> Steps:
    """A process that is stopped as a whole, and one whose event loop hangs for short times, must not be ended by its
    watchdog. A coordinator whose loop hangs for ever must end although it keeps its session, and another broker must
    coordinate."""
    yield from cluster.settled()
    stopped = cluster.random.choice(cluster.others())
    stopped.freeze()
    yield cluster.random.uniform(3.5, 8.0) * cluster.tempo
    stopped.thaw()
    cluster.demand(stopped.running, f"{stopped.label} was stopped as a whole, and its watchdog ended it")
    yield cluster.tempo
    yield cluster.at_rest()
    standing = cluster.random.choice(cluster.others())
    for _ in range(5):
        standing.hang()
        yield cluster.random.uniform(0.4, 0.7) * standing.stall_limit
        standing.thaw()
        yield 0.2
        cluster.demand(standing.running, f"{standing.label} stood for short times, and its watchdog ended it")
    yield cluster.at_rest()
    yield cluster.coordinated()
    hung = cluster.current()
    hung.hang()

    def another() -> bool:
        return not hung.running and cluster.coordinator() not in (None, hung)

    yield cluster.expect(another, 12.0, f"{hung.label} hangs, and no other coordinates")
    yield cluster.expect(cluster.all_ready, 20.0, "not all brokers are listed again")


@schedule(100.0, safe=False, groups=2, publishers=1, subscribers=4)
@schedule(100.0, name="only copy gone", safe=False, min_copies=1, groups=2, publishers=1, subscribers=4)
def two_at_once(cluster: ScriptedCluster) -> Steps:
    """The coordinator and one more broker crash at the same moment, with two copies of everything. The third broker
    cannot know what is missing: a new history must begin within the limit. Then the same happens again with the same
    survivor, which must wait as long as the first time."""
    survivor = ""
    for _ in range(2):
        yield cluster.up()
        yield cluster.random.uniform(0.5, 3.0) * cluster.tempo
        yield cluster.coordinated()
        coordinator = cluster.current()
        survivor = survivor or max(cluster.others(coordinator), key=lambda process: process.clients).name
        record = cluster.record()
        for process in cluster.others():
            if process.name != survivor:
                cluster.crash(process, cluster.random.uniform(0.5, 2.0))

        def another_history(before: GroupRecord | None = record) -> bool:
            now = cluster.record()
            return now is not None and before is not None and now.history != before.history and now.activated

        if coordinator.name == survivor:
            return  # it holds whatever was committed
        yield cluster.expect(another_history, 40.0, "no new history though the old one is lost")
        yield 4.0 * cluster.tempo


@schedule(150.0, groups=2, publishers=0)
def idle(cluster: ScriptedCluster) -> Steps:
    """Without any publications, which would show a broker what has changed, all links break once and all brokers
    restart. Every broker must still be listed again and accept clients."""
    yield cluster.up()
    yield 2.0 * cluster.tempo
    for process in cluster.others():
        for other in cluster.others(process):
            cluster.world.network.break_link(process.number, other.number)
        yield cluster.tempo
        cluster.crash(process, 1.0)
        yield 6.0 * cluster.tempo
        yield cluster.expect(cluster.all_ready, 40.0, "nobody publishes, and not all brokers are listed again")
    yield cluster.coordinated()
    coordinator = cluster.current()
    for other in cluster.others(coordinator):
        cluster.world.network.break_link(coordinator.number, other.number)


@schedule(45.0)
def zookeeper_emptied(cluster: ScriptedCluster) -> Steps:
    """ZooKeeper comes back without its data. The records must be restored in the same history, and a coordinator that
    crashes afterwards must be taken over."""
    yield from _loses_data(cluster, None)


@schedule(45.0)
def zookeeper_rolled_back(cluster: ScriptedCluster) -> Steps:
    """ZooKeeper comes back with the data of before a takeover. The records must be restored in the same history, and a
    coordinator that crashes afterwards must be taken over."""
    cluster.world.ensemble.keep_backups()
    yield cluster.up()
    yield 3.0 * cluster.tempo
    old, before = cluster.current(), cluster.world.scheduler.now
    cluster.crash(old, 1.0)
    yield cluster.taken_over(old, 12.0)
    yield cluster.expect(cluster.all_ready, 20.0, "the crashed broker is not ready again")
    yield from _loses_data(cluster, cluster.world.scheduler.now - before)


@schedule(60.0)
def list_rolled_back(cluster: ScriptedCluster) -> Steps:
    """ZooKeeper comes back with the record of a list of two, one of which lacks entries that the later list of three
    has committed, and the other one crashes. By the old record the one that lacks them could take over by itself. It
    must notice that the record is older than the one that it has read, and restore that from both copies."""
    yield from _rolls_the_list_back(cluster, loses_data_first=False)


@schedule(60.0)
def backup_of_before_a_loss(cluster: ScriptedCluster) -> Steps:
    """As `list_rolled_back`, but ZooKeeper lost all its data in between, so that the backup is of an identity which the
    brokers have left. They must not take it for new data."""
    yield from _rolls_the_list_back(cluster, loses_data_first=True)


def _rolls_the_list_back(cluster: ScriptedCluster, *, loses_data_first: bool) -> Steps:
    """Do what `list_rolled_back` describes. With `loses_data_first`, let ZooKeeper lose all its data before it comes
    back with the old record."""
    ensemble = cluster.world.ensemble
    ensemble.keep_backups()
    yield from cluster.settled()
    away = cluster.random.choice(cluster.others(cluster.current()))
    cluster.crash(away, 9.0)
    yield cluster.until(
        lambda: (record := cluster.record()) is not None and record.activated and len(record.members) == 2, 12.0, "two"
    )
    yield cluster.tempo
    then = cluster.world.scheduler.now
    yield 0.5 * cluster.tempo
    yield cluster.until(cluster.all_ready, 20.0, "list of three")
    if loses_data_first:
        ensemble.set_available(False)
        yield 0.5 * cluster.tempo
        _come_back(cluster)
        yield cluster.expect(lambda: not cluster.world.internal.unrecorded, 12.0, "the records are not restored")
        yield cluster.coordinated()
        yield 2.0 * cluster.tempo
    owner = cluster.current()
    if owner.name == away.name:
        return
    (behind,) = [process for process in cluster.others(owner) if process.name != away.name]
    cluster.block(owner, behind)
    yield cluster.commit(owner, 1.0, 3)
    ensemble.set_available(False)
    cluster.crash(owner, 1.0)
    third = cluster.world.process_of(away.name)
    if third is not None:
        cluster.block(behind, third)
    yield 0.5 * cluster.tempo
    _come_back(cluster, cluster.world.scheduler.now - then)
    yield 6.0 * cluster.tempo
    if third is not None:
        cluster.unblock(behind, third)
    yield cluster.expect(lambda: not cluster.world.internal.unrecorded, 20.0, "the record is not restored")
    yield cluster.taken_over(owner, 12.0)
    yield cluster.commits(9.0, "nothing is committed after the rollback")


@schedule(60.0)
def resignation_rolled_back(cluster: ScriptedCluster) -> Steps:
    """A coordinator that no broker is linked to resigns, and ZooKeeper comes back with the data of before: the deleted
    ephemeral exists again, and its session lives. A broker that crashes then must still be listed again."""
    ensemble = cluster.world.ensemble
    ensemble.keep_backups()
    yield from cluster.settled()
    owner, then = cluster.current(), cluster.world.scheduler.now
    others = cluster.others(owner)
    for other in others:
        cluster.cut_zookeeper(other, expire=False)
    cluster.block(owner, *others)
    for other in others:
        cluster.world.network.break_link(owner.number, other.number)
    yield cluster.until(lambda: "/coordinators/0" not in ensemble.nodes, 12.0, "resigned")
    yield 0.2 * cluster.tempo  # until the owner knows that the ephemeral is deleted
    ensemble.set_available(False)
    _come_back(cluster, cluster.world.scheduler.now - then)
    for other in others:
        cluster.restore_zookeeper(other)
    cluster.unblock(owner, *others)
    yield cluster.tempo
    cluster.crash(cluster.random.choice(cluster.others(cluster.current())), 1.0)
    yield 6.0 * cluster.tempo
    yield cluster.expect(cluster.all_ready, 40.0, "the crashed broker is not listed again")


@schedule(60.0, safe=False)
def clock_set_back(cluster: ScriptedCluster) -> Steps:
    """All brokers end, and ZooKeeper loses its data, so that nobody knows the last epoch. The clock of the broker that
    writes the next first record was set back; its epoch must still be above the last one."""
    yield cluster.up()
    yield 2.0 * cluster.tempo
    world = cluster.world
    world.wall_skews[rendezvous(0, world.names)[0]] = -cluster.random.choice((30.0, 7200.0))
    world.ensemble.set_available(False)
    for process in cluster.others():
        cluster.crash(process, cluster.random.uniform(0.2, 2.0))
    _come_back(cluster)
    yield cluster.expect(cluster.all_ready, 50.0, "no new history though nothing of the old one is left")


@schedule(60.0, safe=False, min_copies=1)
def only_the_coordinator_left(cluster: ScriptedCluster) -> Steps:
    """ZooKeeper loses its data, and all brokers but the coordinator are replaced. No later epoch was activated without
    its promise, so that it must restore the record and go on."""
    yield from cluster.settled()
    owner, record = cluster.current(), cluster.record()
    cluster.world.ensemble.set_available(False)
    for process in cluster.others(owner):
        cluster.crash(process, 1.0)
    yield cluster.random.uniform(0.2, 2.0) * cluster.tempo
    _come_back(cluster)
    yield cluster.expect(lambda: not cluster.world.internal.unrecorded, 30.0, "the record is not restored")
    yield from _continued(cluster, record)


@schedule(60.0, safe=False, min_copies=1, link_delay=0.02)
def only_the_old_coordinator_left(cluster: ScriptedCluster) -> Steps:
    """The coordinator is taken over and gets no log of the new epoch, in which publications are committed. ZooKeeper
    loses its data, and all brokers but the old coordinator are replaced. It must not continue its epoch."""
    yield from cluster.settled()
    owner, before = cluster.current(), cluster.record()
    cluster.cut_zookeeper(owner, expire=True)
    replica = owner.replica(0)
    yield cluster.until(lambda: replica.promised > replica.synced, 12.0, "promise")
    for process in cluster.others(owner):
        cluster.block(process, owner, both=False)
    yield from _all_others_replaced(cluster, owner, before)


@schedule(60.0, safe=False)
def cut_off_coordinator_left(cluster: ScriptedCluster) -> Steps:
    """The coordinator is cut off and taken over without its promise. ZooKeeper loses its data, and all other brokers
    are replaced. It must not continue its epoch."""
    yield from cluster.settled()
    owner, before = cluster.current(), cluster.record()
    cluster.cut_zookeeper(owner, expire=True)
    cluster.block(owner, *cluster.others(owner))
    yield from _all_others_replaced(cluster, owner, before)


@schedule(60.0, link_delay=0.02)
def takeover_lost(cluster: ScriptedCluster) -> Steps:
    """ZooKeeper loses its data during a takeover, to whose epoch only the candidate is synced, and the candidate
    crashes once the record is restored from that epoch. The others must find out that it never was activated, and
    continue the epoch before it with all that was acknowledged."""
    yield from cluster.settled()
    owner, before = cluster.current(), cluster.record()
    cluster.cut_zookeeper(owner, expire=True)
    yield cluster.next_record(before)
    candidate, record = cluster.owner(), cluster.record()
    if candidate is None or record is None:
        return
    others = cluster.others(candidate)
    yield cluster.until(lambda: any(other.replica(0).promised == record.epoch for other in others), 2.0, "promise")
    cluster.block(candidate, *others, both=False)  # the Sync of the epoch
    cluster.world.ensemble.set_available(False)
    yield cluster.until(lambda: cluster.synced(candidate) == record.epoch, 2.0, "adopted log")
    cluster.restore_zookeeper(owner)
    _come_back(cluster)
    losses = [process.logic.identity for process in cluster.others()]
    yield cluster.until(lambda: all(identity.losses for identity in losses), 6.0, "broker that knows of the loss")
    for other in others:
        cluster.world.network.break_link(candidate.number, other.number)
        cluster.unblock(candidate, other)
    yield cluster.expect(lambda: not cluster.world.internal.unrecorded, 20.0, "the record is not restored")
    cluster.crash(candidate, 4.0)
    yield cluster.taken_over(candidate, 20.0)
    yield from _continued(cluster, before)


def _all_others_replaced(cluster: ScriptedCluster, old: Process, before: GroupRecord | None) -> Steps:
    """Let the group be taken over and publications be committed. Then empty ZooKeeper, replace all brokers but the
    `old` coordinator, and demand that they begin a new history."""
    yield cluster.until(
        lambda: (now := cluster.record()) != before and now is not None and now.activated, 12.0, "epoch"
    )
    yield cluster.taken_over(old, 6.0)
    yield cluster.commit(cluster.current(), 4.0, 2)
    cluster.world.ensemble.set_available(False)
    for process in cluster.others(old):
        cluster.crash(process, 1.0)
    cluster.restore_zookeeper(old)
    _come_back(cluster)
    yield cluster.expect(cluster.all_ready, 50.0, "no new history though the last epoch is lost")


def _come_back(cluster: ScriptedCluster, age: float | None = None) -> None:
    """Let ZooKeeper, which is away, come back without its data or, with `age`, with data of that many seconds ago."""
    ensemble = cluster.world.ensemble
    ensemble.lose_data(age)
    cluster.world.internal.data_lost()
    ensemble.set_available(True)


def _continued(cluster: ScriptedCluster, record: GroupRecord | None) -> Steps:
    """Demand that the history of `record` goes on, with publications that are committed."""
    new = cluster.record()
    continued = record is not None and new is not None and new.history == record.history
    cluster.demand(continued, "the history was not continued", invariant=1)
    yield cluster.coordinated()
    yield cluster.commits(9.0, "nothing is committed after the loss")


def _loses_data(cluster: ScriptedCluster, age: float | None) -> Steps:
    """Let ZooKeeper lose its data, or go back by `age` seconds, and crash the coordinator after the records are
    restored."""
    yield cluster.up()
    yield cluster.coordinated()
    record = cluster.record()
    cluster.world.ensemble.set_available(False)
    yield cluster.random.uniform(0.2, 2.0) * cluster.tempo
    _come_back(cluster, age)
    yield cluster.expect(lambda: not cluster.world.internal.unrecorded, 12.0, "the records are not restored")
    yield from _continued(cluster, record)
    yield cluster.expect(cluster.all_ready, 9.0, "not every broker is ready")
    yield cluster.coordinated()
    old = cluster.current()
    cluster.crash(old, 1.0)
    yield cluster.taken_over(old, 12.0)
    yield cluster.commits(9.0, "nothing is committed after the takeover")
