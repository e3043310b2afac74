"""The final checks detect each leak and each disagreement; every test case breaks one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from migratory_broker.core.logic.replication.topic_log import ENTRY_OVERHEAD
from migratory_broker.core.logic.serving.resume import WaitingSubscription
from migratory_simulation import final_checks
from migratory_simulation.external_checker import Violation
from migratory_simulation.options import draw_options
from migratory_simulation.plans import Plan
from migratory_simulation.process import Process
from migratory_simulation.world import World


@pytest.fixture
def world() -> World:
    """Return a finished run of a cluster without faults, which passes the final checks."""
    drawn = draw_options(16, "short")
    assert drawn.final_checks
    roomy = replace(drawn, messages_per_topic=60, min_age=0.0, max_age=600.0, max_bytes=1_000_000)
    quiet = World(replace(roomy, plan=Plan(drawn.plan.safe, ())))
    quiet.run()
    final_checks.check(quiet)
    return quiet


def logs_of(process: Process) -> dict[str, int]:
    return {topic: log.last for group in process.logic.groups for topic, log in group.replica.topics.items()}


def one_log_short(world: World, process: Process) -> None:
    log = next(iter(process.logic.groups[0].replica.topics.values()))
    before = log.bytes
    log.entries.pop()
    log.last -= 1
    log.committed -= 1
    log.bytes = sum(len(entry.payload) + ENTRY_OVERHEAD for entry in log.entries)
    process.logic.cache.bytes += log.bytes - before


def uncommitted(world: World, process: Process) -> None:
    next(iter(process.logic.groups[0].replica.topics.values())).committed -= 1


def another_table(world: World, process: Process) -> None:
    next(iter(process.logic.groups[0].replica.topics.values())).table.rows["nobody"] = (1, 2, 3, b"")


def bytes_counted_twice(world: World, process: Process) -> None:
    process.logic.cache.bytes += 200


def waiting_subscription(world: World, process: Process) -> None:
    process.logic.resume.waiting[0] = {"t0": list[WaitingSubscription]()}


def unanswered_requests(world: World, process: Process) -> None:
    process.logic.zookeeper._waiting.update((10_000 + number, lambda reply: None) for number in range(20))


def another_server(world: World, process: Process) -> None:
    world.names = (*world.names[:-1], "broker-9")


def no_ephemeral(world: World, process: Process) -> None:
    del world.ensemble.nodes["/coordinators/0"]


def two_coordinators(world: World, process: Process) -> None:
    group = process.logic.groups[0]
    group.term = next(other.logic.groups[0].term for other in world.running() if other.logic.groups[0].term)


def lost_connection(world: World, process: Process) -> None:
    for other in world.running():
        for edge in other.edges:
            edge.connections.clear()


def subscription_of_nobody(world: World, process: Process) -> None:
    process.edges[0].core._subscriptions.budget.count += 1


def subscription_without_its_bytes(world: World, process: Process) -> None:
    process.edges[0].core._subscriptions.budget.bytes -= 1


def input_of_nobody(world: World, process: Process) -> None:
    process.edges[0].core._connections.inbox.unprocessed.total += 1


def client_that_is_not_counted(world: World, process: Process) -> None:
    process.logic.client_balancer.edges[99] = (1,)


def more_connections_than_clients(world: World, process: Process) -> None:
    world.clients[:] = world.clients[:1]


def client_of_nobody(world: World, process: Process) -> None:
    process.edges[0].core._connections.clients += 1


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (one_log_short, "ends at"),
        (uncommitted, "replication_lag|is committed up to"),
        (another_table, "publishers of"),
        (bytes_counted_twice, "are counted, not what is there"),
        (waiting_subscription, "subscriptions wait"),
        (unanswered_requests, "requests to ZooKeeper have no answer"),
        (another_server, "its server list is"),
        (no_ephemeral, "it has no ephemeral for group 0"),
        (two_coordinators, "coordinate"),
        (lost_connection, "connections of 0"),
        (subscription_of_nobody, "subscriptions of"),
        (subscription_without_its_bytes, "subscription_bytes of"),
        (input_of_nobody, "input_bytes is 1"),
        (client_of_nobody, "clients of"),
        (client_that_is_not_counted, "it counts"),
        (more_connections_than_clients, "connections of 1 clients"),
    ],
)
def test_leaks_and_disagreements_are_violations(
    world: World, spoil: Callable[[World, Process], None], text: str
) -> None:
    followers = [process for process in world.running() if process.logic.groups[0].term is None]
    assert logs_of(followers[0])
    spoil(world, followers[0])
    with pytest.raises(Violation, match=text):
        final_checks.check(world)
