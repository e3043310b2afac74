"""The whole simulated cluster: run one seed and report the outcome or a violation.

A run has three parts. First everything starts under load, and the plan's faults are injected. Then the world is
healed: no fault remains and every broker runs. From there on, everything must recover within a bound: a rolling
restart that has begun ends, every broker accepts clients, publications are answered on every topic, and every
subscription has caught up with all that was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from random import Random

from migratory_broker.core.edge.config import ConflationRule, EdgeConfig
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.events import Flush, Observe, PeerReceived, SendPeer, Tick
from migratory_client.core.events import Tick as ClientTick
from migratory_protocol.peer import Heartbeat
from migratory_protocol.topics import topic_group

from migratory_simulation import final_checks
from migratory_simulation.coverage import Coverage
from migratory_simulation.external_checker import ExternalChecker, Violation
from migratory_simulation.injector import Injector
from migratory_simulation.internal_checker import InternalChecker
from migratory_simulation.load import Load
from migratory_simulation.network import Network, ways
from migratory_simulation.options import Options, draw_options
from migratory_simulation.process import Process
from migratory_simulation.scheduler import Scheduler
from migratory_simulation.zookeeper import Ensemble

QUIET = (Tick, Flush, Observe, ClientTick)
"""Events that are left out of the trace, because they come all the time and say little."""
TIMES = {
    name: getattr(LogicConfig("", "a", ("a",), min_copies=1), name)
    for name in (
        "session_timeout",
        "fencing",
        "progress_timeout",
        "bootstrap_wait",
        "resume_wait",
        "resume_limit",
        "publish_wait",
        "publish_retry_after",
        "relist_delay",
        "balance_every",
        "calm",
        "move_period",
        "refresh_interval",
    )
}
"""The product's defaults in seconds that the tempo of a run scales."""

HEARTBEAT = LogicConfig("", "a", ("a",), min_copies=1).heartbeat
SILENCE = LogicConfig("", "a", ("a",), min_copies=1).silence
SOON_FORGOTTEN = 30.0
"""The longest duplicate window whose end a run waits for, in seconds that the tempo scales."""
EPOCH_MS = 1_700_000_000_000
"""The wall clock at virtual second 0, in milliseconds."""


@dataclass
class Report:
    """The outcome of one seed. `violation` is empty when everything held; `invariant` is its number, -1 without one and
    0 when a core raised. `seconds` and `recovery` are virtual seconds: of the whole run, and from the heal to
    recovery."""

    seed: int
    violation: str
    invariant: int
    coverage: Coverage
    steps: int
    events: int
    seconds: float
    recovery: float


class World:
    """All parts of a simulated cluster, and the course of a run. Creating it schedules everything; `run` runs it.
    `sink` receives the lines of the trace; None for no trace."""

    def __init__(self, options: Options, sink: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.random = Random(f"world {options.seed}")
        self.scheduler = Scheduler()
        self.coverage = Coverage()
        self.tracing = sink is not None
        self._sink = sink
        self.steps = 0
        self.healed = False
        self.under_load = True  # publishers still publish
        self.names = options.brokers  # as configured now
        self._names = len(options.brokers)  # names ever assigned
        self.wall_skews: dict[str, float] = {}  # of a broker's next processes, seconds
        self.revisions: dict[str, str] = {}  # of a broker's next process
        self.copies: dict[str, int] = {}  # `minCopies` of a broker's next process, if it was changed
        self.on_history_loss = options.on_history_loss
        self.halted: set[int] = set()  # groups that wait for an operator
        self.external = ExternalChecker(self.coverage)
        for topic in options.topics:
            self.external.group_of[topic] = topic_group(topic, options.groups)
        tempo = options.tempo
        self.ensemble = Ensemble(self.scheduler, Random(f"zookeeper {options.seed}"), 4.0 * tempo, 0.5 * tempo)
        self.network = Network(self.scheduler, Random(f"network {options.seed}"))
        self.network.delay = options.link_delay
        self.network.silence = 2.0 * tempo
        self.internal = InternalChecker(self)
        self.processes: list[Process] = []
        self._connections = 0
        for name in options.brokers:
            self.scheduler.at(self.random.uniform(0.0, options.start_spread), self.start_process, name)
        self.clients = Load(self).clients
        self.injector = Injector(self)

    # ---- configuration

    def configured(self, name: str) -> tuple[str, ...]:
        """Return the brokers in the configuration that the broker `name` reads now. A broker that was removed from the
        cluster still finds itself there."""
        return self.names if name in self.names else (*self.names, name)

    def logic_config(self, name: str, address: str) -> LogicConfig:
        """Return the configuration of the logic of the broker's next process, which peers reach at `address`. All
        durations are scaled by the tempo."""
        options = self.options
        return LogicConfig(
            cluster="simulated",
            name=name,
            brokers=self.configured(name),
            weight=options.weight(name),
            revision=self.revision(name),
            url=self.url(name),
            peer=address,
            groups=options.groups,
            messages_per_topic=options.messages_per_topic,
            min_age=min(options.min_age, options.max_age),
            max_age=options.max_age,
            max_bytes=options.max_bytes,
            min_copies=self.copies.get(name, options.min_copies),
            duplicate_window=options.duplicate_window,
            max_pending=options.max_pending,
            topic_idle_timeout=options.topic_idle,
            relist_at_once=options.at_once,
            hand_over_at_once=options.at_once,
            on_history_loss=self.on_history_loss,
            part_bytes=options.part_bytes,
            heartbeat=HEARTBEAT * options.tempo * options.beat,
            silence=SILENCE * options.tempo * options.silence,
            **{name: value * options.tempo for name, value in TIMES.items()},
        )

    def edge_config(self, name: str, incarnation: int) -> EdgeConfig:
        """Return the configuration of a broker's edges."""
        return EdgeConfig(
            cluster="simulated",
            broker=name,
            incarnation=max(incarnation, 0),
            handshake=5.0,
            heartbeat=1.0,
            queue_per_client=self.options.client_queue,
            page=self.options.page,
            attaches_per_client=1,
            publishes_per_client=self.options.publishes_per_client,
            queue_total=self.options.queue_total,
            batch_delay=self.options.batch_delay,
            batch_bytes=400,
            conflation=(ConflationRule("**", self.options.conflation),) if self.options.conflation else (),
        )

    def revision(self, name: str) -> str:
        """Return the revision with which the broker's next process runs."""
        return self.revisions.get(name, "first")

    @property
    def most_copies(self) -> int:
        """Return the largest `minCopies` that any broker may have."""
        return max(self.options.min_copies, *self.copies.values(), 1)

    @staticmethod
    def url(name: str) -> str:
        return f"ws://{name}"

    def wall_ms(self, process: Process) -> int:
        """Return the wall clock of a process in milliseconds."""
        return EPOCH_MS + int((self.scheduler.now + process.wall_skew) * 1000)

    # ---- processes

    def start_process(self, name: str) -> Process:
        """Start and return a new process of a broker."""
        process = Process(self, len(self.processes), name)
        self.processes.append(process)
        self.network.add(process)
        self.trace(process.label, "**", "starts")
        return process

    def process_ends(self, process: Process, reason: str, restart: float | None = None) -> None:
        """End a process. Start the next one of its name after `restart` seconds, unless one runs or the broker is not
        configured by then. With None that is 1 s, and nothing is started if another process of the name runs now. Do
        nothing if the process has ended already."""
        if not process.running:
            return
        self.trace(process.label, "**", reason)
        process.end()
        self.internal.process_ended(process)
        if restart is not None or self.process_of(process.name) is None:
            self.scheduler.after(1.0 if restart is None else restart, self._start_again, process.name)

    def _start_again(self, name: str) -> None:
        if self.process_of(name) is None and name in self.names:
            self.start_process(name)

    def replace(self, old: Iterable[Process], together: Set[Process]) -> None:
        """Start new processes of the same names as `old`. The old ones run on with their clients, cut from ZooKeeper
        and from all brokers, except that those in `together` hear each other."""
        for process in old:
            process.zk.set_cut(True)
            process.replaced = True
        for process in old:
            heard = together if process in together else set()
            self.network.block(ways([process], [other for other in self.running() if other not in heard]))
        for process in old:
            self.network.block(ways([self.start_process(process.name)], old))

    def next_name(self) -> int:
        """Return the next number for a broker that never existed, and count it as used."""
        self._names += 1
        return self._names - 1

    def process_of(self, name: str) -> Process | None:
        """Return the newest running process of a broker, without replaced ones, or None."""
        found = None
        for process in self.processes:
            if process.running and process.name == name and not process.replaced:
                found = process
        return found

    def process_at(self, url: str) -> Process | None:
        """Return the newest running process of the broker with this URL, without replaced ones, or None."""
        return self.process_of(url.removeprefix("ws://"))

    def members(self) -> list[Process]:
        """Return the newest running process of every configured broker that has one."""
        return [process for name in self.names if (process := self.process_of(name)) is not None]

    def all_open(self) -> bool:
        """Return whether every configured broker reports that it accepts clients: all that an operator can go by."""
        members = self.members()
        return len(members) == len(self.names) and all(process.admission.open for process in members)

    def running(self) -> list[Process]:
        """Return all running processes, also replaced ones."""
        return [process for process in self.processes if process.running]

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    # ---- the run

    def run(self) -> float:
        """Run everything. Return the seconds from the heal, or from the end of a rolling restart that it waited for, to
        recovery. Raise Violation if an invariant breaks, or something does not recover in time."""
        options = self.options
        self.scheduler.run_until(options.faults_end)
        self.heal()
        until = self.scheduler.now + options.bound * len(self.names)
        if not self.scheduler.run_until(until, lambda: bool(self.halted) or not self.injector.rollouts.rolling):
            raise Violation(7, f"a rolling restart does not end; {self.unrecovered()}")
        healed_at = self.scheduler.now
        self.scheduler.run_until(healed_at + options.settle)
        self.under_load = False
        for client in self.clients:
            for topic in client.publishes:
                client.publish(topic, final=True)
                for _ in range(2 if self.options.conflation else 0):  # the last of them must not be delayed without end
                    client.publish(topic, qos=0)
        until = healed_at + options.settle + options.bound
        if not self.scheduler.run_until(until, lambda: bool(self.halted) or self.recovered()):
            raise Violation(7, self.unrecovered())
        if self.halted:
            self._operator_decides()
            if not self.scheduler.run_until(until + options.bound, self.recovered):
                raise Violation(7, self.unrecovered())
        late = self.external.behind()
        if late:
            raise Violation(1, "; ".join(late))
        final_checks.same_entries(self)
        recovery = self.scheduler.now - healed_at
        if options.topic_idle and not self.halted:
            self._leave_topics()
        if options.final_checks:
            self.scheduler.run_until(self.scheduler.now + final_checks.QUIET * options.tempo)
            self.scheduler.run_until(self.scheduler.now + options.bound, lambda: final_checks.at_rest(self))
            final_checks.check(self)
            self._stays_even()
            if options.duplicate_window <= SOON_FORGOTTEN * options.tempo:
                self._forget()
        return recovery

    def _leave_topics(self) -> None:
        """Let all topics be idle for a while, three times. Each time crash a broker or not, and publish on the topics
        again: raise Violation if a subscription misses that. In the end raise Violation if idle topics are never
        removed."""
        options, random = self.options, Random(f"idle topics {self.options.seed}")
        longest = 1.5 * options.duplicate_window + 2.0 * options.topic_idle + options.max_age + 6.0
        for _ in range(3):
            self.scheduler.run_until(self.scheduler.now + random.uniform(0.3, 1.0) * longest)
            one = random.choice(self.running())
            if random.random() < 0.5 and self.internal.may_lose(one):
                self.process_ends(one, "crash")
            for client in self.clients:
                for topic in client.publishes:
                    for _ in range(random.choice((0, 1, 3))):
                        client.publish(topic, qos=0)
                    client.publish(topic, final=True)
            if not self.scheduler.run_until(self.scheduler.now + options.bound, self.recovered):
                raise Violation(7, self.unrecovered())
            if late := self.external.behind():
                raise Violation(1, "; ".join(late))
        if len({self.revision(name) for name in self.names}) > 1:
            return  # an abandoned rollout: nothing is removed before its end
        until = self.scheduler.now + longest + options.bound
        gone = self.scheduler.run_until(until, lambda: final_checks.no_topics(self))
        if not gone and not final_checks.has_young_entries(self):
            raise Violation(7, "idle topics are never removed\n" + final_checks.describe(self))

    def _stays_even(self) -> None:
        """Let moves that are under way end, then raise Violation if a client changes its broker, for any cause, within
        `EVEN` seconds (scaled)."""
        self.scheduler.run_until(self.scheduler.now + final_checks.ARRIVE * self.options.tempo)
        before = {client.name: client.core.reconnect_counter.by_cause() for client in self.clients}
        self.scheduler.run_until(self.scheduler.now + final_checks.EVEN * self.options.tempo)
        moved = [
            client.name for client in self.clients if client.core.reconnect_counter.by_cause() != before[client.name]
        ]
        if moved:
            raise Violation(
                7, f"{', '.join(moved)} moved though all brokers were even\n{final_checks.clients_by_broker(self)}"
            )

    def _forget(self) -> None:
        """Let all publishers publish once more, and crash a coordinator if no list loses too many members by it. Raise
        Violation unless all brokers, also the successor, forget all publishers in time."""
        for client in self.clients:
            for topic in client.publishes:
                client.publish(topic, final=True)
        if not self.scheduler.run_until(self.scheduler.now + self.options.bound, self.recovered):
            raise Violation(7, self.unrecovered())
        coordinators = [process for process in self.running() if self.internal.is_coordinator(process)]
        one = self.random.choice(coordinators)
        if self.internal.may_lose(one):
            self.process_ends(one, "crash")
        until = self.scheduler.now + 4.0 * self.options.duplicate_window + self.options.bound
        if not self.scheduler.run_until(until, lambda: final_checks.remember_nobody(self)):
            raise Violation(7, "publishers that are silent are never forgotten\n" + final_checks.describe(self))

    def heal(self) -> None:
        """End all faults, let hung and frozen processes go on, end replaced processes, and start the configured brokers
        that do not run, within a second."""
        self.healed = True
        self.trace("world", "**", "healed")
        self.network.heal()
        self.ensemble.set_available(True)
        for process in self.running():
            process.slow = 0.0
            process.zk.delay = self.options.zookeeper_delay
            if process.replaced:
                self.process_ends(process, "a replaced process ends")
                continue
            process.zk.set_cut(False)
            process.thaw()
        for client in self.clients:
            client.flow()
        self.injector.heal()
        for name in self.names:
            if self.process_of(name) is None:
                self.scheduler.after(self.random.uniform(0.0, 1.0), self._start_again, name)

    # ---- lost histories under `halt`

    def halts(self, process: Process, group: int) -> None:
        """Count a broker's report that a group's history is lost and that it waits for an operator. Raise Violation if
        it should not wait."""
        if self.on_history_loss != "halt":
            raise Violation(7, f"{process.label} halts group {group} under {self.on_history_loss}")
        self.internal.halts(process, group)
        self.coverage["halts"] += 1
        self.halted.add(group)

    def _operator_decides(self) -> None:
        """Restart every broker with `onHistoryLoss: reset`, as an operator does who accepts the loss."""
        self.trace("world", "**", f"the operator lets groups {sorted(self.halted)} begin new histories")
        self.on_history_loss = "reset"
        for process in self.running():
            self.process_ends(
                process, "restarted by the operator", restart=self.random.uniform(0.0, self.options.tempo)
            )

    def recovered(self) -> bool:
        """Return whether all clients are served and have no unanswered final publication, all brokers accept clients,
        and all subscriptions have caught up."""
        return all(client.ready for client in self.clients) and self.all_open() and not self.external.behind()

    def unrecovered(self) -> str:
        """Return as text what has not recovered yet, and below that the state of all groups and running brokers."""
        missing = []
        for name in self.names:
            process = self.process_of(name)
            if process is None:
                missing.append(f"{name} does not run")
            elif not process.admission.open:
                missing.append(f"{name} takes no clients ({process.admission.reason})")
        for client in self.clients:
            if not client.core.connected:
                missing.append(f"{client.name} is not connected")
            elif client.core.subscriptions.unanswered:
                missing.append(f"{client.name} waits for {client.core.subscriptions.unanswered} receipts")
            if client.final:
                missing.append(f"{client.name} waits for answers to {sorted(map(str, client.final))}")
        missing += (
            self.external.behind()
            if all(self.external.firsts.get(group) for group in range(self.options.groups))
            else ["a group has no record"]
        )
        return "; ".join(missing) + "\n" + final_checks.describe(self)

    # ---- the trace

    def trace(self, who: str, how: str, what: object) -> None:
        """Write a line of the trace: who, how and what. Do nothing without a sink, and for frequent events that say
        little."""
        if self._sink is None or isinstance(what, QUIET):
            return
        if isinstance(what, (PeerReceived, SendPeer)):
            said = what.message if isinstance(what, SendPeer) else what.messages[0]  # one comes at a time here
            if isinstance(said, Heartbeat):
                return
            how, what = f"{how} {what.peer}:", said
        text = repr(what) if not isinstance(what, str) else what
        self._sink(f"{self.scheduler.now:9.4f} {who:<12} {how} {text[:600]}")


def run_seed(
    seed: int,
    sink: Callable[[str], None] | None = None,
    options: Options | None = None,
    direct: Callable[[World], None] | None = None,
) -> Report:
    """Run one seed and return its report. The same seed and code give the same run. An exception that a core raises is
    reported as a violation of invariant 0.

    `sink` receives the lines of the trace. `options` replace those that the seed draws. `direct` adds faults that
    depend on the course of the run (schedules.py).
    """
    options = options or draw_options(seed)
    world = World(options, sink)
    if direct is not None:
        direct(world)
    violation, invariant, recovery = "", -1, 0.0
    try:
        recovery = world.run()
    except Violation as found:
        violation, invariant = str(found), found.invariant
    except Exception as failure:  # noqa: BLE001 - whatever a core raises is what the run is there to find
        violation, invariant = f"a core failed: {type(failure).__name__}: {failure}", 0
        if sink is not None:
            import traceback

            sink(traceback.format_exc())
    if violation:
        world.trace("world", "!!", violation)
    coverage = world.coverage
    coverage["zookeeper outcomes unknown"] += sum(process.zk.lost_replies for process in world.processes)
    return Report(
        seed, violation, invariant, coverage, world.steps, world.scheduler.events, world.scheduler.now, recovery
    )
