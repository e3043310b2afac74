"""Scripts of directed runs: clients that are asked to move to another broker, and how often."""

from __future__ import annotations

from collections.abc import Callable

from migratory_simulation.clients import LATELY
from migratory_simulation.final_checks import uneven
from migratory_simulation.process import Process
from migratory_simulation.scripted import START, ScriptedCluster, Steps, schedule

AVERAGE = 17 / 9 + 1e-9
"""The largest mean number of moves of a client in a rolling update of three brokers: a third of the clients move
first, then twice a half, and a third move back, which is 15 moves of nine clients. Each client draws its broker, so
two moves more are chance."""

SPREAD = 0.6 + 1e-9
"""The largest mean number of moves of a client when two brokers of five leave: two fifths of the clients move, and
at most half as many move again for balance. Each client draws its broker by weights, so that three may choose the
same one."""

SEAMLESS = "replaced before they were left"
EARLY = "left before the receipts"


@schedule(420.0, publishers=2, subscribers=7, rate=1.0, weights=())
def updates(cluster: ScriptedCluster) -> Steps:
    """Every broker in turn is drained, ends and returns updated. Each client may move at most twice, and must be
    served by its next broker before it leaves the old one. In the end clients must be balanced and stay."""
    world = cluster.world
    yield from _at_rest(cluster)
    before, seamless = _moves(cluster), world.coverage[SEAMLESS]
    names = list(world.names)
    cluster.random.shuffle(names)
    for name in names:
        yield cluster.expect(world.all_open, 30.0, "not every broker takes clients again")
        yield cluster.random.choice((0.0, 5.0, 22.0)) * cluster.tempo  # the pace of an operator
        process = world.process_of(name)
        if process is None:
            return
        process.drain(12.0 * cluster.tempo)
        yield cluster.expect(_left(cluster, process), 12.5, f"{process.label} drains and still has clients or groups")
        world.revisions[name] = "updated"
        world.process_ends(process, "updated", restart=cluster.random.uniform(0.1, 1.0) * cluster.tempo)
        yield cluster.tempo
    yield cluster.expect(lambda: world.all_open() and not uneven(world), 120.0, "uneven clients after a rolling update")
    yield 30.0 * cluster.tempo
    _demand(cluster, before, seamless, 2, AVERAGE)


@schedule(560.0, publishers=2, subscribers=13, rate=1.0, weights=())
def scales(cluster: ScriptedCluster) -> Steps:
    """Two brokers join, one some time after the other: no client may move twice, and clients must get balanced. Then
    both leave: only few moves beyond those of their clients are allowed, each client moves at most once, and clients
    must be balanced."""
    world = cluster.world
    yield from _at_rest(cluster)
    before, seamless = _moves(cluster), world.coverage[SEAMLESS]
    world.names = (*world.names, "broker-3", "broker-4")
    world.injector.rollouts.configure()
    for name in ("broker-3", "broker-4"):
        world.start_process(name)
        yield cluster.random.choice((0.0, 25.0)) * cluster.tempo
    yield cluster.expect(
        lambda: world.all_open() and not uneven(world), 150.0, "uneven clients after two brokers joined"
    )
    yield 30.0 * cluster.tempo
    _demand(cluster, before, seamless, 1, 0.5)
    before, seamless = _moves(cluster), world.coverage[SEAMLESS]
    world.names = world.names[:3]
    world.injector.rollouts.configure()
    yield 3.0 * cluster.tempo
    for name in ("broker-4", "broker-3"):
        process = world.process_of(name)
        if process is None:
            return
        process.drain(12.0 * cluster.tempo)
        yield cluster.expect(_left(cluster, process), 12.5, f"{process.label} drains and still has clients or groups")
        world.process_ends(process, "leaves for good")
        yield cluster.random.uniform(0.0, 5.0) * cluster.tempo
    yield cluster.expect(lambda: not uneven(world), 150.0, "uneven clients after two brokers left")
    yield 30.0 * cluster.tempo
    _demand(cluster, before, seamless, 1, SPREAD)


def _at_rest(cluster: ScriptedCluster) -> Steps:
    """Wait until the cluster is up, its clients are balanced and stay so, and their earlier moves no longer count as
    recent. The script ends if the cluster does not come up. Clients that do not get balanced are a violation."""
    world = cluster.world
    clients = world.clients
    yield cluster.until(
        lambda: world.all_open() and all(client.ready for client in clients), START, "cluster that is up"
    )
    yield cluster.expect(lambda: not uneven(world), 80.0, "clients are never even")
    yield LATELY * cluster.tempo
    cluster.demand(not (text := uneven(world)), f"clients are no longer even: {text}")


def _left(cluster: ScriptedCluster, process: Process) -> Callable[[], bool]:
    """Return a function that returns whether the broker is drained and has no clients."""
    return lambda: process.logic.drained and not process.clients


def _moves(cluster: ScriptedCluster) -> dict[str, int]:
    """Return how often each client has changed its broker since its start, for any cause, by the client's name."""
    return {client.name: client.core.reconnects for client in cluster.world.clients}


def _demand(cluster: ScriptedCluster, before: dict[str, int], seamless: int, most: int, average: float) -> None:
    """Raise a violation unless the moves since `before` were at most `most` for each client and `average` in the
    mean, each client was served by its next broker before it left the old one, and the clients are balanced now.
    `seamless` is the count of such changes of broker at the time of `before`."""
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
    cluster.demand(not (text := uneven(cluster.world)), f"clients are no longer even: {text}")
