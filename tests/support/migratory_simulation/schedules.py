"""Directed schedules: situations that rules are about and that random plans rarely produce.

Each is a script (scripts_*.py) over a small cluster without other faults. Its seed draws the delays, the clients and
the moments. Correct code holds all invariants in it; several planted faults are detected by nothing else within
reasonable time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from migratory_protocol.topics import topic_group

from migratory_simulation import scripts_moves, scripts_partitions, scripts_restarts, scripts_takeover
from migratory_simulation.options import Options, draw_options
from migratory_simulation.scripted import Script, ScriptedCluster
from migratory_simulation.world import Report, World, run_seed


class Schedule(NamedTuple):
    """A script and the options of its cluster. `lasts`: tempo seconds until the world heals. `safe`: no list may
    lose more than q - 1 members."""

    script: Script
    lasts: float
    safe: bool = True
    brokers: int = 3
    copies: int = 2
    groups: int = 1
    topics: int = 1  # of each group
    publishers: int = 3
    subscribers: int = 2
    rate: float = 15.0  # publications per second of each publisher
    cache: int = 60
    client_queue: int = 1_000_000
    page: int = 65_536
    max_age: float = 600.0
    give_up: float = 8.0
    window: float = 120.0  # duplicate window in tempo seconds
    high_water: int = 0  # 0: as drawn
    edges: int = 0  # I/O processes of each broker; 0: as drawn
    alike: bool = False  # all brokers have the same weight
    halt: bool = False


def options_of(schedule: Schedule, seed: int) -> Options:
    """Return the options of a schedule; what it leaves open is drawn from the seed."""
    drawn = draw_options(seed)
    tempo = 0.3
    return replace(
        drawn,
        tempo=tempo,
        brokers=tuple(f"broker-{number}" for number in range(schedule.brokers)),
        min_copies=schedule.copies,
        groups=schedule.groups,
        topics=_topics(schedule.groups, schedule.topics),
        messages_per_topic=schedule.cache,
        min_age=0.0,
        max_age=schedule.max_age,
        max_bytes=1_000_000,
        client_queue=schedule.client_queue,
        page=schedule.page,
        duplicate_window=schedule.window * tempo,
        link_delay=min(drawn.link_delay, 0.02),
        zookeeper_delay=0.01,
        zookeeper_lag=0.0,
        publishers=schedule.publishers,
        subscribers=schedule.subscribers,
        rate=schedule.rate,
        give_up=schedule.give_up * tempo,
        start_spread=0.2,
        faults_end=schedule.lasts * tempo,
        settle=6.0 * tempo,
        bound=60.0 * tempo,
        plan=replace(drawn.plan, safe=schedule.safe, faults=()),
        high_water=schedule.high_water or drawn.high_water,
        edges=schedule.edges or drawn.edges,
        edge_delay=max(drawn.edge_delay, 0.001) if schedule.edges else drawn.edge_delay,
        weights=() if schedule.alike else drawn.weights,
        on_history_loss="halt" if schedule.halt else drawn.on_history_loss,
    )


def _topics(groups: int, each: int) -> tuple[str, ...]:
    """Return `each` topic names of every group."""
    counts: Counter[int] = Counter()
    names = []
    for name in (f"t{number}" for number in range(1000)):
        group = topic_group(name, groups)
        if counts[group] < each:
            counts[group] += 1
            names.append(name)
    return tuple(names)


ALL: dict[str, Schedule] = {
    "superseded tail": Schedule(scripts_takeover.superseded_tail, 25.0, publishers=4),
    "tail cut": Schedule(scripts_takeover.tail_cut, 30.0, publishers=4),
    "one tail of two cut": Schedule(scripts_takeover.tail_cut, 30.0, topics=2, publishers=4),
    "away for two epochs": Schedule(scripts_takeover.away_for_two_epochs, 30.0, publishers=4),
    "two coordinators": Schedule(scripts_takeover.two_coordinators, 25.0),
    "overtaken": Schedule(scripts_takeover.overtaken, 30.0),
    "overtaken early": Schedule(scripts_takeover.overtaken_early, 30.0),
    "slow first": Schedule(scripts_takeover.slow_first, 45.0),
    "late word": Schedule(scripts_takeover.late_word, 30.0, brokers=5, copies=3),
    "lost reply": Schedule(scripts_takeover.lost_reply, 50.0),
    "two lives": Schedule(scripts_restarts.two_lives, 40.0, safe=False),
    "late answer": Schedule(scripts_restarts.late_answer, 30.0, cache=8, give_up=25.0),
    "replaced while serving": Schedule(scripts_restarts.replaced_while_serving, 45.0, safe=False),
    "newer life": Schedule(scripts_restarts.newer_life, 25.0, safe=False),
    "rolling restart": Schedule(scripts_restarts.rolling_restart, 60.0, subscribers=8, cache=100_000),
    "member dies": Schedule(scripts_restarts.member_dies, 22.0),
    "learner": Schedule(scripts_restarts.learner, 35.0),
    "drain": Schedule(scripts_restarts.drain, 60.0, groups=3, publishers=2, subscribers=3),
    "only copy leaves": Schedule(scripts_restarts.only_copy_leaves, 70.0, copies=1, groups=2),
    "overtaken leaves": Schedule(scripts_restarts.overtaken_leaves, 70.0, copies=1),
    "hangs in a turn": Schedule(scripts_restarts.hangs_in_a_turn, 30.0, copies=1, topics=2, rate=50.0, cache=4),
    "alone": Schedule(scripts_partitions.alone, 25.0, subscribers=4),
    "cut coordinator": Schedule(scripts_partitions.cut_coordinator, 90.0, groups=2),
    "cut and quiet": Schedule(scripts_partitions.cut_coordinator, 90.0, groups=2, publishers=0),
    "cut contact": Schedule(scripts_partitions.cut_contact, 22.0, subscribers=4),
    "ZooKeeper away": Schedule(scripts_partitions.zookeeper_away, 60.0),
    "lagging contact": Schedule(scripts_partitions.lagging_contact, 40.0, subscribers=4),
    "missed and evicted": Schedule(scripts_partitions.missed_and_evicted, 50.0, cache=8, page=60, subscribers=4),
    "evicted by age": Schedule(
        scripts_partitions.missed_and_evicted, 50.0, cache=8, page=60, max_age=0.25, subscribers=4
    ),
    "stalled reader": Schedule(scripts_partitions.stalled_reader, 30.0, subscribers=4),
    "stalled and cut": Schedule(scripts_partitions.stalled_reader, 30.0, subscribers=4, client_queue=3000),
    "two at once": Schedule(scripts_restarts.two_at_once, 100.0, safe=False, groups=2, publishers=1, subscribers=4),
    "only copy gone": Schedule(
        scripts_restarts.two_at_once, 100.0, safe=False, copies=1, groups=2, publishers=1, subscribers=4
    ),
    "memory gone": Schedule(
        scripts_restarts.memory_gone, 70.0, safe=False, groups=2, publishers=2, subscribers=4, page=60
    ),
    "lost activation": Schedule(scripts_takeover.lost_activation, 50.0, safe=False, brokers=4),
    "lives at once": Schedule(scripts_restarts.lives_at_once, 60.0, safe=False),
    "stalled replay": Schedule(scripts_partitions.stalled_replay, 40.0, subscribers=4, page=60, high_water=100),
    "others go on": Schedule(scripts_partitions.others_go_on, 60.0, subscribers=4),
    "halting goes on": Schedule(scripts_partitions.halting_goes_on, 60.0, halt=True),
    "quiet in one": Schedule(scripts_partitions.quiet_in_one, 40.0, topics=2, publishers=1, give_up=1.5, window=6.0),
    "links break": Schedule(scripts_takeover.links_break, 40.0, brokers=5, copies=3),
    "came back": Schedule(scripts_partitions.came_back, 40.0, subscribers=4),
    "former word": Schedule(scripts_partitions.former_word, 50.0, brokers=5, copies=3, subscribers=16, alike=True),
    "two edges": Schedule(scripts_partitions.two_edges, 60.0, subscribers=8, edges=2),
    "updates": Schedule(scripts_moves.updates, 420.0, publishers=2, subscribers=7, rate=1.0, alike=True),
    "scales": Schedule(scripts_moves.scales, 560.0, publishers=2, subscribers=13, rate=1.0, alike=True),
    "idle": Schedule(scripts_restarts.idle, 150.0, groups=2, publishers=0),
}


def run_trial(schedule: str, seed: int, sink: Callable[[str], None] | None = None) -> Report:
    """Run a schedule, or ("") the plan that the seed draws."""
    if not schedule:
        return run_seed(seed, sink)
    chosen = ALL[schedule]

    def direct(world: World) -> None:
        ScriptedCluster(world, schedule, chosen.script)

    return run_seed(seed, sink, options_of(chosen, seed), direct)
