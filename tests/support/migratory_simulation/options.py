"""What a seed decides before the run: the shape of the cluster, its load and limits, and the plan of faults."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from migratory_protocol.topics import topic_group

from migratory_simulation.faults import Plan, draw_plan


@dataclass(frozen=True, slots=True)
class Options:
    """Seconds and counts."""

    seed: int
    tempo: float  # all time limits, and what lasts, times this: a quick cluster sees more takeovers
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
    on_history_loss: str
    edges: int
    edge_delay: float
    link_delay: float
    client_delay: float
    zookeeper_delay: float
    zookeeper_lag: float
    publishers: int
    subscribers: int
    rate: float  # publications per second and publisher
    give_up: float  # seconds after which a publisher gives a publication up
    start_spread: float  # brokers start within so many seconds
    faults_end: float
    settle: float  # publishing goes on so long after the faults
    bound: float  # then everything must be answered and caught up within so many seconds
    plan: Plan


def draw_options(seed: int) -> Options:
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
    begin = random.choice((0.5, 4.0, 7.0)) * tempo  # the earliest strike a cluster that has no record yet
    return Options(
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
        # What floats in a frozen broker or on a clogged link must be dead before the table forgets its publisher.
        give_up=random.choice((1.5, 8.0) if window < 60.0 else (1.5, 8.0, 15.0)) * tempo,
        start_spread=random.choice((0.2, 2.0, 7.0)) * tempo,
        faults_end=faults_end,
        settle=6.0 * tempo,
        bound=60.0 * tempo,
        plan=draw_plan(random, brokers, len(topics), publishers + subscribers, begin, faults_end, cache, tempo),
    )


def _topics(groups: int, count: int) -> tuple[str, ...]:
    """`count` names of which every group has at least one."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"t{number}"
        number += 1
        if len(names) >= groups or topic_group(name, groups) == len(names):
            names.append(name)
    return tuple(names)
