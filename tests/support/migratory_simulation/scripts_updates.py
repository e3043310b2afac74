"""Scripts of directed schedules: clients that are asked to move to another broker, and how often."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from migratory_simulation.clients import LATELY
from migratory_simulation.final_checks import MOST, clients_by_broker
from migratory_simulation.process import Process
from migratory_simulation.scripted import START, ScriptedCluster, Steps, schedule

AVERAGE = 5 / 3 + 1e-9
"""The mean moves of a client in a rolling update of three brokers: a third, a half, a half, and a third back."""

SPREAD = 0.6 + 1e-9
"""The mean moves of a client when two brokers of five leave: two fifths, and at most half as many again for balance.
Each client draws its broker by weights, so that three may well choose the same one."""

SEAMLESS = "replaced before they were left"
EARLY = "left before the receipts"


@schedule(420.0, publishers=2, subscribers=7, rate=1.0, weights=())
def updates(cluster: ScriptedCluster) -> Steps:
    """Every broker in turn is drained, ends and returns updated. Each client moves at most twice, and always before
    it leaves its broker. In the end clients are balanced and stay."""
    yield from _at_rest(cluster)
    before, seamless = _moves(cluster), cluster.world.coverage[SEAMLESS]
    names = list(cluster.world.names)
    cluster.random.shuffle(names)
    for name in names:
        yield cluster.expect(lambda: _open(cluster), 30.0, "not every broker takes clients again")
        yield cluster.random.choice((0.0, 5.0, 22.0)) * cluster.tempo  # the pace of an operator
        process = cluster.world.process_of(name)
        if process is None:
            return
        process.drain(12.0 * cluster.tempo)
        yield cluster.expect(_left(cluster, process), 12.5, f"{process.label} drains and still has clients or groups")
        cluster.world.revisions[name] = "updated"
        cluster.world.process_ends(process, "updated", restart=cluster.random.uniform(0.1, 1.0) * cluster.tempo)
        yield cluster.tempo
    yield cluster.expect(lambda: _open(cluster) and _even(cluster), 120.0, "uneven clients after a rolling update")
    yield 30.0 * cluster.tempo
    _demand(cluster, before, seamless, 2, AVERAGE)


@schedule(560.0, publishers=2, subscribers=13, rate=1.0, weights=())
def scales(cluster: ScriptedCluster) -> Steps:
    """Two brokers join, one some time after the other: no client moves twice, and clients get balanced. Then both
    leave: only their clients move, once, to brokers that stay."""
    yield from _at_rest(cluster)
    before, seamless = _moves(cluster), cluster.world.coverage[SEAMLESS]
    cluster.world.names = (*cluster.world.names, "broker-3", "broker-4")
    cluster.world.injector.rollouts.configure()
    for name in ("broker-3", "broker-4"):
        cluster.world.start_process(name)
        yield cluster.random.choice((0.0, 25.0)) * cluster.tempo
    yield cluster.expect(lambda: _open(cluster) and _even(cluster), 150.0, "uneven clients after two brokers joined")
    yield 30.0 * cluster.tempo
    _demand(cluster, before, seamless, 1, 0.5)
    before, seamless = _moves(cluster), cluster.world.coverage[SEAMLESS]
    cluster.world.names = cluster.world.names[:3]
    cluster.world.injector.rollouts.configure()
    yield 3.0 * cluster.tempo
    for name in ("broker-4", "broker-3"):
        process = cluster.world.process_of(name)
        if process is None:
            return
        process.drain(12.0 * cluster.tempo)
        yield cluster.expect(_left(cluster, process), 12.5, f"{process.label} drains and still has clients or groups")
        cluster.world.process_ends(process, "leaves for good")
        yield cluster.random.uniform(0.0, 5.0) * cluster.tempo
    yield cluster.expect(lambda: _even(cluster), 150.0, "uneven clients after two brokers left")
    yield 30.0 * cluster.tempo
    _demand(cluster, before, seamless, 1, SPREAD)


def _at_rest(cluster: ScriptedCluster) -> Steps:
    """Wait until the cluster is up, its clients are balanced for good, and earlier moves no longer count."""
    clients = cluster.world.clients
    yield cluster.until(lambda: _open(cluster) and all(client.ready for client in clients), START, "cluster that is up")
    yield cluster.expect(lambda: _even(cluster), 80.0, "clients are never even")
    yield LATELY * cluster.tempo
    cluster.demand(_even(cluster), f"clients are no longer even: {clients_by_broker(cluster.world)}")


def _open(cluster: ScriptedCluster) -> bool:
    """Return whether every configured broker reports that it accepts clients."""
    running = [cluster.world.process_of(name) for name in cluster.world.names]
    return all(process is not None and process.admission.open for process in running)


def _left(cluster: ScriptedCluster, process: Process) -> Callable[[], bool]:
    """Return a condition: the broker is drained and without clients."""
    return lambda: process.logic.drained and not process.clients


def _even(cluster: ScriptedCluster) -> bool:
    """Return whether no broker has much more than its share of the clients, and no client is moving."""
    found = clients_by_broker(cluster.world)
    total = sum(clients for _, clients in found.values())
    share = total / len(found)
    return total == len(cluster.world.clients) and all(
        clients <= max(MOST * share, ceil(share)) for _, clients in found.values()
    )


def _moves(cluster: ScriptedCluster) -> dict[str, int]:
    """Return the number of moves of each client."""
    return {client.name: client.core.reconnects for client in cluster.world.clients}


def _demand(cluster: ScriptedCluster, before: dict[str, int], seamless: int, most: int, average: float) -> None:
    """Check the moves since `before`: their number, that no client left a broker before the next one served it, and
    that clients are balanced."""
    cluster.demand(not cluster.world.coverage[EARLY], "a link was left before the next one had all receipts")
    moves = {name: now - before[name] for name, now in _moves(cluster).items()}
    cluster.demand(max(moves.values()) <= most, f"a client was moved more than {most} times: {moves}")
    mean = sum(moves.values()) / len(moves)
    cluster.demand(mean <= average, f"clients were moved {mean:.2f} times on average, not {average:.2f}: {moves}")
    replaced = cluster.world.coverage[SEAMLESS] - seamless
    changes = sum(moves.values())
    cluster.demand(
        replaced == changes, f"of {changes} changes of broker {replaced} were made before the old link was left"
    )
    cluster.demand(_even(cluster), f"clients are no longer even: {clients_by_broker(cluster.world)}")
