"""The options that a seed draws: cluster, load, limits, and plan of faults.

*Long* seeds have room for many faults, bursts and slow recoveries, at about 15,000 events each. *Short* seeds have a
tenth of that and are dense in faults, so that very many can be run. The profile `mixed` takes one long seed in
`LONG_EACH`; `losses` does so, too, and ZooKeeper loses its data in each plan that allows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypedDict

from migratory_protocol.topics import topic_group

from migratory_simulation.plans import (
    ALL,
    WEIGHTS,
    ClockJump,
    Plan,
    Scope,
    draw_plan,
    with_data_losses,
    with_extras,
    with_hangs,
    with_left_behind,
    with_other_copies,
)

SHAPES = ((3, 2), (4, 2), (5, 2), (5, 3), (3, 1), (6, 2), (7, 3), (7, 4))
"""Brokers and `minCopies` of short seeds. A step of seven brokers costs five times one of three."""
SHARES = (72, 8, 5, 6, 5, 1, 1, 2)
"""The weights with which `SHAPES` are drawn, in the same order."""

Profile = Literal["long", "short", "mixed", "losses"]
LONG_EACH = 50
"""One in this many seeds is long in the profiles `mixed` and `losses`."""
MORE_SHARE = 0.3
"""The share of short seeds that draw more than the others."""
LEFT_BEHIND_SHARE = 0.2
"""The share of these in which a coordinator is left behind."""
LEFT_BEHIND = 9.0
"""Seconds, scaled by the tempo, by which these seeds are longer: two takeovers."""
SWARM_SHARE = 0.6
"""The share of these with one of `SWARM`."""
SWARM = ("bounds", "window", "topics", "load")
"""The kinds of excess of these seeds: topics that keep one or two publications, a duplicate window that passes within
the run, more topics than the cache has bytes for, or so much load that some publications always wait for their
commit."""
IDLE_SHARE = 0.12
"""The share of seeds in which topics are removed when they are idle."""
FINAL_CHECKS_EACH = 16
"""One in this many short seeds runs the final checks, which make it half as long again."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one run. Durations are in seconds."""

    seed: int
    tempo: float  # factor of all durations: a quick cluster has more takeovers
    brokers: tuple[str, ...]
    min_copies: int
    groups: int
    topics: tuple[str, ...]
    messages_per_topic: int
    min_age: float
    max_age: float
    max_bytes: int
    part_bytes: int
    client_queue: int
    page: int
    duplicate_window: float
    on_history_loss: Literal["reset", "halt"]
    edges: int
    edge_delay: float
    link_delay: float
    client_delay: float
    zookeeper_delay: float
    zookeeper_lag: float
    publishers: int
    subscribers: int
    rate: float  # publications per second of each publisher
    give_up: float  # seconds after which a publisher gives a publication up
    start_spread: float  # all brokers start within this time
    faults_end: float
    settle: float  # publishing continues for this long after the faults
    bound: float  # recovery must be complete within this time
    plan: Plan
    profile: Literal["long", "short"] = "long"
    weights: tuple[int, ...] = ()  # of the brokers in server lists; default 100
    snapshots: float = 0.0  # probability that a subscription asks for a snapshot, or begins anew
    hurry: float = 1.0  # factor of the pauses between clients' first actions
    clients_from: float = 0.0  # start of the first client
    beat: float = 1.0  # factor of the heartbeat's period
    silence: float = 1.0  # factor of the time without a message after which a broker counts as silent

    padding: int = 0  # extra bytes of each payload
    high_water: int = 4096  # bytes buffered for a stalled client before its edge is paused
    final_checks: bool = True  # run the final checks
    # Limits that a small cluster would never reach with the defaults.
    max_pending: int = 100_000
    publishes_per_client: int = 10_000
    queue_total: int = 268_435_456
    batch_delay: float = 0.0
    conflation: float = 0.0  # interval; 0: no conflation
    probes: float = 0.0  # probability that a publication is followed by a resume from a made-up position
    misuse: float = 0.0  # probability that a publication is followed by another payload under its publisher's ids
    at_once: int = 8  # groups that change their list or are handed over at the same time
    topic_idle: float = 0.0  # seconds after which a topic is idle; 0: never

    def weight(self, broker: str) -> int:
        """Return the weight of a broker in server lists, 100 for one that has none."""
        index = self.brokers.index(broker) if broker in self.brokers else len(self.weights)
        return self.weights[index] if index < len(self.weights) else 100


def profile_of(seed: int, profile: Profile) -> Literal["long", "short"]:
    """Return whether a seed is long or short in this profile."""
    if profile in ("long", "short"):
        return profile
    return "long" if seed % LONG_EACH == 0 else "short"


def draw_options(seed: int, profile: Profile = "long", *, more: bool = True) -> Options:
    """Return the options that the seed draws in this profile. Without `more`, no short seed is among those of
    `MORE_SHARE`, so that a seed which failed before these were added is the same run."""
    options = _draw_long(seed) if profile_of(seed, profile) == "long" else _draw_short(seed)
    random = Random(f"delivery {seed}")  # a generator of its own keeps earlier draws unchanged
    batch_delay, conflation = random.choice(((0.0, 0.0), (0.02, 0.0), (0.3, 0.0), (0.0, 0.4), (0.0, 1.5), (0.1, 0.6)))
    plan = with_hangs(Random(f"hangs {seed}"), options.plan, options.brokers, options.tempo)
    plan = with_data_losses(Random(f"data losses {seed}"), plan, options.tempo, always=profile == "losses")
    misuse = Random(f"misuse {seed}").choice((0.0, 0.0, 0.1, 0.5))
    options = replace(options, batch_delay=batch_delay, conflation=conflation, plan=plan, misuse=misuse)
    idle = Random(f"idle {seed}")
    if idle.random() < IDLE_SHARE:
        topic_idle = idle.choice((0.2, 0.5, 2.0))
        options = replace(options, topic_idle=topic_idle, max_age=idle.choice((0.3, 1.0)))
    random = Random(f"swarm {seed}")
    if options.profile == "short" and more and random.random() < MORE_SHARE:
        return _with_more(random, options)
    return options


def _with_more(random: Random, options: Options) -> Options:
    """Return the options of a short seed with resumes from made-up positions, and for a part of the seeds with other
    `minCopies` after a rolling restart, a coordinator that is left behind, or one of `SWARM`."""
    plan = with_other_copies(random, options.plan, len(options.brokers), options.min_copies)
    options = replace(options, plan=plan, probes=0.05)
    if options.plan.faults and random.random() < LEFT_BEHIND_SHARE:
        plan = with_left_behind(random, options.plan, options.groups, options.tempo)
        options = replace(options, plan=plan, faults_end=options.faults_end + LEFT_BEHIND * options.tempo)
    if random.random() >= SWARM_SHARE:
        return options
    kind = random.choice(SWARM)
    if kind == "bounds":
        return replace(options, messages_per_topic=random.choice((1, 2)), min_age=0.0)
    if kind == "topics":
        topics = _topics(options.groups, random.randint(8, 14))
        return replace(options, topics=topics, max_bytes=random.choice((600, 1500)))
    if kind == "load":
        return replace(options, rate=random.choice((60.0, 120.0)), publishers=random.choice((2, 3)))
    # A publication that a slow or frozen broker holds must arrive before its publisher is forgotten.
    if any(isinstance(fault, ClockJump) and fault.ahead for _, fault in options.plan.faults):
        return options
    window = 15.0 * options.tempo
    settle = options.settle + window
    return replace(options, duplicate_window=window, give_up=1.5 * options.tempo, settle=settle, final_checks=True)


def _draw_long(seed: int) -> Options:
    """Return the options that a long seed draws, without later additions that have generators of their own."""
    random = Random(f"options {seed}")
    count, copies = random.choice(((3, 2), (3, 2), (3, 2), (3, 2), (3, 2), (4, 2), (5, 2), (5, 3), (3, 1)))
    brokers = tuple(f"broker-{number}" for number in range(count))
    groups = random.randint(1, 3)
    topics = _topics(groups, random.randint(groups, groups + 2))
    cache = random.choice((4, 8, 20, 60))
    publishers, subscribers = random.randint(1, 3), random.randint(1, 3)
    tempo = random.choice((1.0, 0.3, 0.3))
    faults_end = random.uniform(22.0, 34.0) * (1.0 if tempo == 1.0 else 0.5)
    window = random.choice((25.0, 120.0))
    begin = random.choice((0.5, 4.0, 7.0)) * tempo  # the earliest hit a cluster without records
    scope = Scope(brokers, len(topics), publishers + subscribers, cache, tempo, tempo, window * tempo)
    options = Options(
        seed=seed,
        tempo=tempo,
        brokers=brokers,
        min_copies=copies,
        groups=groups,
        topics=topics,
        messages_per_topic=cache,
        min_age=random.choice((0.0, 0.0, 1.0, 5.0)),
        max_age=random.choice((3.0, 20.0, 600.0)),
        max_bytes=random.choice((20_000, 1_000_000)),
        part_bytes=random.choice((200, 1_000_000)),
        client_queue=random.choice((3_000, 1_000_000)),
        page=random.choice((60, 400, 65_536)),
        duplicate_window=window * tempo,
        on_history_loss="reset",
        edges=random.choice((1, 1, 2)),
        edge_delay=random.choice((0.0, 0.0, 0.001, 0.02)),
        link_delay=random.choice((0.001, 0.005, 0.02, 0.06)),
        client_delay=random.choice((0.001, 0.005, 0.03)),
        zookeeper_delay=random.choice((0.002, 0.01, 0.05)),
        zookeeper_lag=random.choice((0.0, 0.0, 0.02, 0.3)),
        publishers=publishers,
        subscribers=subscribers,
        rate=random.choice((2.0, 5.0, 10.0, 25.0)) if tempo == 1.0 else random.choice((5.0, 15.0, 40.0)),
        # A message in a frozen broker or on a slow link must expire before the table forgets its publisher.
        give_up=random.choice((1.5, 8.0) if window < 60.0 else (1.5, 8.0, 15.0)) * tempo,
        start_spread=random.choice((0.2, 2.0, 7.0)) * tempo,
        faults_end=faults_end,
        settle=6.0 * tempo,
        bound=60.0 * tempo,
        plan=draw_plan(random, scope, begin, faults_end, (2, 12 if tempo == 1.0 else 24), WEIGHTS),
    )
    more = Random(f"more {seed}")
    if more.random() < 0.6:
        return options
    # The remaining seeds get later additions from a generator of their own.
    return replace(
        options,
        plan=with_extras(more, options.plan, scope, begin, faults_end),
        **_draw_limits(more, options.plan.safe, count),
    )


def _draw_short(seed: int) -> Options:
    """Return the options that a short seed draws, without later additions that have generators of their own."""
    random = Random(f"short {seed}")
    count, copies = random.choices(SHAPES, SHARES)[0]
    brokers = tuple(f"broker-{number}" for number in range(count))
    groups = random.choice((1, 1, 2))
    topics = _topics(groups, random.randint(groups, groups + 1))
    cache = random.choice((3, 8, 30))
    publishers, subscribers = random.choice((1, 1, 2)), random.choice((1, 1, 2))
    tempo = 0.3
    begin = random.choice((0.1, 1.2, 1.6, 1.8, 2.0))  # most clusters accept clients after 1.8 seconds
    faults_end = begin + random.uniform(0.8, 1.9)
    window = random.choice((25.0, 120.0))
    scope = Scope(brokers, len(topics), publishers + subscribers, cache, tempo, tempo * 0.35, window * tempo)
    plan = draw_plan(random, scope, begin, faults_end - 0.3, (4, 9), ALL)
    return Options(
        seed=seed,
        tempo=tempo,
        brokers=brokers,
        min_copies=copies,
        groups=groups,
        topics=topics,
        messages_per_topic=cache,
        min_age=random.choice((0.0, 0.0, 0.5)),
        max_age=random.choice((1.0, 600.0, 600.0)),
        max_bytes=random.choice((2_500, 1_000_000, 1_000_000)),
        part_bytes=random.choice((200, 1_000_000)),
        client_queue=random.choice((600, 600, 1_000_000)),
        page=random.choice((60, 400, 65_536)),
        duplicate_window=window * tempo,
        edges=random.choice((1, 1, 1, 2)),
        edge_delay=random.choice((0.0, 0.0, 0.001, 0.02)),
        link_delay=random.choice((0.001, 0.005, 0.02, 0.06)),
        client_delay=random.choice((0.001, 0.005, 0.03)),
        zookeeper_delay=random.choice((0.002, 0.01, 0.05)),
        zookeeper_lag=random.choice((0.0, 0.0, 0.02, 0.3)),
        publishers=publishers,
        subscribers=subscribers,
        rate=random.choice((5.0, 10.0, 25.0)),
        give_up=random.choice((1.5, 8.0) if window < 60.0 else (1.5, 8.0, 15.0)) * tempo,
        start_spread=random.choice((0.1, 0.1, 2.0)) * tempo,
        faults_end=faults_end,
        settle=1.0 * tempo,
        bound=60.0 * tempo,
        plan=plan,
        profile="short",
        final_checks=seed % FINAL_CHECKS_EACH == 0,
        hurry=0.3,
        beat=random.choice((1.0, 2.0, 2.0, 2.0)),
        clients_from=max(0.0, begin - random.uniform(0.2, 0.8)),
        **_draw_limits(random, plan.safe, count),
    )


class Limits(TypedDict):
    """Options that every short seed draws, and some of the long ones."""

    on_history_loss: Literal["reset", "halt"]
    weights: tuple[int, ...]
    snapshots: float
    max_pending: int
    publishes_per_client: int
    queue_total: int
    at_once: int
    padding: int
    high_water: int


def _draw_limits(random: Random, safe: bool, brokers: int) -> Limits:
    """Draw limits that a small cluster reaches, and other options of `Limits`. Lost histories may be halted only where
    the plan is not `safe`."""
    weights = tuple(random.choice((100, 100, 50, 1, 0)) for _ in range(brokers)) if random.random() < 0.3 else ()
    return {
        "on_history_loss": "halt" if not safe and random.random() < 0.3 else "reset",
        "weights": weights if any(weights) else (),
        "snapshots": random.choice((0.0, 0.3, 0.8)),
        "max_pending": random.choice((100_000, 100_000, 2)),
        "publishes_per_client": random.choice((10_000, 10_000, 3)),
        "queue_total": random.choice((268_435_456, 268_435_456, 5_000)),
        "at_once": random.choice((8, 1)),
        "padding": random.choice((0, 0, 150)),
        "high_water": random.choice((4096, 200)),
    }


def _topics(groups: int, count: int) -> tuple[str, ...]:
    """Return `count` topic names of which every group has at least one."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"t{number}"
        number += 1
        if len(names) >= groups or topic_group(name, groups) == len(names):
            names.append(name)
    return tuple(names)
