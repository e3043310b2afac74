"""Scripts of directed schedules: clients that are asked to go elsewhere, and how often."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from migratory_simulation.aftermath import MOST, crews
from migratory_simulation.clients import LATELY
from migratory_simulation.process import Process
from migratory_simulation.stage import START, Stage, Steps

AVERAGE = 5 / 3 + 1e-9
"""Of moves for each client in a rolling update of three brokers: a third, a half, a half, and a third back."""

SPREAD = 0.6 + 1e-9
"""The same when two brokers of five leave: two fifths, and at most half as many again for balance. Each client chooses
where it goes by itself, by weights, and three may well choose the same."""

SEAMLESS = "replaced before they were left"
EARLY = "left before the receipts"


def updates(stage: Stage) -> Steps:
    """Every broker in turn is drained, ends and comes back updated. Each client moves at most twice, and always before
    it leaves its broker; in the end they are even and stay."""
    yield from _at_rest(stage)
    before, seamless = _moves(stage), stage.world.coverage[SEAMLESS]
    names = list(stage.world.names)
    stage.random.shuffle(names)
    for name in names:
        yield stage.expect(lambda: _open(stage), 30.0, "not every broker takes clients again")
        yield stage.random.choice((0.0, 5.0, 22.0)) * stage.tempo  # an operator that takes its time, or does not
        process = stage.world.process_of(name)
        if process is None:
            return
        process.drain(12.0 * stage.tempo)
        yield stage.expect(_left(stage, process), 12.5, f"{process.label} drains and still has clients or groups")
        stage.world.revisions[name] = "updated"
        stage.world.process_ends(process, "updated", restart=stage.random.uniform(0.1, 1.0) * stage.tempo)
        yield stage.tempo
    yield stage.expect(lambda: _open(stage) and _even(stage), 120.0, "clients are not even after a rolling update")
    yield 30.0 * stage.tempo
    _demand(stage, before, seamless, 2, AVERAGE)


def scales(stage: Stage) -> Steps:
    """Two brokers join, one some time after the other: no client moves twice, and all is even. Then they leave: those
    that were theirs move once, to brokers that stay."""
    yield from _at_rest(stage)
    before, seamless = _moves(stage), stage.world.coverage[SEAMLESS]
    stage.world.names = (*stage.world.names, "broker-3", "broker-4")
    stage.world.injector.rollouts.configure()
    for name in ("broker-3", "broker-4"):
        stage.world.start_process(name)
        yield stage.random.choice((0.0, 25.0)) * stage.tempo
    yield stage.expect(lambda: _open(stage) and _even(stage), 150.0, "clients are not even after two brokers joined")
    yield 30.0 * stage.tempo
    _demand(stage, before, seamless, 1, 0.5)
    before, seamless = _moves(stage), stage.world.coverage[SEAMLESS]
    stage.world.names = stage.world.names[:3]
    stage.world.injector.rollouts.configure()
    yield 3.0 * stage.tempo
    for name in ("broker-4", "broker-3"):
        process = stage.world.process_of(name)
        if process is None:
            return
        process.drain(12.0 * stage.tempo)
        yield stage.expect(_left(stage, process), 12.5, f"{process.label} drains and still has clients or groups")
        stage.world.process_ends(process, "leaves for good")
        yield stage.random.uniform(0.0, 5.0) * stage.tempo
    yield stage.expect(lambda: _even(stage), 150.0, "clients are not even after two brokers left")
    yield 30.0 * stage.tempo
    _demand(stage, before, seamless, 1, SPREAD)


def _at_rest(stage: Stage) -> Steps:
    """The cluster is up, its clients are even for good, and how they came there is forgotten."""
    clients = stage.world.clients
    yield stage.until(lambda: _open(stage) and all(client.ready for client in clients), START, "cluster that is up")
    yield stage.expect(lambda: _even(stage), 80.0, "clients are never even")
    yield LATELY * stage.tempo
    stage.demand(_even(stage), f"clients are no longer even: {crews(stage.world)}")


def _open(stage: Stage) -> bool:
    """Every broker that is configured now says of itself that it takes clients."""
    running = [stage.world.process_of(name) for name in stage.world.names]
    return all(process is not None and process.admission.open for process in running)


def _left(stage: Stage, process: Process) -> Callable[[], bool]:
    return lambda: process.logic.drained and not stage.clients_of(process)


def _even(stage: Stage) -> bool:
    """Nobody has much more than its share, and nobody is on the way."""
    found = crews(stage.world)
    total = sum(clients for _, clients in found.values())
    share = total / len(found)
    return total == len(stage.world.clients) and all(
        clients <= max(MOST * share, ceil(share)) for _, clients in found.values()
    )


def _moves(stage: Stage) -> dict[str, int]:
    return {client.name: client.core.reconnects for client in stage.world.clients}


def _demand(stage: Stage, before: dict[str, int], seamless: int, most: int, average: float) -> None:
    """What changed since then: how often, that no link was left before the next one served, and that it is over."""
    stage.demand(not stage.world.coverage[EARLY], "a link was left before the next one had all receipts")
    moves = {name: now - before[name] for name, now in _moves(stage).items()}
    stage.demand(max(moves.values()) <= most, f"a client was moved more than {most} times: {moves}")
    mean = sum(moves.values()) / len(moves)
    stage.demand(mean <= average, f"clients were moved {mean:.2f} times on average, not {average:.2f}: {moves}")
    replaced = stage.world.coverage[SEAMLESS] - seamless
    changes = sum(moves.values())
    stage.demand(
        replaced == changes, f"of {changes} changes of broker {replaced} were made before the old link was left"
    )
    stage.demand(_even(stage), f"clients are no longer even: {crews(stage.world)}")
