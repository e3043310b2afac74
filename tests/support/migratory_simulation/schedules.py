"""The directed schedules: circumstances that rules speak of and that drawn plans bring about too rarely.

Each is a script (stage.py) on a small cluster without other faults; its seed draws the delays, the clients and the
moments. With right code all invariants hold in it; several of the planted faults are caught by nothing else soon.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import NamedTuple

from migratory_broker.core.logic.records import rendezvous
from migratory_protocol.topics import topic_group

from migratory_simulation.options import Options, draw_options
from migratory_simulation.process import Process
from migratory_simulation.stage import Script, Stage, Wait
from migratory_simulation.world import Report, World, run_seed

BROKERS = ("broker-0", "broker-1", "broker-2")
START = 40.0  # tempo seconds in which a cluster must have come up

Steps = Iterator[float | Wait]


class Schedule(NamedTuple):
    """`lasts`: tempo seconds until the world is healed. `safe`: no list may lose more than q - 1 in it."""

    script: Script
    lasts: float
    safe: bool = True
    copies: int = 2
    groups: int = 1
    publishers: int = 3
    subscribers: int = 2
    cache: int = 60
    client_queue: int = 1_000_000
    page: int = 65_536
    max_age: float = 600.0
    give_up: float = 8.0


def options_of(schedule: Schedule, seed: int) -> Options:
    """Three brokers, mostly with two copies; what the seed draws beside that (delays, clients, cache) stays."""
    drawn = draw_options(seed)
    tempo = 0.3
    return replace(
        drawn,
        tempo=tempo,
        brokers=BROKERS,
        min_copies=schedule.copies,
        groups=schedule.groups,
        topics=_topics(schedule.groups),
        messages_per_topic=schedule.cache,
        min_age=0.0,
        max_age=schedule.max_age,
        max_bytes=1_000_000,
        client_queue=schedule.client_queue,
        page=schedule.page,
        duplicate_window=120.0 * tempo,
        link_delay=min(drawn.link_delay, 0.02),
        zookeeper_delay=0.01,
        zookeeper_lag=0.0,
        publishers=schedule.publishers,
        subscribers=schedule.subscribers,
        rate=15.0,
        give_up=schedule.give_up * tempo,
        start_spread=0.2,
        faults_end=schedule.lasts * tempo,
        settle=6.0 * tempo,
        bound=60.0 * tempo,
        plan=replace(drawn.plan, safe=schedule.safe, faults=()),
    )


def _topics(groups: int) -> tuple[str, ...]:
    """One for each group."""
    names = (f"t{number}" for number in range(1000))
    found: dict[int, str] = {}
    while len(found) < groups:
        name = next(names)
        found.setdefault(topic_group(name, groups), name)
    return tuple(found.values())


# ---- takeovers with a tail that nobody adopted --------------------------------------------------------------------


def _leave_behind(stage: Stage) -> Generator[float | Wait, None, Process]:
    """The coordinator numbers on, alone: what it sends is held up. Then it is cut off whole, ZooKeeper gives it up, and
    the others take over, with it on their list because no link has been given up yet. Returns the one left behind."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
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
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield stage.random.uniform(0.5, 4.0) * stage.tempo
    yield stage.until(lambda: stage.coordinator() is not None, 10.0, "coordinator")
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
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield stage.random.uniform(0.5, 4.0) * stage.tempo
    yield stage.until(stage.all_ready, 10.0, "cluster that is at rest")
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
    yield stage.until(stage.all_ready, START, "cluster that is up")
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


def slow_first(stage: Stage) -> Steps:
    """The broker whose turn it is to write the first record reaches ZooKeeper slowly: the next one's turn comes, and
    both have read that there is none."""
    names = rendezvous(0, BROKERS)

    def registered() -> bool:
        return len(stage.others()) == len(BROKERS) and all(process.incarnation > 0 for process in stage.others())

    yield stage.until(registered, START, "brokers that are registered")
    slow = stage.world.process_of(names[0])
    assert slow is not None
    usual, slow.zk.delay = slow.zk.delay, stage.random.uniform(0.4, 1.4) * stage.tempo
    yield stage.until(lambda: stage.record() is not None, 20.0, "first record")
    yield 4.0 * stage.tempo
    slow.zk.delay = usual
    yield stage.expect(stage.all_ready, 30.0, "the cluster does not come up")


# ---- lives of brokers ---------------------------------------------------------------------------------------------


def replaced_while_serving(stage: Stage) -> Steps:
    """All three are replaced while they still run. Two of the old ones hear each other and have their clients, the
    third is alone: nothing is acknowledged by them when the new ones have begun a new history."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
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
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield stage.random.uniform(0.5, 3.0) * stage.tempo
    old = stage.random.choice(stage.others())
    stage.replace(old)
    yield stage.until(stage.all_ready, 40.0, "cluster with the new process")
    stage.restore_zookeeper(old)
    yield stage.expect(lambda: not old.running, 8.0, f"{old.label} hears ZooKeeper and did not end")


def rolling_restart(stage: Stage) -> Steps:
    """One broker after the other is restarted without a drain, each as soon as all say that they take clients."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    for name in (*BROKERS, *BROKERS):
        away = stage.random.choice([client for client in stage.world.clients if client.subscribes])
        away.toggle(away.subscribes[0])
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
    yield stage.until(stage.all_ready, START, "cluster that is up")
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


def member_dies(stage: Stage) -> Steps:
    """A broker dies that coordinates nothing: nobody waits for its session to end."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield stage.random.uniform(0.5, 3.0) * stage.tempo
    yield stage.until(stage.all_ready, 10.0, "cluster that is at rest")
    coordinator = stage.current()
    stage.crash(min(stage.others(coordinator), key=stage.clients_of), 10.0)
    yield 0.5 * stage.tempo  # what was under way
    committed = stage.committed(coordinator)
    text = "a member that coordinates nothing died, and nothing is committed any more"
    yield stage.expect(lambda: stage.committed(coordinator) > committed, 1.2, text)


def learner(stage: Stage) -> Steps:
    """A broker that was restarted, soon or late, learns and is not listed yet, when the coordinator's way to the one
    listed member is held up and then the coordinator dies: what the learner got counts for nothing."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield stage.random.uniform(0.5, 3.0) * stage.tempo
    yield stage.until(stage.all_ready, 10.0, "cluster that is at rest")
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
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield stage.random.uniform(0.5, 3.0) * stage.tempo
    yield stage.until(stage.all_ready, 10.0, "cluster that is at rest")
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
    yield stage.until(stage.all_ready, START, "cluster that is up")
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


# ---- cut off ------------------------------------------------------------------------------------------------------


def alone(stage: Stage) -> Steps:
    """A broker hears no other: its clients must not stay with it, though it reaches ZooKeeper."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield 5.0 * stage.tempo  # a broker that is just ready does not fence yet
    victim = max(stage.others(), key=stage.clients_of)
    stage.block(victim, *stage.others(victim))
    text = f"{victim.label} hears no other broker, and its clients did not go"
    yield stage.expect(lambda: not stage.clients_of(victim), 8.0, text)
    yield stage.tempo
    stage.unblock(victim, *stage.others(victim))
    yield stage.expect(stage.say_open, 9.0, "not every broker takes clients again")


def cut_contact(stage: Stage) -> Steps:
    """A contact broker is cut from the coordinator alone, which the third one hears: its clients must go."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield 5.0 * stage.tempo
    yield stage.until(lambda: stage.coordinator() is not None, 10.0, "coordinator")
    coordinator = stage.current()
    victim = max(stage.others(coordinator), key=stage.clients_of)
    stage.block(victim, coordinator)
    text = f"{victim.label} does not hear the coordinator, and its clients did not go"
    yield stage.expect(lambda: not stage.clients_of(victim), 10.0, text)


def zookeeper_away(stage: Stage) -> Steps:
    """No ZooKeeper for eight sessions: whoever publishes is answered all the time, and nobody's clients are sent
    away."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield 5.0 * stage.tempo
    yield stage.until(stage.all_ready, 10.0, "cluster that is at rest")
    stage.trace("ZooKeeper goes away")
    stage.world.ensemble.set_available(False)
    before = stage.world.coverage["fences"]
    for _ in range(16):
        committed = stage.committed(stage.current())

        def more(committed: int = committed) -> bool:
            return stage.committed(stage.current()) > committed

        yield stage.expect(more, 4.0, "ZooKeeper is away, and nothing is committed any more")
        yield 2.0 * stage.tempo
        fenced = stage.world.coverage["fences"] > before
        stage.demand(not fenced, "ZooKeeper is away, and a broker fenced itself")
    stage.world.ensemble.set_available(True)


# ---- resuming -----------------------------------------------------------------------------------------------------


def lagging_contact(stage: Stage) -> Steps:
    """One broker is told everything late, though soon enough to be waited for. Subscribers that come to it from another
    are ahead of it: they are not reset, and nothing is sent to them twice."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield stage.tempo
    yield stage.until(lambda: stage.coordinator() is not None, 10.0, "coordinator")
    coordinator = stage.current()
    late = stage.random.choice(stage.others(coordinator))
    stage.clog(coordinator, late, stage.random.uniform(0.8, 1.3))
    if stage.random.random() < 0.5:
        for other in stage.others(coordinator, late):
            stage.clog(coordinator, other, 0.4)
    for _ in range(12):
        yield stage.random.uniform(0.5, 2.5) * stage.tempo
        for process in stage.others(late):
            for edge in process.edges:
                for connection in list(edge.connections.values()):
                    connection.cut()
    reset = stage.world.coverage["resets inside a history"] > 0
    stage.demand(not reset, "a subscriber was reset though nothing was lost", invariant=2)


def missed_and_evicted(stage: Stage) -> Steps:
    """A broker is cut from the coordinator for a moment in which more is published than a cache holds: it takes the log
    whole, and its subscribers are told what they missed. Others come back to the topic after as long a time."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    for _ in range(3):
        yield 5.0 * stage.tempo
        yield stage.until(stage.all_ready, 10.0, "cluster that is at rest")
        coordinator = stage.current()
        late = stage.random.choice(stage.others(coordinator))
        stage.block(late, coordinator)
        if stage.random.random() < 0.5:
            stage.burst(12)
            stage.block(coordinator, *stage.others(coordinator), both=False)
            yield stage.tempo
            stage.unblock(coordinator, *stage.others(coordinator, late))
        readers = [client for client in stage.world.clients if client.subscribes]
        away = stage.random.choice(readers)
        away.toggle(away.subscribes[0])
        stage.burst(40)
        yield 3.0 * stage.tempo
        stage.unblock(late, coordinator)


def stalled_reader(stage: Stage) -> Steps:
    """Subscribers stop reading for a while, under load, and then read on: what waited comes whole and in order, or the
    connection ended and the client resumes."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield 2.0 * stage.tempo
    for _ in range(4):
        stalled = [client for client in stage.world.clients if client.subscribes and stage.random.random() < 0.7]
        for client in stalled:
            client.stall()
        for _ in range(4):
            stage.burst(8)
            yield 0.6 * stage.tempo
        for client in stalled:
            client.flow()
        yield 1.5 * stage.tempo


def memory_gone(stage: Stage) -> Steps:
    """Every broker ends at once, twice, while subscribers come and go: each history is another, and everybody is told
    so, those included that follow a topic in which nothing was published."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    for _ in range(2):
        for client in stage.world.clients:
            if client.subscribes and stage.random.random() < 0.5:
                client.toggle(stage.random.choice(client.subscribes))
        yield stage.random.uniform(0.5, 4.0) * stage.tempo
        for process in stage.others():
            stage.crash(process, stage.random.uniform(0.1, 1.0))
        yield stage.until(stage.all_ready, 40.0, "cluster that is up again")
        yield 2.0 * stage.tempo


def two_at_once(stage: Stage) -> Steps:
    """The coordinator and one more die at the same moment, with two copies of everything. The third cannot know what is
    missing: a new history begins, and its subscribers, who were connected all the time, are told so."""
    yield stage.until(stage.all_ready, START, "cluster that is up")
    yield stage.random.uniform(0.5, 3.0) * stage.tempo
    yield stage.until(lambda: stage.coordinator() is not None, 10.0, "coordinator")
    coordinator = stage.current()
    survivor = max(stage.others(coordinator), key=stage.clients_of)
    record = stage.record()
    for process in stage.others(survivor):
        stage.crash(process, stage.random.uniform(0.5, 2.0))

    def another_history() -> bool:
        now = stage.record()
        return now is not None and record is not None and now.history != record.history and now.activated

    yield stage.expect(another_history, 40.0, "no new history though the old one is lost")
    yield 4.0 * stage.tempo


ALL: dict[str, Schedule] = {
    "superseded tail": Schedule(superseded_tail, 25.0, publishers=4),
    "tail cut": Schedule(tail_cut, 30.0, publishers=4),
    "away for two epochs": Schedule(away_for_two_epochs, 30.0, publishers=4),
    "two coordinators": Schedule(two_coordinators, 25.0),
    "overtaken": Schedule(overtaken, 30.0),
    "overtaken early": Schedule(overtaken_early, 30.0),
    "slow first": Schedule(slow_first, 45.0),
    "lost reply": Schedule(lost_reply, 50.0),
    "two lives": Schedule(two_lives, 40.0, safe=False),
    "late answer": Schedule(late_answer, 30.0, cache=8, give_up=25.0),
    "replaced while serving": Schedule(replaced_while_serving, 45.0, safe=False),
    "newer life": Schedule(newer_life, 25.0, safe=False),
    "rolling restart": Schedule(rolling_restart, 60.0, cache=100_000),
    "member dies": Schedule(member_dies, 22.0),
    "learner": Schedule(learner, 35.0),
    "drain": Schedule(drain, 60.0, groups=3, publishers=2, subscribers=3),
    "alone": Schedule(alone, 25.0, subscribers=4),
    "cut contact": Schedule(cut_contact, 22.0, subscribers=4),
    "ZooKeeper away": Schedule(zookeeper_away, 60.0),
    "lagging contact": Schedule(lagging_contact, 40.0, subscribers=4),
    "missed and evicted": Schedule(missed_and_evicted, 50.0, cache=8, page=60, subscribers=4),
    "evicted by age": Schedule(missed_and_evicted, 50.0, cache=8, page=60, max_age=0.25, subscribers=4),
    "stalled reader": Schedule(stalled_reader, 30.0, subscribers=4),
    "stalled and cut": Schedule(stalled_reader, 30.0, subscribers=4, client_queue=3000),
    "two at once": Schedule(two_at_once, 60.0, safe=False, groups=2, publishers=1, subscribers=4),
    "only copy gone": Schedule(two_at_once, 60.0, safe=False, copies=1, groups=2, publishers=1, subscribers=4),
    "memory gone": Schedule(memory_gone, 70.0, safe=False, groups=2, publishers=2, subscribers=4, page=60),
}


def run_trial(schedule: str, seed: int, sink: Callable[[str], None] | None = None) -> Report:
    """A run of a schedule, or ("") of the plan that the seed draws."""
    if not schedule:
        return run_seed(seed, sink)
    chosen = ALL[schedule]

    def direct(world: World) -> None:
        Stage(world, schedule, chosen.script)

    return run_seed(seed, sink, options_of(chosen, seed), direct)
