"""Draws the plan of faults of a seed, and defines the kinds of faults.

A plan is drawn before the run from a generator of its own. Each seed allows only some kinds (swarm testing: rare
combinations occur more often than when every run has a bit of everything). A *safe* plan crashes a broker only while
every other one is ready, so that no member list ever loses more than minCopies - 1 members: then even a single `reset`
of a history is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar, dataclass_transform

from migratory_protocol import peer

T = TypeVar("T")

NAMES: dict[type, str] = {}
"""The name of each kind of fault."""
WEIGHTS: dict[type, int] = {}
"""The weight with which each kind is drawn when the seed allows it."""
EXTRA: dict[type, int] = {}
"""Weights of kinds that some long seeds add to a plan."""


@dataclass_transform(frozen_default=True)
def _fault(name: str, weight: int = 0, *, extra: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a class a frozen dataclass and registers it as a kind of fault. Kinds are drawn in
    this order, by `weight`. One without a weight is drawn by a function of its own, and an `extra` one only where
    `EXTRA` is used."""

    def register(kind: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True)(kind)
        NAMES[made] = name
        if weight:
            (EXTRA if extra else WEIGHTS)[made] = weight
        return made

    return register


class Fault:
    """A fault, with its parameters. `injector.py` and `rollouts.py` inject it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BrokerFault(Fault):
    """A fault of one broker."""

    broker: str


# ---- the kinds of faults


@_fault("crash", 10)
class Crash(BrokerFault):
    """A broker process ends and loses its memory. A new one starts after `downtime` seconds."""

    downtime: float


@_fault("replaced while running", 8)
class Replace(Fault):
    """A new process of the same name starts while the old one runs on for `lasts` seconds. The old one is cut off
    from everything but its clients and perhaps other replaced processes."""

    brokers: tuple[str, ...]
    lasts: float


@_fault("freeze", 6)
class Freeze(BrokerFault):
    """A process stops handling events for `lasts` seconds."""

    lasts: float


@_fault("hung loop")
class Hang(BrokerFault):
    """The event loop of a process stands still for `lasts` seconds, and its ZooKeeper session lives. If that is longer
    than the watchdog allows, the process is ended."""

    lasts: float


@_fault("link break", 6)
class BreakLink(Fault):
    """The connection between two brokers is reset."""

    one: str
    other: str


@_fault("partition", 6)
class Partition(Fault):
    """For `lasts` seconds the brokers in `side` and the others do not reach each other. `one_way`: only messages
    from `side` do not arrive. `zookeeper`: `side` is cut from ZooKeeper, too."""

    side: tuple[str, ...]
    lasts: float
    one_way: bool
    zookeeper: bool


@_fault("connections refused", 5)
class Refuse(Fault):
    """For `lasts` seconds the connections between the brokers in `side` and those in `rest` are reset, and new ones
    refused, though all run: a wrong suspicion, unless another broker has a link to the one that is suspected."""

    side: tuple[str, ...]
    rest: tuple[str, ...]
    lasts: float


@_fault("clog", 3)
class Clog(Fault):
    """For `lasts` seconds, messages from `one` to `other` take `delay` seconds longer."""

    one: str
    other: str
    delay: float
    lasts: float


@_fault("zookeeper away", 3)
class ZooKeeperAway(Fault):
    """The ensemble loses its majority for `lasts` seconds."""

    lasts: float


@_fault("zookeeper emptied")
class ZooKeeperEmptied(Fault):
    """The ensemble stops, and comes back after `lasts` seconds without any data."""

    lasts: float


@_fault("zookeeper rolled back")
class ZooKeeperRolledBack(Fault):
    """The ensemble stops, and comes back after `lasts` seconds with data that is at least `age` seconds old."""

    lasts: float
    age: float


@_fault("zookeeper cut off", 3)
class ZooKeeperCutOff(BrokerFault):
    """One broker cannot reach the ensemble for `lasts` seconds."""

    lasts: float


@_fault("zookeeper connection lost", 5)
class ZooKeeperConnectionLost(BrokerFault):
    """A broker's connection to ZooKeeper breaks under requests, `times` times. Each request in flight ends as
    unknown, executed or not."""

    times: int


@_fault("session expiry", 4)
class ExpireSession(BrokerFault):
    """The ensemble ends a broker's session."""


@_fault("slow broker", 2)
class Slow(BrokerFault):
    """For `lasts` seconds, every event takes the broker `cost` seconds."""

    cost: float
    lasts: float


@_fault("clients dropped", 3)
class DropClients(BrokerFault):
    """All client connections of a broker break."""


@_fault("edge restart", 2)
class RestartEdge(BrokerFault):
    """An edge of a broker, as an I/O process has it, is killed and replaced."""


@_fault("client stalled", 1)
class StallClient(Fault):
    """The client with this number does not read for `lasts` seconds."""

    client: int
    lasts: float


@_fault("drain", 3)
class Drain(BrokerFault):
    """A planned stop: the broker drains for `period` seconds, ends, and a new process starts after `downtime`
    seconds."""

    period: float
    downtime: float


@_fault("restart of all", 3)
class RestartAll(Fault):
    """Every process ends at once, and all start again within `spread` seconds. The histories are lost."""

    spread: float


@_fault("burst", 4)
class Burst(Fault):
    """A burst of `count` extra publications on one topic, often more than its cache holds."""

    topic: int
    count: int


@_fault("ambush", 16)
class Ambush(Fault):
    """A fault in the middle of a step: it strikes when a broker sends the `count`-th message of the kind `at` (or a
    transaction, "ZkCommit"). The rest of the step is lost in a crash.

    `actions`, one or two: crash, freeze, isolate (cut from every peer), break or block the link of the message, cut
    from or lose the connection to ZooKeeper, expire the session, drop the clients. They last `lasts` seconds; the
    second action follows `gap` seconds after the first.
    """

    at: str
    count: int
    actions: tuple[str, ...]
    lasts: float
    gap: float


@_fault("slow zookeeper", 3)
class SlowZooKeeper(Fault):
    """For `lasts` seconds, requests of these brokers to ZooKeeper, and the answers, take about `delay` seconds."""

    brokers: tuple[str, ...]
    delay: float
    lasts: float


@_fault("clock jump", 3, extra=True)
class ClockJump(BrokerFault):
    """A broker's monotonic clock jumps `ahead` seconds, as after a suspended virtual machine. The wall clock of its
    next process is `wall` seconds off."""

    ahead: float
    wall: float


@_fault("silent client", 3, extra=True)
class SilentClient(Fault):
    """A client's connection delivers nothing for `lasts` seconds, in one direction or both, without notice to either
    side."""

    client: int
    to_broker: bool
    to_client: bool
    lasts: float


@_fault("broker behind", 6, extra=True)
class FallBehind(BrokerFault):
    """All messages from peers to `broker` take `delay` seconds longer, for `lasts` seconds. After `gap` seconds the
    clients of all other brokers are dropped, so that some connect to it that have seen more than it has. `crash`
    names another broker that crashes at the same moment."""

    delay: float
    lasts: float
    gap: float
    crash: str


@_fault("broker left behind")
class LeaveBehind(Fault):
    """A group's coordinator numbers publications that reach no other broker for `tail` seconds, and is then cut off, so
    that another broker takes over. That one crashes as well, for `downtime` seconds, while brokers hear the first one
    again, which hears ZooKeeper only `late` seconds later."""

    group: int
    tail: float
    late: float
    downtime: float


@_fault("rolling restart", 4, extra=True)
class RollingRestart(Fault):
    """Every broker in turn drains, ends when it is drained or after `period` seconds (in a safe plan not before its
    loss is tolerated), and starts again after `downtime` seconds; the next one only when all report ready. `copies`:
    `minCopies` of the restarted brokers, 0 for the same as before."""

    period: float
    downtime: float
    copies: int = 0


@_fault("broker added", 3, extra=True)
class Grow(Fault):
    """A new broker joins."""


@_fault("broker removed", 3, extra=True)
class Shrink(BrokerFault):
    """A broker drains, ends when it is drained or after `period` seconds, and never returns."""

    period: float


_MESSAGES: tuple[type, ...] = (
    *[peer.Accept] * 3, peer.Accepted, peer.Prepare, peer.Promise, peer.Sync, peer.Sync, peer.Synced,
    peer.Activated, peer.HandOver, peer.Inventory, peer.Forward, peer.ForwardReplies,
)  # fmt: skip
AMBUSHED = (*(kind.__name__ for kind in _MESSAGES), *["ZkCommit"] * 3)
"""The messages, and the transaction, that an ambush waits for; repeated ones are drawn more often. The core's events
are not imported here: a planted fault must be in place before that."""
ACTIONS = (
    *["crash"] * 4, "freeze", *["isolate"] * 2, *["break link"] * 2, *["block link"] * 2, *["lose zookeeper"] * 2,
    "cut zookeeper", *["expire session"] * 2, "drop clients",
)  # fmt: skip
"""The actions from which those of an ambush are drawn. Repeated ones are drawn more often."""


# ---- the plan of a seed

ALL = {**WEIGHTS, StallClient: 5, **EXTRA}
"""The weights in short seeds."""

WILD_ONLY = frozenset({Replace, RestartAll})
"""Kinds that no safe plan has: member lists may lose minCopies or more incarnations by them."""
SAFE_ONLY = frozenset({Shrink})
"""Kinds that need a safe plan: a list that has lost a broker for good tolerates no further loss."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults of a run as (moment in seconds, fault), ordered by moment. `safe`: no member list may lose more than
    minCopies - 1 members by them. `loses_data`: ZooKeeper loses data in it."""

    safe: bool
    faults: tuple[tuple[float, Fault], ...]
    loses_data: bool = False  # ZooKeeper does


@dataclass(frozen=True, slots=True)
class Scope:
    """The targets and durations that faults are drawn from. `topics` and `clients` are numbers, `cache` is the number
    of publications that a topic's cache holds. `tempo` and `lasts` are factors of durations; `lasts` is that of
    outages. `window` is the duplicate window in seconds."""

    brokers: tuple[str, ...]
    topics: int
    clients: int
    cache: int
    tempo: float
    lasts: float
    window: float


def draw_plan(
    random: Random, scope: Scope, begin: float, end: float, counts: tuple[int, int], weights: dict[type, int]
) -> Plan:
    """Draw a plan with between `counts[0]` and `counts[1]` faults from `begin` to `end`, in virtual seconds. `weights`
    has the kinds that may be drawn."""
    safe = random.random() < 0.7
    kinds = [kind for kind in weights if kind not in (WILD_ONLY if safe else SAFE_ONLY)]
    allowed = [kind for kind in kinds if random.random() < 0.5] or kinds
    count = random.randint(*counts)
    # Faults come in clusters: a fault during the handling of another one finds more than a single one.
    moments: list[float] = []
    moment = random.uniform(begin, (begin + end) / 2)
    for _ in range(count):
        moments.append(min(moment, end))
        pause = random.choice((random.uniform(0.0, 0.5), random.uniform(0.0, 3.0), random.uniform(0.0, 7.0)))
        moment += scope.lasts * pause
    chances = [weights[kind] for kind in allowed]
    faults = [(when, _draw(random, random.choices(allowed, chances)[0], scope, safe)) for when in moments]
    return Plan(safe, tuple(faults))


def with_extras(random: Random, plan: Plan, scope: Scope, begin: float, end: float) -> Plan:
    """Return the plan with one to four more faults of the kinds in EXTRA, from `begin` to `end` in virtual seconds."""
    kinds = [kind for kind in EXTRA if plan.safe or kind not in SAFE_ONLY]
    chances = [EXTRA[kind] for kind in kinds]
    faults = list(plan.faults)
    for _ in range(random.randint(1, 4)):
        kind = random.choices(kinds, chances)[0]
        faults.append((random.uniform(begin, end), _draw(random, kind, scope, plan.safe)))
    return Plan(plan.safe, tuple(sorted(faults, key=lambda entry: entry[0])))


def with_hangs(random: Random, plan: Plan, brokers: tuple[str, ...], tempo: float) -> Plan:
    """Return the plan with one or two more faults of the kind `Hang` or, in most cases and for an empty plan,
    unchanged."""
    if not plan.faults or random.random() < 0.7:
        return plan
    faults = list(plan.faults)
    for _ in range(random.randint(1, 2)):
        moment = random.uniform(faults[0][0], faults[-1][0])
        lasts = tempo * random.choice((random.uniform(0.2, 3.0), random.uniform(2.0, 8.0)))
        faults.append((moment, Hang(random.choice(brokers), lasts)))
    return Plan(plan.safe, tuple(sorted(faults, key=lambda entry: entry[0])))


def with_data_losses(random: Random, plan: Plan, tempo: float, *, always: bool) -> Plan:
    """Return the plan with one or two more faults in which ZooKeeper loses data or, in most cases unless `always`,
    none. A broker that was removed for good may be needed to restore the records, so that plans with removals stay as
    they are."""
    kinds = {type(fault) for _, fault in plan.faults}
    if not plan.faults or kinds & {Shrink, Grow} or (random.random() < 0.8 and not always):
        return plan
    faults = list(plan.faults)
    for _ in range(random.choice((1, 1, 2))):
        moment = random.uniform(faults[0][0], faults[-1][0])
        lasts = tempo * random.choice((random.uniform(0.1, 1.0), random.uniform(1.0, 6.0)))
        age = tempo * random.choice((0.0, random.uniform(0.0, 3.0), random.uniform(2.0, 12.0)))
        # Older data is noticed by a broker that remembers more: one is left for certain in a safe plan.
        emptied = not plan.safe or random.random() < 0.5
        faults.append((moment, ZooKeeperEmptied(lasts) if emptied else ZooKeeperRolledBack(lasts, age)))
    return replace(plan, loses_data=True, faults=tuple(sorted(faults, key=lambda entry: entry[0])))


def with_left_behind(random: Random, plan: Plan, groups: int, tempo: float) -> Plan:
    """Return the plan, which must have faults, with one more of the kind `LeaveBehind`."""
    moment = random.uniform(plan.faults[0][0], plan.faults[-1][0])
    tail, late, downtime = (tempo * random.uniform(0.3, longest) for longest in (1.5, 6.0, 8.0))
    fault = LeaveBehind(random.randrange(groups), tail, late, downtime)
    return replace(plan, faults=tuple(sorted((*plan.faults, (moment, fault)), key=lambda entry: entry[0])))


def with_other_copies(random: Random, plan: Plan, brokers: int, copies: int) -> Plan:
    """Return the plan with rolling restarts that change `minCopies` from `copies`, as an operator may, or, in half of
    the cases, unchanged. A cluster that loses a broker for good stays as it is, because it may get too small."""
    allowed = [other for other in range(1, (brokers + 1) // 2 + 1) if other != copies]
    if random.random() < 0.5 or not allowed or any(isinstance(fault, Shrink) for _, fault in plan.faults):
        return plan
    faults = [
        (moment, replace(fault, copies=random.choice(allowed)) if isinstance(fault, RollingRestart) else fault)
        for moment, fault in plan.faults
    ]
    return replace(plan, faults=tuple(faults))


def _draw(random: Random, kind: type, scope: Scope, safe: bool) -> Fault:
    """Draw the targets and durations of a fault of this kind, and return it."""
    brokers, tempo, lasts = scope.brokers, scope.tempo, scope.lasts
    broker = random.choice(brokers)
    one, other = random.sample(brokers, 2)
    short_or_long = lasts * random.choice(
        (random.uniform(0.1, 2.0), random.uniform(2.0, 6.0), random.uniform(5.0, 14.0))
    )
    if kind is Crash:
        return Crash(broker, lasts * random.choice((random.uniform(0.1, 1.0), random.uniform(1.0, 10.0))))
    if kind is Replace:
        some = tuple(random.sample(brokers, random.choice((len(brokers), random.randint(1, len(brokers))))))
        return Replace(some, tempo * random.uniform(4.0, 40.0))
    if kind is Freeze:
        return Freeze(broker, short_or_long)
    if kind is BreakLink:
        return BreakLink(one, other)
    if kind is Partition:
        side = tuple(random.sample(brokers, random.randint(1, len(brokers) - 1)))
        return Partition(side, short_or_long, random.random() < 0.4, random.random() < 0.4)
    if kind is Refuse:
        rest = tuple(name for name in brokers if name != broker)
        return Refuse((broker,), rest if random.random() < 0.7 else (other, one), short_or_long)
    if kind is Clog:
        return Clog(one, other, tempo * random.uniform(0.05, 1.5), short_or_long)
    if kind is ZooKeeperAway:
        return ZooKeeperAway(random.choice((short_or_long, lasts * random.uniform(8.0, 25.0))))
    if kind is ZooKeeperCutOff:
        return ZooKeeperCutOff(broker, short_or_long)
    if kind is ZooKeeperConnectionLost:
        return ZooKeeperConnectionLost(broker, random.randint(1, 8))
    if kind is ExpireSession:
        return ExpireSession(broker)
    if kind is Slow:
        return Slow(broker, random.uniform(0.001, 0.005), short_or_long)
    if kind is DropClients:
        return DropClients(broker)
    if kind is RestartEdge:
        return RestartEdge(broker)
    if kind is StallClient:
        return StallClient(random.randrange(scope.clients), short_or_long)
    if kind is Drain:
        return Drain(broker, tempo * random.uniform(1.0, 5.0), lasts * random.uniform(0.1, 3.0))
    if kind is Ambush:
        actions = tuple(random.choice(ACTIONS) for _ in range(random.choice((1, 2))))
        gap = random.choice((0.0, random.uniform(0.0, 0.4), lasts * random.uniform(0.0, 4.0)))
        return Ambush(random.choice(AMBUSHED), random.choice((1, 1, 2, 5)), actions, short_or_long, gap)
    if kind is SlowZooKeeper:
        some = tuple(random.sample(brokers, random.choice((1, 1, len(brokers)))))
        return SlowZooKeeper(some, tempo * random.choice((0.2, 0.6, 1.5)), short_or_long)
    if kind is RestartAll:
        return RestartAll(lasts * random.choice((0.2, random.uniform(0.5, 6.0))))
    if kind is Burst:
        return Burst(random.randrange(scope.topics), random.randint(scope.cache // 2, scope.cache * 3))
    return _draw_extra(random, kind, scope, safe, broker, short_or_long)


def _draw_extra(random: Random, kind: type, scope: Scope, safe: bool, broker: str, short_or_long: float) -> Fault:
    """Draw the targets and durations of a fault of a kind in `EXTRA`, and return it. `broker` and `short_or_long`, a
    duration in seconds, are drawn already."""
    tempo = scope.tempo
    if kind is ClockJump:
        # A clock that runs ahead shortens two limits that safety relies on: the wait before a new history, which
        # a safe plan never begins, and the duplicate window, which must be long enough.
        spare = safe and scope.window >= 60.0 * tempo
        ahead = tempo * random.choice((0.0, random.uniform(0.1, 2.0), random.uniform(2.0, 8.0))) if spare else 0.0
        return ClockJump(broker, ahead, random.choice((-1, 1)) * random.choice((0.5, 30.0, 7200.0)))
    if kind is SilentClient:
        to_broker, to_client = random.choice(((True, False), (False, True), (True, True)))
        return SilentClient(random.randrange(scope.clients), to_broker, to_client, short_or_long)
    if kind is FallBehind:
        crash = random.choice((*("" for _ in scope.brokers), *(name for name in scope.brokers if name != broker)))
        return FallBehind(
            broker, tempo * random.uniform(0.2, 2.5), short_or_long, tempo * random.uniform(0.0, 1.0), crash
        )
    if kind is RollingRestart:
        return RollingRestart(tempo * random.uniform(1.0, 4.0), tempo * random.uniform(0.1, 1.0))
    if kind is Grow:
        return Grow()
    return Shrink(broker, tempo * random.uniform(1.0, 4.0))
