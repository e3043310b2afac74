"""Scripts of directed schedules: brokers that are cut off; subscribers that are ahead, behind, or do not read."""

from __future__ import annotations

from migratory_simulation.clients import Client
from migratory_simulation.process import EdgeLife
from migratory_simulation.stage import Stage, Steps


def alone(stage: Stage) -> Steps:
    """A broker hears no other: its clients must not stay with it, though it reaches ZooKeeper."""
    yield stage.up()
    yield 5.0 * stage.tempo  # a broker that is just ready does not fence yet
    victim = max(stage.others(), key=stage.clients_of)
    stage.block(victim, *stage.others(victim))
    text = f"{victim.label} hears no other broker, and its clients did not go"
    yield stage.expect(lambda: not stage.clients_of(victim), 8.0, text)
    yield stage.tempo
    stage.unblock(victim, *stage.others(victim))
    yield stage.expect(stage.say_open, 9.0, "not every broker takes clients again")


def cut_coordinator(stage: Stage) -> Steps:
    """A coordinator that has re-listed is cut from all others, but not from ZooKeeper: it lets its groups go, and
    another one goes on. With the links back it is one among them again. Where nobody publishes it does not find out by
    what it cannot commit: there fencing alone makes it let go."""
    yield stage.up()
    groups = range(stage.world.options.groups)
    yield stage.coordinated()
    for other in stage.others(stage.current()):
        stage.crash(other, 1.0)
        yield 3.0 * stage.tempo
        yield stage.until(stage.all_ready, 20.0, "cluster that is listed anew")
    yield 5.0 * stage.tempo
    yield stage.until(lambda: all(stage.coordinator(group) is not None for group in groups), 10.0, "coordinators")
    old = stage.current(groups[-1])
    stage.block(old, *stage.others(old))

    def another() -> bool:
        return all(stage.coordinator(group) not in (None, old) for group in groups)

    yield stage.expect(another, 14.0, f"{old.label} is cut off, and no other coordinates")
    stage.unblock(old, *stage.others(old))
    yield stage.expect(stage.all_ready, 20.0, "not all brokers are listed again")


def cut_contact(stage: Stage) -> Steps:
    """A contact broker is cut from the coordinator alone, which the third one hears: its clients must go."""
    yield stage.up()
    yield 5.0 * stage.tempo
    yield stage.coordinated()
    coordinator = stage.current()
    victim = max(stage.others(coordinator), key=stage.clients_of)
    stage.block(victim, coordinator)
    text = f"{victim.label} does not hear the coordinator, and its clients did not go"
    yield stage.expect(lambda: not stage.clients_of(victim), 10.0, text)


def zookeeper_away(stage: Stage) -> Steps:
    """No ZooKeeper for eight sessions: whoever publishes is answered all the time, and nobody's clients are sent
    away."""
    yield stage.up()
    yield 5.0 * stage.tempo
    yield stage.at_rest()
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


def lagging_contact(stage: Stage) -> Steps:
    """One broker is told everything late, though soon enough to be waited for. Subscribers that come to it from another
    are ahead of it: they are not reset, and nothing is sent to them twice."""
    yield stage.up()
    yield stage.tempo
    yield stage.coordinated()
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
    yield stage.up()
    for _ in range(3):
        yield 5.0 * stage.tempo
        yield stage.at_rest()
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
    yield stage.up()
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


def stalled_replay(stage: Stage) -> Steps:
    """A subscriber that comes back to a topic stops reading as its replay begins, which has many pages: it goes on with
    them when it reads again."""
    yield stage.up()
    yield 2.0 * stage.tempo
    for _ in range(4):
        yield stage.at_rest()
        client = stage.random.choice([client for client in stage.world.clients if client.subscribes])
        topic = client.subscribes[0]
        client.toggle(topic)
        stage.burst(30)
        yield stage.until(lambda client=client, topic=topic: topic in client.follows, 10.0, "subscriber that is back")  # type: ignore[misc]
        client.stall()
        yield stage.tempo
        client.flow()
        yield 2.0 * stage.tempo


def others_go_on(stage: Stage) -> Steps:
    """One of three dies and stays away: the two others fence never, keep the clients that they have, and commit."""
    yield stage.up()
    yield 5.0 * stage.tempo  # a broker that is just ready does not fence yet
    yield stage.at_rest()
    others = stage.others()
    victim = stage.random.choice(others)
    others.remove(victim)
    before = stage.world.coverage["fences"]
    stays = {connection for process in others for edge in process.edges for connection in edge.connections}
    stage.crash(victim, 30.0)
    yield 10.0 * stage.tempo
    for _ in range(6):
        text = "one of three is dead, and nothing is committed any more"
        yield stage.coordinated()
        committed = stage.committed(stage.current())
        yield stage.expect(lambda committed=committed: stage.committed(stage.current()) > committed, 4.0, text)  # type: ignore[misc]
        yield 2.0 * stage.tempo
        stage.demand(stage.world.coverage["fences"] == before, "one of three is dead, and another fenced itself")
    stayed = {connection for process in others for edge in process.edges for connection in edge.connections}
    stage.demand(stays <= stayed, f"connections {sorted(stays - stayed)} of brokers that live ended")


def halting_goes_on(stage: Stage) -> Steps:
    """Under `halt`, ZooKeeper is away and a broker dies: nobody may have been replaced unseen, so the others go on."""
    yield stage.up()
    yield 5.0 * stage.tempo
    yield stage.at_rest()
    coordinator = stage.current()
    before = stage.world.coverage["fences"]
    stage.world.ensemble.set_available(False)
    stage.crash(stage.random.choice(stage.others(coordinator)), 1.0)
    yield 0.5 * stage.tempo  # what was under way
    for _ in range(8):
        committed = stage.committed(coordinator)
        text = "ZooKeeper and one of three are away, and nothing is committed any more"
        yield stage.expect(lambda committed=committed: stage.committed(coordinator) > committed, 4.0, text)  # type: ignore[misc]
        yield 2.0 * stage.tempo
        fenced = stage.world.coverage["fences"] > before
        stage.demand(not fenced, "under `halt` ZooKeeper is away, and a broker fenced itself")
    stage.world.ensemble.set_available(True)


def quiet_in_one(stage: Stage) -> Steps:
    """A publisher goes on in one topic of a group and is silent in another, for longer than the duplicate window: it is
    forgotten in the one, by everybody, and in no other."""
    yield stage.up()
    yield stage.coordinated()
    topics = stage.world.options.topics
    client = stage.newcomer(*topics)
    yield stage.until(lambda: client.core.connected, 10.0, "publisher")
    client.publish(topics[0])
    for _ in range(60):
        client.publish(topics[1])
        yield 0.25 * stage.tempo


def came_back(stage: Stage) -> Steps:
    """The coordinator dies and is back before its session ends. One broker hears of that from the third alone: it has
    no link to the new process, and ZooKeeper's news come late. What the dead one coordinated is in takeover, which is
    slow: nobody is fenced."""
    yield stage.up()
    yield 6.0 * stage.tempo
    yield stage.at_rest()
    dead = stage.current()
    contact, third = stage.random.sample(stage.others(dead), 2)
    before = stage.world.coverage["fences"]
    stage.cut_zookeeper(contact, expire=False)
    stage.crash(dead, 1.0)
    yield stage.until(lambda: len(stage.others(dead)) == 3, 2.0, "new process")
    fresh = next(process for process in stage.others(contact, third))
    stage.block(fresh, contact)
    yield stage.until(lambda: stage.linked(fresh, third), 2.0, "link to the new process")
    for process in (fresh, third):
        process.zk.delay = stage.random.uniform(0.6, 1.0) * stage.tempo
    for _ in range(20):
        yield 0.15 * stage.tempo
        fenced = stage.world.coverage["fences"] > before
        stage.demand(not fenced, "a coordinator that came back is heard by one other, and a broker fenced itself")
    stage.restore_zookeeper(contact)
    stage.unblock(fresh, contact)


def former_word(stage: Stage) -> Steps:
    """Five brokers, three copies. A coordinator and one more are cut off together, and the others go on in the next
    epoch. Subscribers that come from there to the two are ahead of them, and the former coordinator's word that it is
    one says nothing about that: they are not reset."""
    yield stage.up()
    yield 5.0 * stage.tempo
    yield stage.at_rest()
    former = stage.current()
    others = stage.others(former)
    beside = stage.random.choice(others)
    others.remove(beside)
    stage.cut_zookeeper(former, expire=True)
    for one in (former, beside):
        stage.block(one, *others)
    yield stage.until(lambda: stage.coordinator() in others, 3.0, "takeover")
    committed = stage.committed(stage.current())
    yield stage.until(lambda: stage.committed(stage.current()) > committed + 3, 1.0, "publications in the next epoch")
    for process in others:
        for edge in process.edges:
            for connection in list(edge.connections.values()):
                connection.cut()
    yield 6.0 * stage.tempo
    reset = stage.world.coverage["resets inside a history"] > 0
    stage.demand(not reset, "a subscriber was reset though nothing was lost", invariant=2)


def two_edges(stage: Stage) -> Steps:
    """Two I/O processes of one broker have subscribers of the topic. Those of one of them leave it for a while, and
    come back: what is published crosses to the other meanwhile, and to both from then on."""
    yield stage.up()
    for _ in range(6):
        yield stage.until(lambda: _shared(stage) != [], 15.0, "broker with subscribers at both edges")
        for client in _readers(stage, stage.random.choice(_shared(stage))):
            client.toggle(client.subscribes[0])
        yield stage.random.uniform(2.0, 4.0) * stage.tempo


def _shared(stage: Stage) -> list[EdgeLife]:
    """The edges of all brokers of which more than one edge has subscribers."""
    busy = [[edge for edge in process.edges if _readers(stage, edge)] for process in stage.others()]
    return [edge for edges in busy if len(edges) > 1 for edge in edges]


def _readers(stage: Stage, edge: EdgeLife) -> list[Client]:
    """The subscribers that are connected to it."""

    def is_here(client: Client) -> bool:
        connections = [link.connection for link in client.links.values()]
        return any(connection is not None and connection.edge is edge for connection in connections)

    return [client for client in stage.world.clients if client.subscribes and is_here(client)]
