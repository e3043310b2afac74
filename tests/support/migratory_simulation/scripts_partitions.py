"""Scripts of directed runs: brokers that are cut off; subscribers that are ahead of their broker, behind it, or do
not read."""

from __future__ import annotations

from migratory_simulation.clients import Client
from migratory_simulation.process import EdgeProcess
from migratory_simulation.scripted import ScriptedCluster, Steps, schedule


@schedule(25.0, subscribers=4)
def alone(cluster: ScriptedCluster) -> Steps:
    """Cut one broker from all others, but not from ZooKeeper. It must lose all its clients, and after the cut all
    brokers must accept clients again."""
    yield cluster.up()
    yield 5.0 * cluster.tempo  # a broker does not fence itself right after it became ready
    victim = max(cluster.others(), key=lambda process: process.clients)
    cluster.block(victim, *cluster.others(victim))
    text = f"{victim.label} hears no other broker, and its clients did not go"
    yield cluster.expect(lambda: not victim.clients, 8.0, text)
    yield cluster.tempo
    cluster.unblock(victim, *cluster.others(victim))
    yield cluster.expect(cluster.world.all_open, 9.0, "not every broker takes clients again")


@schedule(90.0, groups=2)
@schedule(90.0, name="cut and quiet", groups=2, publishers=0)
def cut_coordinator(cluster: ScriptedCluster) -> Steps:
    """Cut a coordinator from all others, but not from ZooKeeper, after the others have restarted. Another broker
    must take over all its groups, and with the links back it must be listed again. In the run "cut and quiet"
    nothing is published, so that no failing commit but only fencing can make it give up its groups."""
    yield cluster.up()
    groups = range(cluster.world.options.groups)
    yield cluster.coordinated()
    for other in cluster.others(cluster.current()):
        cluster.crash(other, 1.0)
        yield 3.0 * cluster.tempo
        yield cluster.until(cluster.all_ready, 20.0, "cluster that is listed anew")
    yield 5.0 * cluster.tempo
    yield cluster.until(lambda: all(cluster.coordinator(group) is not None for group in groups), 10.0, "coordinators")
    old = cluster.current(groups[-1])
    cluster.block(old, *cluster.others(old))

    def another() -> bool:
        return all(cluster.coordinator(group) not in (None, old) for group in groups)

    yield cluster.expect(another, 14.0, f"{old.label} is cut off, and no other coordinates")
    cluster.unblock(old, *cluster.others(old))
    yield cluster.expect(cluster.all_ready, 20.0, "not all brokers are listed again")


@schedule(22.0, subscribers=4)
def cut_contact(cluster: ScriptedCluster) -> Steps:
    """Cut a contact broker from the coordinator, while the third broker still reaches both. All clients of the
    contact broker must leave it."""
    yield cluster.up()
    yield 5.0 * cluster.tempo
    yield cluster.coordinated()
    coordinator = cluster.current()
    victim = max(cluster.others(coordinator), key=lambda process: process.clients)
    cluster.block(victim, coordinator)
    text = f"{victim.label} does not hear the coordinator, and its clients did not go"
    yield cluster.expect(lambda: not victim.clients, 10.0, text)


@schedule(60.0, name="ZooKeeper away")
def zookeeper_away(cluster: ScriptedCluster) -> Steps:
    """Stop ZooKeeper for eight session timeouts. Publications must be acknowledged all the time, and no broker may
    fence itself."""
    yield cluster.up()
    yield 5.0 * cluster.tempo
    yield cluster.at_rest()
    cluster.trace("ZooKeeper goes away")
    cluster.world.ensemble.set_available(False)
    before = cluster.fences()
    for _ in range(16):
        yield cluster.commits(4.0, "ZooKeeper is away, and nothing is committed any more")
        yield 2.0 * cluster.tempo
        cluster.demand(cluster.fences() == before, "ZooKeeper is away, and a broker fenced itself")
    cluster.world.ensemble.set_available(True)


@schedule(40.0, subscribers=4)
def lagging_contact(cluster: ScriptedCluster) -> Steps:
    """Messages of the coordinator reach one broker late, but within the time that a resume waits. Subscribers that
    come to this broker from another one are ahead of it. None of them may be reset."""
    yield cluster.up()
    yield cluster.tempo
    yield cluster.coordinated()
    coordinator = cluster.current()
    late = cluster.random.choice(cluster.others(coordinator))
    cluster.clog(coordinator, late, cluster.random.uniform(0.8, 1.3))
    if cluster.random.random() < 0.5:
        for other in cluster.others(coordinator, late):
            cluster.clog(coordinator, other, 0.4)
    for _ in range(12):
        yield cluster.random.uniform(0.5, 2.5) * cluster.tempo
        for process in cluster.others(late):
            process.drop_clients()
    reset = cluster.world.coverage["resets inside a history"] > 0
    cluster.demand(not reset, "a subscriber was reset though nothing was lost", invariant=2)


@schedule(50.0, messages_per_topic=8, page=60, subscribers=4)
@schedule(50.0, name="evicted by age", messages_per_topic=8, page=60, max_age=0.25, subscribers=4)
def missed_and_evicted(cluster: ScriptedCluster) -> Steps:
    """Cut a broker from the coordinator while more is published than a cache holds; also let a subscriber leave its
    topic for as long. The checkers then check the copied log and that subscribers learn what they missed."""
    yield cluster.up()
    for _ in range(3):
        yield 5.0 * cluster.tempo
        yield cluster.at_rest()
        coordinator = cluster.current()
        late = cluster.random.choice(cluster.others(coordinator))
        cluster.block(late, coordinator)
        if cluster.random.random() < 0.5:
            cluster.burst(12)
            cluster.block(coordinator, *cluster.others(coordinator), both=False)
            yield cluster.tempo
            cluster.unblock(coordinator, *cluster.others(coordinator, late))
        away = cluster.random.choice(cluster.readers())
        away.toggle(away.subscribes[0])
        cluster.burst(40)
        yield 3.0 * cluster.tempo
        cluster.unblock(late, coordinator)


@schedule(30.0, subscribers=4)
@schedule(30.0, name="stalled and cut", subscribers=4, client_queue=3000)
def stalled_reader(cluster: ScriptedCluster) -> Steps:
    """Subscribers stop reading under load for a while. The checkers check that the buffered publications arrive
    complete and in order, or that the connection ends and the client resumes."""
    yield cluster.up()
    yield 2.0 * cluster.tempo
    for _ in range(4):
        stalled = [client for client in cluster.readers() if cluster.random.random() < 0.7]
        for client in stalled:
            client.stall()
        for _ in range(4):
            cluster.burst(8)
            yield 0.6 * cluster.tempo
        for client in stalled:
            client.flow()
        yield 1.5 * cluster.tempo


@schedule(40.0, subscribers=4, page=60, high_water=100)
def stalled_replay(cluster: ScriptedCluster) -> Steps:
    """A subscriber that returns to a topic stops reading as its replay of many pages begins, and reads again later.
    The checkers check that the replay continues then."""
    yield cluster.up()
    yield 2.0 * cluster.tempo
    for _ in range(4):
        yield cluster.at_rest()
        client = cluster.random.choice(cluster.readers())
        topic = client.subscribes[0]
        client.toggle(topic)
        cluster.burst(30)
        yield cluster.until(lambda client=client, topic=topic: topic in client.follows, 10.0, "subscriber that is back")  # type: ignore[misc]
        client.stall()
        yield cluster.tempo
        client.flow()
        yield 2.0 * cluster.tempo


@schedule(60.0, subscribers=4)
def others_go_on(cluster: ScriptedCluster) -> Steps:
    """Crash one of three brokers for a long time. The two others must commit, must not fence themselves, and must
    not lose their clients."""
    yield cluster.up()
    yield 5.0 * cluster.tempo  # a broker does not fence itself right after it became ready
    yield cluster.at_rest()
    others = cluster.others()
    victim = cluster.random.choice(others)
    others.remove(victim)
    before = cluster.fences()
    stays = {connection.number for process in others for connection in process.connections}
    cluster.crash(victim, 30.0)
    yield 10.0 * cluster.tempo
    for _ in range(6):
        yield cluster.coordinated()
        yield cluster.commits(4.0, "one of three is dead, and nothing is committed any more")
        yield 2.0 * cluster.tempo
        cluster.demand(cluster.fences() == before, "one of three is dead, and another fenced itself")
    stayed = {connection.number for process in others for connection in process.connections}
    cluster.demand(stays <= stayed, f"connections {sorted(stays - stayed)} of brokers that live ended")


@schedule(60.0, on_history_loss="halt")
def halting_goes_on(cluster: ScriptedCluster) -> Steps:
    """Under `halt`, ZooKeeper is down and a broker crashes. The others must commit and must not fence themselves,
    because no broker can have been replaced without their knowledge."""
    yield cluster.up()
    yield 5.0 * cluster.tempo
    yield cluster.at_rest()
    coordinator = cluster.current()
    before = cluster.fences()
    cluster.world.ensemble.set_available(False)
    cluster.crash(cluster.random.choice(cluster.others(coordinator)), 1.0)
    yield 0.5 * cluster.tempo  # messages in flight
    for _ in range(8):
        yield cluster.commits(
            4.0, "ZooKeeper and one of three are away, and nothing is committed any more", coordinator
        )
        yield 2.0 * cluster.tempo
        cluster.demand(cluster.fences() == before, "under `halt` ZooKeeper is away, and a broker fenced itself")
    cluster.world.ensemble.set_available(True)


@schedule(40.0, topics=2, publishers=1, give_up=1.5, window=6.0)
def quiet_in_one(cluster: ScriptedCluster) -> Steps:
    """A publisher continues on one topic of a group and is silent on another for longer than the duplicate window.
    The checkers check that brokers forget the publisher on the silent topic alone, and none before the coordinator."""
    yield cluster.up()
    yield cluster.coordinated()
    topics = cluster.world.options.topics
    client = cluster.newcomer(*topics)
    yield cluster.until(lambda: client.core.connected, 10.0, "publisher")
    client.publish(topics[0])
    for _ in range(60):
        client.publish(topics[1])
        yield 0.25 * cluster.tempo


@schedule(40.0, subscribers=4)
def came_back(cluster: ScriptedCluster) -> Steps:
    """The coordinator crashes and returns before its session ends, and the takeover is slow. One broker learns of
    the return only from the third broker: it has no link to the new process, and cannot reach ZooKeeper. No broker
    may fence itself."""
    yield cluster.up()
    yield 6.0 * cluster.tempo
    yield cluster.at_rest()
    dead = cluster.current()
    contact, third = cluster.random.sample(cluster.others(dead), 2)
    before = cluster.fences()
    cluster.cut_zookeeper(contact, expire=False)
    cluster.crash(dead, 1.0)
    yield cluster.until(lambda: len(cluster.others(dead)) == 3, 2.0, "new process")
    fresh = next(process for process in cluster.others(contact, third))
    cluster.block(fresh, contact)
    yield cluster.until(lambda: cluster.linked(fresh, third), 2.0, "link to the new process")
    for process in (fresh, third):
        process.zk.delay = cluster.random.uniform(0.6, 1.0) * cluster.tempo
    for _ in range(20):
        yield 0.15 * cluster.tempo
        cluster.demand(
            cluster.fences() == before, "a returning coordinator is heard by one other, and a broker fenced itself"
        )
    cluster.restore_zookeeper(contact)
    cluster.unblock(fresh, contact)


@schedule(50.0, brokers=5, min_copies=3, publishers=10, subscribers=16, weights=())
def former_word(cluster: ScriptedCluster) -> Steps:
    """With five brokers and minCopies 3, the coordinator and one more broker are cut off together, and the others
    continue in the next epoch. Subscribers that come from the others to these two are ahead of them, and must not be
    reset, although the former coordinator still considers itself the coordinator."""
    yield cluster.up()
    yield 5.0 * cluster.tempo
    yield cluster.at_rest()
    former = cluster.current()
    others = cluster.others(former)
    beside = cluster.random.choice(others)
    others.remove(beside)
    cluster.cut_zookeeper(former, expire=True)
    cluster.cut_zookeeper(beside, expire=False)  # so that it does not take over first
    for one in (former, beside):
        cluster.block(one, *others)
    yield cluster.until(lambda: cluster.coordinator() in others, 3.0, "takeover")
    committed = cluster.committed(cluster.current())
    yield cluster.until(lambda: cluster.committed(cluster.current()) > committed + 3, 2.5, "commits of the next epoch")
    for process in others:
        process.drop_clients()
    yield 6.0 * cluster.tempo
    reset = cluster.world.coverage["resets inside a history"] > 0
    cluster.demand(not reset, "a subscriber was reset though nothing was lost", invariant=2)


@schedule(60.0, subscribers=8, edges=2)
def two_edges(cluster: ScriptedCluster) -> Steps:
    """Two I/O processes of one broker have subscribers of a topic. The subscribers of one process leave the topic
    for a while and return. The checkers check that publications reach the other process meanwhile, and both
    afterwards."""
    yield cluster.up()
    for _ in range(6):
        yield cluster.until(lambda: _shared(cluster) != [], 15.0, "broker with subscribers at both edges")
        for client in _readers(cluster, cluster.random.choice(_shared(cluster))):
            client.toggle(client.subscribes[0])
        yield cluster.random.uniform(2.0, 4.0) * cluster.tempo


def _shared(cluster: ScriptedCluster) -> list[EdgeProcess]:
    """Return the edges of those brokers that have subscribers on more than one edge; an empty list if there are
    none."""
    busy = [[edge for edge in process.edges if _readers(cluster, edge)] for process in cluster.others()]
    return [edge for edges in busy if len(edges) > 1 for edge in edges]


def _readers(cluster: ScriptedCluster, edge: EdgeProcess) -> list[Client]:
    """Return the subscribing clients that are connected to the edge."""

    def is_here(client: Client) -> bool:
        connections = [link.connection for link in client.links.values()]
        return any(connection is not None and connection.edge is edge for connection in connections)

    return [client for client in cluster.readers() if is_here(client)]
