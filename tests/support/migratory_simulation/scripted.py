"""Scripts of directed runs: faults that strike when the cluster is in a certain state, which random plans rarely hit.

A script is a generator over a `ScriptedCluster`. It yields how long to wait (virtual seconds) or a condition to wait
for, and injects faults in between: it blocks links, cuts brokers from ZooKeeper, crashes, drains and replaces them. It
never changes a core. A condition that it expects (`expect`) and that does not come in time is a violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

from migratory_broker.core.logic.membership.records import GroupRecord
from migratory_broker.core.logic.replication.topic_log import TopicLog
from migratory_protocol.codec import CODECS
from migratory_protocol.topics import topic_group

from migratory_simulation.clients import Client
from migratory_simulation.external_checker import Violation
from migratory_simulation.network import ways
from migratory_simulation.options import Options, draw_options
from migratory_simulation.plans import Plan
from migratory_simulation.process import Process
from migratory_simulation.world import World

BROKERS = ("broker-0", "broker-1", "broker-2")
START = 40.0
"""Seconds, scaled by the run's tempo, within which a cluster must have started."""
POLL = 0.005
"""Virtual seconds between two checks of a condition."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A condition that must hold within `limit` virtual seconds. Otherwise the run violates the invariant `breaks`;
    with 0 the script ends without a violation. `text` says what was expected."""

    condition: Callable[[], bool]
    limit: float
    breaks: int = 0
    text: str = ""


Steps = Iterator[float | Wait]
Script = Callable[["ScriptedCluster"], Steps]


class Schedule(NamedTuple):
    """A script, and a function that returns the options of its cluster for a seed."""

    script: Script
    options: Callable[[int], Options]


SCHEDULES: dict[str, Schedule] = {}


def schedule(lasts: float, name: str = "", **options: Any) -> Callable[[Script], Script]:
    """Return a decorator that registers a script as a schedule called `name`, or like the function, with spaces.
    `options_of` describes `lasts` and `options`. A script may be registered several times."""

    def register(script: Script) -> Script:
        title = name or script.__name__.replace("_", " ")
        SCHEDULES[title] = Schedule(script, partial(options_of, lasts=lasts, **options))
        return script

    return register


def options_of(
    seed: int,
    *,
    lasts: float,
    safe: bool = True,
    brokers: int = 3,
    groups: int = 1,
    topics: int = 1,
    give_up: float = 8.0,
    window: float = 120.0,
    edges: int = 0,
    **more: Any,
) -> Options:
    """Return the options of a schedule. What it leaves open is drawn from the seed.

    `lasts` (until the world heals), `give_up` and `window` (the duplicate window) are seconds that the tempo scales.
    `safe`: no member list may lose more than minCopies - 1 members. `topics` is their number in each group. `edges` is
    their number, 0 for as many as drawn. `more` are fields of `Options`.
    """
    drawn = draw_options(seed)
    tempo = 0.3
    fixed: dict[str, Any] = {
        "tempo": tempo,
        "brokers": tuple(f"broker-{number}" for number in range(brokers)),
        "min_copies": 2,
        "groups": groups,
        "topics": _topics(groups, topics),
        "messages_per_topic": 60,
        "min_age": 0.0,
        "max_age": 600.0,
        "max_bytes": 1_000_000,
        "client_queue": 1_000_000,
        "page": 65_536,
        "duplicate_window": window * tempo,
        "link_delay": min(drawn.link_delay, 0.02),
        "zookeeper_delay": 0.01,
        "zookeeper_lag": 0.0,
        "publishers": 3,
        "subscribers": 2,
        "rate": 15.0,
        "give_up": give_up * tempo,
        "start_spread": 0.2,
        "faults_end": lasts * tempo,
        "settle": 6.0 * tempo,
        "bound": 60.0 * tempo,
        "silence": 50.0,  # most scripts are about coordinators that are cut off or stand still, and stay
        "plan": Plan(safe, ()),
    }
    if edges:
        fixed |= {"edges": edges, "edge_delay": max(drawn.edge_delay, 0.001)}
    return replace(drawn, **fixed | more)


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


class ScriptedCluster:
    """The simulated cluster as a script observes and disturbs it.

    A script yields each `Wait` that a method returns. `group` defaults to 0. Limits and delays are multiplied by
    `tempo`, the factor of all the product's durations in this run. Once the world heals, the script does not go on.
    """

    def __init__(self, world: World, name: str, script: Script) -> None:
        self.world = world
        self.name = name
        self.tempo = world.options.tempo
        self.random = Random(f"schedule {name} {world.options.seed}")
        self._steps = script(self)
        world.scheduler.after(0.0, self._resume)

    # ---- the script

    def _resume(self) -> None:
        """Run the script up to its next step, and schedule that. Do nothing once the world has healed."""
        if self.world.healed:
            return
        step = next(self._steps, None)
        if step is None:
            self.world.coverage[f"schedule {self.name}"] += 1
        elif isinstance(step, Wait):
            self._poll(step, self.world.scheduler.now + step.limit)
        else:
            self.world.scheduler.after(step, self._resume)

    def _poll(self, wait: Wait, until: float) -> None:
        """Run the script on if the condition holds, or check it again a little later. After the moment `until`, raise
        Violation if the wait names an invariant, otherwise end the script."""
        if self.world.healed:
            return
        if wait.condition():
            self._resume()
        elif self.world.scheduler.now < until:
            self.world.scheduler.after(POLL, self._poll, wait, until)
        elif wait.breaks:
            raise Violation(wait.breaks, f"{self.name}: {wait.text} within {wait.limit:.1f} s")
        else:
            self.trace(f"the script ends: no {wait.text or 'such state'} within {wait.limit:.1f} s")

    def until(self, condition: Callable[[], bool], limit: float, what: str = "") -> Wait:
        """Return a wait of up to `limit` seconds, scaled by the tempo, for a state that the script needs. If it does
        not come, the script ends without a violation."""
        return Wait(condition, limit * self.tempo, 0, what)

    def up(self) -> Wait:
        """Return a wait until the cluster has started. The script ends if it does not start."""
        return self.until(self.all_ready, START, "cluster that is up")

    def next_record(self, before: GroupRecord | None, limit: float = 12.0) -> Wait:
        """Return a wait until the ZooKeeper record of group 0 is another one than `before`. The script ends if that
        takes longer than `limit` seconds, scaled by the tempo."""
        return self.until(lambda: self.record() != before, limit, "next record")

    def taken_over(self, old: Process, limit: float) -> Wait:
        """Return a wait until another broker than `old` coordinates group 0. The script ends if that takes longer
        than `limit` seconds, scaled by the tempo."""
        return self.until(lambda: self.coordinator() not in (None, old), limit, "takeover")

    def commit(self, process: Process, limit: float, more: int = 0) -> Wait:
        """Return a wait until a broker has committed at least `more` + 1 publications of group 0 more than now. The
        script ends if that takes longer than `limit` seconds, scaled by the tempo."""
        begun = self.committed(process)
        return self.until(lambda: self.committed(process) > begun + more, limit, "commit")

    def at_rest(self) -> Wait:
        """Return a wait until all brokers are ready and listed. The script ends if they are not in time."""
        return self.until(self.all_ready, 10.0, "cluster that is at rest")

    def coordinated(self) -> Wait:
        """Return a wait until group 0 has a coordinator. The script ends if there is none in time."""
        return self.until(lambda: self.coordinator() is not None, 10.0, "coordinator")

    def settled(self, longest: float = 3.0) -> Steps:
        """Wait until the cluster is up and, at a random moment after that, at rest. `longest` is the latest moment, in
        seconds scaled by the tempo. The script ends if the cluster does not come that far in time."""
        yield self.up()
        yield self.random.uniform(0.5, longest) * self.tempo
        yield self.at_rest()

    def expect(self, condition: Callable[[], bool], limit: float, text: str, invariant: int = 7) -> Wait:
        """Return a wait for a state that the cluster must reach within `limit` seconds, scaled by the tempo.
        Otherwise the run violates `invariant`, with `text`."""
        return Wait(condition, limit * self.tempo, invariant, text)

    def demand(self, holds: bool, text: str, invariant: int = 7) -> None:
        """Raise a Violation of `invariant`, with `text`, unless `holds`."""
        if not holds:
            raise Violation(invariant, f"{self.name}: {text}")

    def commits(self, limit: float, text: str, process: Process | None = None) -> Wait:
        """Return a wait in which the coordinator (`process` if given, else looked up again) must commit more than until
        now, within `limit` seconds, scaled by the tempo. Otherwise the run violates invariant 7, with `text`."""
        committed = self.committed(process or self.current())
        return self.expect(lambda: self.committed(process or self.current()) > committed, limit, text)

    def drained(self, process: Process, limit: float) -> Wait:
        """Return a wait in which the broker must report itself drained within `limit` seconds, scaled by the tempo.
        Otherwise the run violates invariant 7."""
        return self.expect(lambda: process.logic.drained, limit, f"{process.label} is never drained")

    def no_tail(self, process: Process) -> Wait:
        """Return a wait in which the broker must commit all its uncommitted entries within 3 seconds, scaled by the
        tempo. Otherwise the run violates invariant 7."""
        return self.expect(lambda: not self.tail(process), 3.0, f"{process.label} commits no more")

    def no_clients(self, process: Process, limit: float) -> Wait:
        """Return a wait in which all clients must leave the broker within `limit` seconds, scaled by the tempo.
        Otherwise the run violates invariant 7."""
        return self.expect(lambda: not process.clients, limit, f"{process.label} still has clients")

    def trace(self, text: str) -> None:
        """Write a line of the trace."""
        self.world.trace("schedule", "**", text)

    # ---- observation

    def record(self, group: int = 0) -> GroupRecord | None:
        """Return the latest ZooKeeper record of a group, None before the first."""
        return self.world.internal.latest.get(group)

    def coordinator(self, group: int = 0) -> Process | None:
        """Return the owner of the latest record if that is activated and the owner runs, else None."""
        record, process = self.record(group), self.owner(group)
        running = process is not None and record is not None and process.identity == tuple(record.owner)
        return process if running and record is not None and record.activated else None

    def owner(self, group: int = 0) -> Process | None:
        """Return the newest process of the broker that owns the latest record, None without a record or a running
        process."""
        record = self.record(group)
        return None if record is None else self.world.process_of(record.owner[0])

    def current(self, group: int = 0) -> Process:
        """Return the group's coordinator. Raise LookupError when there is none."""
        process = self.coordinator(group)
        if process is None:
            raise LookupError(f"{self.name}: group {group} has no coordinator now: {self.record(group)}")
        return process

    def others(self, *but: Process) -> list[Process]:
        """Return the newest process of every configured broker that runs, without those in `but`, in the order of the
        configuration."""
        return [process for process in self.world.members() if process not in but]

    def log(self, process: Process, group: int = 0) -> TopicLog | None:
        """Return, of a group's topics, the log with the longest uncommitted tail at a broker, None without a log."""
        logs = process.replica(group).topics.values()
        return max(logs, key=lambda log: (log.last - log.committed, log.last), default=None)

    def committed(self, process: Process, group: int = 0) -> int:
        """Return the last committed sequence number of the topic that `log` returns."""
        log = self.log(process, group)
        return 0 if log is None else log.committed

    def tail(self, process: Process, group: int = 0) -> int:
        """Return the length of the uncommitted tail of the topic that `log` returns."""
        log = self.log(process, group)
        return 0 if log is None else log.last - log.committed

    def synced(self, process: Process, group: int = 0) -> int:
        """Return the epoch to which the broker's replica of the group is synced."""
        return process.replica(group).synced

    def all_ready(self) -> bool:
        """Return whether every configured broker accepts clients, and every group's record is activated and lists
        them all."""
        size = len(self.world.names)
        records = [self.record(group) for group in range(self.world.options.groups)]
        return self.world.all_open() and all(
            record is not None and record.activated and len(record.members) == size for record in records
        )

    def registered(self) -> bool:
        """Return whether every configured broker runs and is registered with ZooKeeper."""
        found = self.others()
        return len(found) == len(self.world.names) and all(process.incarnation > 0 for process in found)

    def readers(self) -> list[Client]:
        """Return the clients that subscribe to something."""
        return [client for client in self.world.clients if client.subscribes]

    def fences(self) -> int:
        """Return how often brokers have fenced themselves in this run."""
        return self.world.coverage["fences"]

    def linked(self, one: Process, other: Process) -> bool:
        """Return whether the first process believes to have a link to the broker of the other one."""
        return self.world.network.link_of(one, other.name) is not None

    # ---- faults

    def block(self, one: Process, *others: Process, both: bool = True) -> None:
        """Hold messages from `one` to the others and, unless `both` is false, those back, until `unblock`."""
        for other in others:
            self.trace(f"{one.label} {'and' if both else 'to'} {other.label}: blocked")
            self.world.network.block(ways([one], [other], back=both))

    def unblock(self, one: Process, *others: Process) -> None:
        """Let `one` and each of the others exchange messages again, in both directions."""
        for other in others:
            self.trace(f"{one.label} and {other.label}: open")
            self.world.network.unblock(ways([one], [other]))

    def clog(self, one: Process, other: Process, delay: float) -> None:
        """Delay messages from `one` to `other` by `delay` more seconds, scaled by the tempo, until the world heals."""
        self.trace(f"{one.label} to {other.label}: {delay:.2f} tempo seconds longer")
        self.world.network.clog([(one.number, other.number)], delay * self.tempo)

    def burst(self, count: int) -> None:
        """Let each publisher publish `count` more messages with QoS 0, spread over its topics; a remainder of the
        division is left out."""
        for client in self.world.clients:
            for topic in client.publishes:
                for index in range(count // len(client.publishes)):
                    self.world.scheduler.after(index * 0.01, self._publish, client, topic)

    def _publish(self, client: Client, topic: str) -> None:
        client.publish(topic, qos=0)

    def newcomer(self, *topics: str) -> Client:
        """Start and return a client that publishes on these topics, and that no broker knows. It publishes only when
        the script says so."""
        client = Client(self.world, 100 + len(self.world.clients), (), topics, self.random.choice(list(CODECS)))
        self.world.clients.append(client)
        client.start()
        return client

    def cut_zookeeper(self, process: Process, *, expire: bool) -> None:
        """Cut a process from ZooKeeper until `restore_zookeeper`. With `expire`, ZooKeeper ends its session at once."""
        self.trace(f"{process.label}: cut from ZooKeeper")
        process.zk.set_cut(True)
        if expire:
            self.expire_session(process)

    def expire_session(self, process: Process) -> None:
        """End the session of a broker, which learns of that when it reaches ZooKeeper again."""
        if process.zk.expire_session():
            self.trace(f"{process.label}: its session expired")

    def restore_zookeeper(self, process: Process) -> None:
        self.trace(f"{process.label}: reaches ZooKeeper")
        process.zk.set_cut(False)

    def crash(self, process: Process, downtime: float) -> None:
        """Crash a process; the broker's next process starts after `downtime` seconds, scaled by the tempo."""
        self.world.process_ends(process, "crash", restart=downtime * self.tempo)

    def replace(self, *old: Process, together: tuple[Process, ...] = ()) -> None:
        """Start new processes of these brokers while the old ones run on, cut off as in `World.replace`. Those in
        `together` still hear each other."""
        self.trace(f"{', '.join(process.label for process in old)}: replaced")
        self.world.replace(old, {*together})
