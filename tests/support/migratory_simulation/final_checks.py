"""Checks after recovery: nothing leaked, all brokers agree, and clients are spread by the brokers' weights.

A leak or a silent disagreement breaks no promise at once, so no other check detects it: a publication that its contact
broker waits for without end, bytes that are counted twice, a publisher that only some brokers have forgotten.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from migratory_broker.core.edge.budget import SUBSCRIPTION_BYTES, topic_bytes
from migratory_broker.core.logic.membership.records import COORDINATORS, decode_group
from migratory_broker.core.logic.serving.answers import PENDING_BYTES
from migratory_broker.core.logic.status import describe_logic

from migratory_simulation.external_checker import Violation, key_of

if TYPE_CHECKING:
    from migratory_simulation.process import Process
    from migratory_simulation.world import World

ARRIVE = 8.0
"""Seconds, scaled by the run's tempo, that one round of client moves takes, arrivals included."""
EVEN = 40.0
"""Seconds, scaled by the run's tempo, in which no client may move any more: several rounds."""
MOST = 1.1
"""The largest multiple of its share of clients that a broker may have in the end. Fractions of a client are rounded
up."""
QUIET = 9.0
"""Seconds, scaled by the run's tempo, after which every time limit of a single request is over."""
REQUESTS = 12
"""The most requests to ZooKeeper in flight at an idle broker."""


def at_rest(world: World) -> bool:
    """Return whether all final checks pass now. Poll it: they may fail for a moment without any fault, as balancing
    hands groups over one at a time."""
    try:
        check(world)
    except Violation:
        return False
    return True


def check(world: World) -> None:
    """Check all brokers after recovery, and raise Violation: of invariant 7 when a broker is not idle or something
    leaked, of 5 for a wrong coordinator, of 3 for different logs, of 4 for different publisher tables."""
    processes = world.members()
    for process in processes:
        _check_logic(process)
        _check_edges(process)
        _check_client_count(process)
        _check_server_list(world, process)
    _check_client_shares(world)
    for group in range(world.options.groups):
        _check_group(world, processes, group)


def _fail(process: Process, text: str) -> None:
    raise Violation(7, f"{process.label} after recovery: {text}")


def _check_logic(process: Process) -> None:
    """Check that a broker's logic is ready and idle, everything in its logs is committed, and its counters match the
    logs and the publications that wait for answers. Raise Violation of invariant 7 otherwise."""
    logic = process.logic
    status = describe_logic(logic)
    for name, wanted in {
        "ready": True,
        "settled": True,
        "fenced": False,
        "waiting_groups": 0,
        "pending": 0,
        "replication_lag": 0,
    }.items():
        if status[name] != wanted:
            _fail(process, f"{name} is {status[name]}; status {status}")
    logs = [log for group in logic.groups for log in group.replica.topics.values()]
    if logic.cache.bytes != sum(log.bytes for log in logs) or logic.cache.topics != len(logs):
        _fail(process, f"{logic.cache.topics} topics and {logic.cache.bytes} bytes are counted, not what is there")
    for log in logs:
        if log.committed != log.last:
            _fail(process, f"{log.name} is committed up to {log.committed} of {log.last}")
    answers = logic.answers
    held = sum(PENDING_BYTES + len(payload) for _, payload in answers.pending.values())
    if answers.held != held:
        _fail(process, f"{answers.held} bytes of publications wait for answers, not {held}")
    if logic.resume.waiting:
        _fail(process, f"subscriptions wait: {logic.resume.waiting}")
    if len(logic.zookeeper._waiting) > REQUESTS:
        _fail(process, f"{len(logic.zookeeper._waiting)} requests to ZooKeeper have no answer")


def _check_edges(process: Process) -> None:
    """Check that a broker's edges are open and idle, hold no input or queued bytes, and that their counters match their
    connections and subscriptions. Raise Violation of invariant 7 otherwise."""
    for edge in process.edges:
        status = edge.core.status()
        for name, wanted in {
            "admission": "open",
            "draining": False,
            "replays": 0,
            "queue_bytes": 0,
            "input_bytes": 0,
            "paused": 0,
        }.items():
            if status[name] != wanted:
                _fail(process, f"edge {edge.number}: {name} is {status[name]}; status {status}")
        topics = [topic for connection in edge.connections.values() for topic in connection.client.follows]
        for name, count in {
            "connections": len(edge.connections),
            "clients": len(edge.connections),
            "subscriptions": len(topics),
            "topics": len(set(topics)),
            "subscription_bytes": SUBSCRIPTION_BYTES * len(topics) + sum(map(topic_bytes, set(topics))),
        }.items():
            if status[name] != count:
                _fail(process, f"edge {edge.number} counts {status[name]} {name} of {count}")


def _check_client_count(process: Process) -> None:
    """Check that the logic counts as many clients as the broker has. Raise Violation of invariant 7 otherwise."""
    if process.logic.client_balancer.clients != process.clients:
        _fail(process, f"it counts {process.logic.client_balancer.clients} clients of {process.clients}")


def _check_server_list(world: World, process: Process) -> None:
    """Check that the broker's server list has all configured brokers with their weights, and no others. Raise Violation
    of invariant 7 otherwise."""
    there = {(world.url(name), world.options.weight(name)) for name in world.names}
    told = {(server.url, server.weight) for server in process.servers.servers} if process.servers else set()
    if told != there:
        _fail(process, f"its server list is {sorted(told)}, not {sorted(there)}")


def clients_by_broker(world: World) -> dict[str, tuple[int, int]]:
    """Return (weight, number of clients) of each configured broker, by name."""
    found = {}
    for name in world.names:
        process = world.process_of(name)
        found[name] = (world.options.weight(name), 0 if process is None else process.clients)
    return found


def uneven(world: World) -> str:
    """Return as text why clients are not balanced: the number of connections is not that of clients, or a broker has
    more than its share. Return "" when all is even. `MOST` times the share is allowed, rounded up to a whole client."""
    found = clients_by_broker(world)
    weights = sum(weight for weight, _ in found.values())
    total = sum(clients for _, clients in found.values())
    if total != len(world.clients):
        return f"{total} connections of {len(world.clients)} clients: {found}"
    for process in world.members():
        weight, clients = found[process.name]
        share = total * weight / weights
        if clients > max(MOST * share, ceil(share)):
            why = process.logic.client_balancer.waits_for
            return f"{process.label} has {clients} clients, its share is {share:.2f}: {found}; moves wait for {why!r}"
    return ""


def _check_client_shares(world: World) -> None:
    """Check that no broker has more than its share of the clients, and raise Violation of invariant 7 otherwise. While
    brokers have two revisions, as after an abandoned rollout, check nothing: moves wait for its end."""
    if len({world.revision(name) for name in world.names}) == 1 and (text := uneven(world)):
        raise Violation(7, text)


def _check_group(world: World, processes: list[Process], group: int) -> None:
    """Check that a group has one coordinator with its ephemeral, and that all brokers are synced to its epoch with the
    same log and publisher table. Raise Violation otherwise."""
    record = decode_group(world.ensemble.nodes[f"/groups/{group}"].data)
    coordinating = [process for process in processes if (term := process.logic.groups[group].term) and term.active]
    if [process.identity for process in coordinating] != [tuple(record.owner)]:
        raise Violation(5, f"group {group}: {[process.label for process in coordinating]} coordinate; {record}")
    owner = coordinating[0]
    if record.copies != owner.logic.config.min_copies:
        raise Violation(1, f"group {group}: {record.copies} copies, not {owner.logic.config.min_copies}: {record}")
    node = world.ensemble.nodes.get(f"{COORDINATORS}/{group}")
    session = owner.zk.session
    if node is None or session is None or node.owner != session.number:
        _fail(owner, f"it has no ephemeral for group {group}, which it coordinates: {node}, {session}")
    ours = owner.replica(group)
    for process in processes:
        replica = process.replica(group)
        if (replica.promised, replica.synced) != (record.epoch, record.epoch):
            _fail(process, f"group {group}: promised {replica.promised}, synced {replica.synced}; {record}")
        if ours.floor != replica.floor:
            raise Violation(2, f"group {group}: floor {ours.floor} at {owner.label}, not {replica.floor}")
        for topic in sorted({*ours.topics, *replica.topics}):
            one, other = ours.topics.get(topic), replica.topics.get(topic)
            if one is None or other is None:
                raise Violation(3, f"only one of {owner.label} and {process.label} holds {topic}")
            if (one.last, one.epoch_at(one.last)) != (other.last, other.epoch_at(other.last)):
                raise Violation(3, f"{topic} ends at {one.last} at {owner.label}, at {other.last} at {process.label}")
            if one.table.rows != other.table.rows:
                raise Violation(
                    4,
                    f"publishers of {topic}: {one.table.rows} at {owner.label}, {other.table.rows} at {process.label}",
                )


def remember_nobody(world: World) -> bool:
    """Return whether there are running brokers and the publisher tables of all of them are empty, as they must be some
    time after the last publication."""
    logics = [process.logic for process in world.running()]
    return bool(logics) and not any(
        log.table.rows for logic in logics for group in logic.groups for log in group.replica.topics.values()
    )


def no_topics(world: World) -> bool:
    """Return whether no broker has a topic left, as must be some time after the last publication where idle topics are
    removed."""
    return not any(group.replica.topics for process in world.members() for group in process.logic.groups)


def has_young_entries(world: World) -> bool:
    """Return whether a broker caches a publication that is younger than `maxAge` by its own wall clock. That may be one
    of a coordinator whose clock is ahead of this broker's."""
    return any(
        entry.time > process.logic.ctx.wall - world.options.max_age
        for process in world.members()
        for group in process.logic.groups
        for log in group.replica.topics.values()
        for entry in log.entries
    )


def same_entries(world: World) -> None:
    """Check that the cached logs of all brokers agree with the committed publications of the newest history. A broker
    that is not synced to the newest epoch is checked up to the position that it knows to be committed. Raise Violation
    of invariant 3 otherwise."""
    internal = world.internal
    for (topic, first), committed in internal.committed.items():
        group = world.external.group_of[topic]
        if internal.latest[group].first != first:
            continue
        for process in world.running():
            replica = process.replica(group)
            log = replica.topics.get(topic)
            synced = replica.synced == internal.latest[group].epoch
            if log is None:
                continue
            for entry in log.entries:
                if not synced and entry.sequence > log.committed:
                    break
                known = committed.entries.get(entry.sequence)
                if known is not None and known != (entry.epoch, key_of(entry.payload)):
                    raise Violation(3, f"{process.label} holds {entry} in {topic}, where {known} was committed")


def describe(world: World) -> str:
    """Return the groups' ZooKeeper records and the brokers' state as text."""
    lines = [f"  group {group}: {record}" for group, record in sorted(world.internal.latest.items())]
    for process in world.running():
        groups = []
        for group in process.logic.groups:
            replica = group.replica
            logs = (f"{name} {log.base}..{log.committed}..{log.last}" for name, log in replica.topics.items())
            groups.append(f"{group.number}: promised {replica.promised} synced {replica.synced} {' '.join(logs)}")
        frozen = "frozen " if process.frozen else ""
        lines.append(
            f"  {process.label} incarnation {process.incarnation} {frozen}{process.admission.reason or 'open'}; "
            + "; ".join(groups)
        )
    return "\n".join(lines)
