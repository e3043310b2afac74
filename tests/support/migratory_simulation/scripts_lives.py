"""Scripts of directed schedules: brokers that are restarted, replaced, drained, or die together."""

from __future__ import annotations

from migratory_broker.core.logic.records import GroupRecord

from migratory_simulation.stage import BROKERS, POLL, START, Stage, Steps


def replaced_while_serving(stage: Stage) -> Steps:
    """All three are replaced while they still run. Two of the old ones hear each other and have their clients, the
    third is alone: nothing is acknowledged by them when the new ones have begun a new history."""
    yield stage.up()
    yield stage.random.uniform(0.5, 3.0) * stage.tempo
    old = stage.others()
    alone = stage.random.choice(old)
    record = stage.record()
    stage.replace(*old, together=tuple(process for process in old if process is not alone))
    yield stage.until(lambda: stage.record() != record, 40.0, "new history")
    yield 8.0 * stage.tempo
    for process in old:
        stage.world.process_ends(process, "a replaced process ends")


def newer_life(stage: Stage) -> Steps:
    """A broker is replaced while it runs, cut off. When it hears of its newer life it ends."""
    yield stage.up()
    yield stage.random.uniform(0.5, 3.0) * stage.tempo
    old = stage.random.choice(stage.others())
    stage.replace(old)
    yield stage.until(stage.all_ready, 40.0, "cluster with the new process")
    stage.restore_zookeeper(old)
    yield stage.expect(lambda: not old.running, 8.0, f"{old.label} hears ZooKeeper and did not end")


def lives_at_once(stage: Stage) -> Steps:
    """All brokers die before they were ever ready. The next process of each hangs when it is registered and has asked
    for its ephemeral; one more is started, and makes it. Then the first goes on from what it read, a node with the same
    version: the newest are there for each other all the same."""

    yield stage.until(stage.registered, START, "brokers that are registered")
    yield stage.random.uniform(0.3, 1.0) * stage.tempo
    for process in stage.others():
        stage.crash(process, 1.0)
    first = [stage.world.start_process(name) for name in BROKERS]
    while not all(process.frozen for process in first):
        yield POLL
        for process in first:
            if process.incarnation > 0 and not process.frozen:
                process.freeze()
    for name in BROKERS:
        stage.world.start_process(name)
    yield stage.until(stage.registered, 5.0, "newest lives")
    yield stage.random.uniform(0.2, 1.0) * stage.tempo
    for process in first:
        process.thaw()
    yield stage.expect(stage.all_ready, 50.0, "the newest lives take no clients")


def rolling_restart(stage: Stage) -> Steps:
    """One broker after the other is restarted without a drain, each as soon as all say that they take clients. Some
    subscribers are away from the topic meanwhile, and come back to a broker that got the log by its Sync."""
    yield stage.up()
    for name in (*BROKERS, *BROKERS):
        for client in stage.world.clients:
            if client.subscribes and stage.random.random() < 0.5:
                client.toggle(client.subscribes[0])
        yield stage.expect(stage.say_open, 15.0, "not every broker takes clients again")
        yield stage.random.choice((0.0, 0.3, 1.0)) * stage.tempo
        process = stage.world.process_of(name)
        if process is not None and stage.say_open():
            stage.crash(process, stage.random.uniform(0.1, 2.0))
        yield stage.tempo
    lost = stage.world.coverage["truncated"] > 0
    stage.demand(not lost, "a subscriber was truncated though every cache holds all", invariant=1)


def drain(stage: Stage) -> Steps:
    """A planned stop: the groups go to others while the broker still runs, then its clients go by themselves. When it
    is back, groups go back to it."""
    yield stage.up()
    yield stage.random.uniform(0.5, 3.0) * stage.tempo
    groups = range(stage.world.options.groups)
    yield stage.until(lambda: None not in [stage.coordinator(group) for group in groups], 10.0, "coordinators")
    leaving = max([stage.current(group) for group in groups], key=stage.clients_of)
    leaving.drain(12.0 * stage.tempo)

    def handed_over() -> bool:
        return all(stage.coordinator(group) not in (None, leaving) for group in groups)

    yield stage.expect(handed_over, 3.0, f"{leaving.label} drains and still coordinates")
    gone = stage.expect(lambda: not stage.clients_of(leaving), 11.0, f"{leaving.label} drains and still has clients")
    yield gone
    stage.world.process_ends(leaving, "drained", restart=stage.tempo)
    yield stage.expect(stage.all_ready, 15.0, "not all brokers are listed again after a drain")

    def even() -> bool:
        return len({stage.coordinator(group) for group in groups}) == len(groups)

    yield stage.expect(even, 15.0, "groups are not spread over the brokers again")


def only_copy_leaves(stage: Stage) -> Steps:
    """One copy of everything. The coordinator drains, and what it sends comes late. It ends as soon as it says that it
    is drained, and whoever goes on must have its log."""
    for _ in range(3):
        yield stage.up()
        yield stage.coordinated()
        leaving = stage.current()
        for other in stage.others(leaving):
            stage.clog(leaving, other, stage.random.uniform(0.3, 1.0))
        yield stage.random.uniform(2.0, 3.0) * stage.tempo
        leaving.drain(10.0 * stage.tempo)
        drained = stage.expect(lambda leaving=leaving: leaving.logic.drained, 9.0, f"{leaving.label} is never drained")  # type: ignore[misc]
        yield drained
        stage.world.process_ends(leaving, "drained", restart=0.5 * stage.tempo)
        yield stage.tempo


def member_dies(stage: Stage) -> Steps:
    """A broker dies that coordinates nothing: nobody waits for its session to end."""
    yield from stage.settled()
    coordinator = stage.current()
    stage.crash(min(stage.others(coordinator), key=stage.clients_of), 10.0)
    yield 0.5 * stage.tempo  # what was under way
    committed = stage.committed(coordinator)
    text = "a member that coordinates nothing died, and nothing is committed any more"
    yield stage.expect(lambda: stage.committed(coordinator) > committed, 1.2, text)


def learner(stage: Stage) -> Steps:
    """A broker that was restarted, soon or late, learns and is not listed yet, when the coordinator's way to the one
    listed member is held up and then the coordinator dies: what the learner got counts for nothing."""
    yield from stage.settled()
    coordinator = stage.current()
    member, restarted = stage.others(coordinator)
    stage.crash(restarted, stage.random.choice((0.2, 6.0)))
    name = restarted.name

    def follows() -> bool:
        process = stage.world.process_of(name)
        return process not in (None, restarted) and process is not None and stage.synced(process) != 0

    yield stage.until(follows, 12.0, "learner")
    stage.block(coordinator, member, both=False)
    yield 0.4 * stage.tempo
    if stage.world.probe.may_lose(coordinator):
        stage.crash(coordinator, 1.0)
    yield 3.0 * stage.tempo
    stage.unblock(coordinator, member)


def two_lives(stage: Stage) -> Steps:
    """What the coordinator and one member hold is committed, the third lags behind. The member is restarted, then the
    coordinator dies: the member's new life has nothing, and the third alone must not go on from less."""
    yield from stage.settled()
    coordinator = stage.current()
    member, lagging = stage.random.sample(stage.others(coordinator), 2)
    stage.block(coordinator, lagging, both=False)
    committed = stage.committed(coordinator)
    yield stage.until(lambda: stage.committed(coordinator) > committed + 1, 1.5, "commit without the third")
    stage.crash(member, 0.1)
    name = member.name

    def is_back() -> bool:
        process = stage.world.process_of(name)
        return process is not None and process.incarnation > 0 and stage.linked(lagging, process)

    yield stage.until(is_back, 3.0, "new life of the member")
    stage.crash(coordinator, 3.0)
    yield 14.0 * stage.tempo


def late_answer(stage: Stage) -> Steps:
    """A publisher does not read its answer, and so sends again what was evicted from every cache meanwhile, to another
    coordinator than numbered it: it must not be numbered once more."""
    yield stage.up()
    topic = stage.world.options.topics[0]
    unread = stage.newcomer(topic)
    yield stage.until(lambda: stage.all_ready() and unread.ready, 10.0, "cluster that is at rest")
    coordinator = stage.current()
    unread.stall()
    unread.publish(topic)
    stage.burst(40)
    yield 1.2 * stage.tempo
    stage.crash(coordinator, 6.0)
    yield 8.0 * stage.tempo
    unread.flow()
    yield 3.0 * stage.tempo


def memory_gone(stage: Stage) -> Steps:
    """Every broker ends at once, twice, while subscribers come and go: each history is another, and everybody is told
    so, those included that follow a topic in which nothing was published. The machines' clocks were set meanwhile."""
    yield stage.up()
    for _ in range(2):
        for name in BROKERS:
            stage.world.wall_skews[name] = stage.random.choice((-7200.0, -60.0, 0.0, 60.0))
        for client in stage.world.clients:
            if client.subscribes and stage.random.random() < 0.5:
                client.toggle(stage.random.choice(client.subscribes))
        yield stage.random.uniform(0.5, 4.0) * stage.tempo
        for process in stage.others():
            stage.crash(process, stage.random.uniform(0.1, 1.0))
        yield stage.until(stage.all_ready, 40.0, "cluster that is up again")
        yield 2.0 * stage.tempo


def overtaken_leaves(stage: Stage) -> Steps:
    """One copy of everything. The coordinator loses its session, another broker writes a record, and asks for the log
    late. Meanwhile the first one learns from ZooKeeper that it is overtaken, and drains: it has nothing to hand over
    any more, and its log is wanted all the same."""
    for _ in range(2):
        yield stage.up()
        yield stage.coordinated()
        leaving, before = stage.current(), stage.record()
        yield stage.random.uniform(2.0, 3.0) * stage.tempo
        for other in stage.others(leaving):
            stage.clog(other, leaving, stage.random.uniform(1.0, 1.5))
        stage.cut_zookeeper(leaving, expire=True)
        yield stage.until(lambda before=before: stage.record() != before, 10.0, "successor")  # type: ignore[misc]
        successor = stage.record()
        for other in stage.others(leaving):
            if successor is not None and other.name == successor.owner[0]:
                stage.expire_session(other)  # else its ephemeral is all that there is to see
        stage.restore_zookeeper(leaving)
        leaving.drain(10.0 * stage.tempo)
        drained = stage.expect(lambda leaving=leaving: leaving.logic.drained, 9.5, f"{leaving.label} is never drained")  # type: ignore[misc]
        yield drained
        stage.world.process_ends(leaving, "drained", restart=0.5 * stage.tempo)
        yield stage.tempo


def hangs_in_a_turn(stage: Stage) -> Steps:
    """One copy of everything, small caches. What the coordinator is sent comes late, and it hangs for a moment: then
    publications come, and between them what others confirm of earlier ones, all in one turn. All of it is committed."""
    for _ in range(6):
        yield stage.up()
        yield stage.coordinated()
        hanging = stage.current()
        for other in stage.others(hanging):
            stage.clog(other, hanging, stage.random.uniform(0.3, 1.0))
        yield stage.random.uniform(0.5, 1.5) * stage.tempo
        hanging.freeze()
        yield stage.random.uniform(0.2, 0.8)
        hanging.thaw()
        none = stage.expect(lambda hanging=hanging: not stage.tail(hanging), 3.0, f"{hanging.label} commits no more")  # type: ignore[misc]
        yield none


def two_at_once(stage: Stage) -> Steps:
    """The coordinator and one more die at the same moment, with two copies of everything. The third cannot know what is
    missing: a new history begins, and its subscribers, who were connected all the time, are told so. Then the same once
    more, and the same one survives: it waits as long as the first time."""
    survivor = ""
    for _ in range(2):
        yield stage.up()
        yield stage.random.uniform(0.5, 3.0) * stage.tempo
        yield stage.coordinated()
        coordinator = stage.current()
        survivor = survivor or max(stage.others(coordinator), key=stage.clients_of).name
        record = stage.record()
        for process in stage.others():
            if process.name != survivor:
                stage.crash(process, stage.random.uniform(0.5, 2.0))

        def another_history(before: GroupRecord | None = record) -> bool:
            now = stage.record()
            return now is not None and before is not None and now.history != before.history and now.activated

        if coordinator.name == survivor:
            return  # it holds whatever was committed
        yield stage.expect(another_history, 40.0, "no new history though the old one is lost")
        yield 4.0 * stage.tempo


def idle(stage: Stage) -> Steps:
    """Nobody publishes, so nothing that is sent for a publication's sake tells a broker how things stand: it is listed
    and takes clients again all the same, after a new link and after a restart."""
    yield stage.up()
    yield 2.0 * stage.tempo
    for process in stage.others():
        for other in stage.others(process):
            stage.world.network.break_link(process.number, other.number)
        yield stage.tempo
        stage.crash(process, 1.0)
        yield 6.0 * stage.tempo
        yield stage.expect(stage.all_ready, 40.0, "nobody publishes, and not all brokers are listed again")
    yield stage.coordinated()
    coordinator = stage.current()
    for other in stage.others(coordinator):
        stage.world.network.break_link(coordinator.number, other.number)
