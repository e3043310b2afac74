"""The injector: it injects the faults of a plan into the simulated cluster, and ends those that last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from migratory_broker.core.logic.membership.records import GROUPS, decode_group

from migratory_simulation import plans
from migratory_simulation.network import Ways, ways
from migratory_simulation.rollouts import Rollouts

if TYPE_CHECKING:
    from migratory_simulation.connections import Connection
    from migratory_simulation.process import Process
    from migratory_simulation.world import World


class Injector:
    """The injector of a run. Creating it schedules the plan's faults. It holds the ambushes that wait for a message."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ambushes: list[tuple[plans.Ambush, list[int]]] = []  # each with the number of messages to let pass
        self.rollouts = Rollouts(world)
        self._silent: list[Connection] = []
        for moment, fault in world.options.plan.faults:
            world.scheduler.at(moment, self.inject, fault)
        if world.options.plan.loses_data:
            world.ensemble.keep_backups()

    def inject(self, fault: plans.Fault) -> None:
        """Inject a fault, unless the faults of the run are over. In a safe plan, a crash or drain waits until no
        member list can lose too many members by it."""
        world = self.world
        if world.healed:
            return
        waits = isinstance(fault, (plans.Crash, plans.Drain)) and not self._may_end(fault.broker)
        # A drain ends long after it began, so all groups must have records to judge by.
        waits = waits or (isinstance(fault, plans.Drain) and len(world.internal.latest) < world.options.groups)
        if waits and world.options.plan.safe:
            world.scheduler.after(0.5 * world.options.tempo, self.inject, fault)
            return
        name = plans.NAMES[type(fault)]
        if isinstance(fault, plans.Partition) and fault.one_way:
            name = "one-way partition"
        world.trace("fault", "**", fault)
        if self._apply(fault):
            world.coverage[f"fault {name}"] += 1

    def heal(self) -> None:
        """End the silence of all silent connections. `World.heal` ends the other faults."""
        self._end_silence(self._silent)
        self._silent = []

    def _may_end(self, broker: str) -> bool:
        """Return whether every member list since the last activated one would lose at most minCopies - 1 members with
        this broker. Return False if it does not run."""
        process = self.world.process_of(broker)
        return process is not None and self.world.internal.may_lose(process)

    def _apply(self, fault: plans.Fault) -> bool:
        """Apply a fault, and return whether it took effect. Schedule its end, if it has one. For an ambush return
        False: it only begins to wait."""
        world = self.world
        after = world.scheduler.after
        if isinstance(fault, plans.Partition):
            return self._partition(fault)
        if isinstance(fault, plans.Refuse):
            side = [process for process in world.running() if process.name in fault.side]
            rest = [process for process in world.running() if process.name in fault.rest]
            refused = ways(side, rest)
            world.network.refuse(refused)
            after(fault.lasts, world.network.accept, refused)
            return bool(refused)
        if isinstance(fault, (plans.BreakLink, plans.Clog)):
            one, other = world.process_of(fault.one), world.process_of(fault.other)
            if one is None or other is None:
                return False
            if isinstance(fault, plans.BreakLink):
                standing = world.network.link_of(one, other.name) is not None
                world.network.break_link(one.number, other.number)
                return standing
            world.network.clog([(one.number, other.number)], fault.delay, fault.lasts)
            return True
        if isinstance(fault, plans.ZooKeeperAway):
            if not world.ensemble.available:
                return False
            world.ensemble.set_available(False)
            after(fault.lasts, world.ensemble.set_available, True)
            return True
        if isinstance(fault, (plans.ZooKeeperEmptied, plans.ZooKeeperRolledBack)):
            if not world.ensemble.available:
                return False
            world.ensemble.set_available(False)
            after(fault.lasts, self._lose_data, fault.age if isinstance(fault, plans.ZooKeeperRolledBack) else None)
            return True
        if isinstance(fault, plans.RestartAll):
            for process in world.running():
                world.process_ends(process, "restart of all", restart=world.random.uniform(0.0, fault.spread))
            return True
        if isinstance(fault, plans.Replace):
            return self._replace(fault)
        if isinstance(fault, plans.StallClient):
            client = world.clients[fault.client % len(world.clients)]
            client.stall()
            after(fault.lasts, client.flow)
            return True
        if isinstance(fault, plans.Burst):
            return self._burst(fault)
        if isinstance(fault, plans.SlowZooKeeper):
            for process in world.running():
                if process.name in fault.brokers:
                    process.zk.delay = fault.delay
                    after(fault.lasts, setattr, process.zk, "delay", world.options.zookeeper_delay)
            return True
        if isinstance(fault, plans.Ambush):
            self.ambushes.append((fault, [fault.count]))
            return False
        if isinstance(fault, plans.SilentClient):
            return self._silence(fault)
        if isinstance(fault, plans.FallBehind):
            return self._behind(fault)
        if isinstance(fault, plans.LeaveBehind):
            return self._leave_behind(fault)
        if isinstance(fault, plans.RollingRestart):
            return self.rollouts.roll(fault)
        if isinstance(fault, plans.Grow):
            return self.rollouts.grow()
        if isinstance(fault, plans.Shrink):
            return self.rollouts.shrink(fault)
        assert isinstance(fault, plans.BrokerFault)
        victim = world.process_of(fault.broker)
        return victim is not None and self._apply_to(fault, victim)

    def _lose_data(self, age: float | None) -> None:
        """Let the ensemble come back with data that is `age` seconds old, or with none. Stop it first, because it may
        have come back already, with all of it. Do nothing once the world has healed."""
        if self.world.healed:
            return
        self.world.ensemble.set_available(False)
        self.world.ensemble.lose_data(age)
        self.world.internal.data_lost()
        self.world.ensemble.set_available(True)

    def _apply_to(self, fault: plans.BrokerFault, process: Process) -> bool:
        """Apply a fault to a running broker; return whether it took effect."""
        world = self.world
        after = world.scheduler.after
        if isinstance(fault, plans.Crash):
            world.process_ends(process, "crash", restart=fault.downtime)
        elif isinstance(fault, plans.Freeze):
            if process.frozen:
                return False
            process.freeze()
            after(fault.lasts, process.thaw)
        elif isinstance(fault, plans.Hang):
            if process.frozen:
                return False
            process.hang()
            after(fault.lasts, process.thaw)
        elif isinstance(fault, plans.ZooKeeperCutOff):
            process.zk.set_cut(True)
            after(fault.lasts, process.zk.set_cut, False)
        elif isinstance(fault, plans.ZooKeeperConnectionLost):
            self._lose_connection(process, fault.times)
        elif isinstance(fault, plans.ExpireSession):
            return process.zk.expire_session()
        elif isinstance(fault, plans.ClockJump):
            process.offset += fault.ahead
            world.wall_skews[process.name] = fault.wall
        elif isinstance(fault, plans.Slow):
            process.slow = fault.cost
            after(fault.lasts, setattr, process, "slow", 0.0)
        elif isinstance(fault, plans.DropClients):
            return process.drop_clients()
        elif isinstance(fault, plans.RestartEdge):
            if process.frozen:
                return False
            process.restart_edge(world.random.randrange(len(process.edges)))
        else:
            assert isinstance(fault, plans.Drain)
            if process.draining:
                return False
            process.drain(fault.period)
            after(fault.period + world.options.tempo, self._drained, process, fault.downtime)
        return True

    def passing(self, process: Process, kind: str, peer: str) -> None:
        """Count a message that `process` sends to `peer`, and carry out the ambushes that wait for it."""
        for ambush in list(self.ambushes):
            fault, left = ambush
            if fault.at == kind:
                left[0] -= 1
                if left[0] <= 0 and self._spring(fault, process, peer):
                    self.ambushes.remove(ambush)

    def _spring(self, fault: plans.Ambush, process: Process, peer: str) -> bool:
        """Carry out an ambush, or drop it when the faults of the run are over, and return true. Return false when a
        safe plan forbids it now; it then waits for the next message."""
        world = self.world
        if world.healed:
            return True
        if "crash" in fault.actions and world.options.plan.safe and not world.internal.may_lose(process):
            return False
        world.trace("fault", "**", f"{process.label}: {fault}")
        world.coverage["fault ambush"] += 1
        self._strike(fault.actions[0], fault.lasts, process, peer)
        for action in fault.actions[1:]:
            world.scheduler.after(fault.gap, self._strike, action, fault.lasts, process, peer)
        return True

    def _strike(self, action: str, lasts: float, process: Process, peer: str) -> None:
        """Carry out one action of an ambush on `process`, and end it after `lasts` seconds. `peer` is the receiver of
        the message that it waited for. Do nothing once the world has healed; in a safe plan, crash only where no list
        loses too many members."""
        world = self.world
        after = world.scheduler.after
        if world.healed or not process.running:
            return
        if action == "crash":
            if not world.options.plan.safe or world.internal.may_lose(process):
                world.process_ends(process, "crash", restart=lasts)
        elif action == "freeze":
            process.freeze()
            after(lasts, process.thaw)
        elif action == "isolate":
            self._block(ways([process], world.running()), lasts)
        elif action == "cut zookeeper":
            after(0.0, process.zk.set_cut, True)
            after(lasts, process.zk.set_cut, False)
        elif action == "lose zookeeper":
            after(world.random.random() * 2 * process.zk.delay, process.zk.lose_connection)
        elif action == "expire session":
            if process.zk.session is not None:
                after(world.random.random() * 2 * process.zk.delay, world.ensemble.expire, process.zk.session.number)
        elif action == "drop clients":
            process.drop_clients()
        elif (other := world.process_of(peer)) is not None:
            if action == "block link":
                self._block([(process.number, other.number)], lasts)
            else:
                after(0.0, world.network.break_link, process.number, other.number)

    def _drained(self, process: Process, downtime: float) -> None:
        """End a process after its drain, when the plan allows it, and start the next one after `downtime` seconds."""
        world = self.world
        if not process.running:
            return
        ends = world.internal.may_lose(process, drains=False)
        if world.healed:
            # Nothing else ends any more. With one copy no list tolerates a loss, but its owner can continue alone.
            ends = ends or process.logic.drained
        if world.options.plan.safe and not ends:
            # Other brokers ended meanwhile, or this one was listed: wait.
            world.scheduler.after(0.5 * world.options.tempo, self._drained, process, downtime)
            return
        world.process_ends(process, "drained", restart=downtime)

    def _lose_connection(self, process: Process, times: int) -> None:
        if process.running and times:
            process.zk.lose_connection()
            delay = self.world.random.choice((0.05, 0.7)) * self.world.random.random()
            self.world.scheduler.after(delay, self._lose_connection, process, times - 1)

    def _leave_behind(self, fault: plans.LeaveBehind) -> bool:
        """Begin the fault and return True. While the group has no coordinator, try again a little later and return
        False."""
        world = self.world
        record = world.internal.latest.get(fault.group)
        process = None if record is None or not record.activated else world.internal.process_of(record.owner)
        if process is None or process.replaced:
            world.scheduler.after(0.1 * world.options.tempo, self.inject, fault)
            return False
        world.network.block(ways([process], world.running(), back=False))
        world.scheduler.after(fault.tail, self._cut_off, fault, process)
        return True

    def _cut_off(self, fault: plans.LeaveBehind, process: Process) -> None:
        """Cut the coordinator off from all brokers and ZooKeeper, which ends its session."""
        if process.running and not self.world.healed:
            self.world.network.block(ways([process], self.world.running()))
            process.zk.set_cut(True)
            process.zk.expire_session()
            self._succeed(fault, process)

    def _succeed(self, fault: plans.LeaveBehind, process: Process) -> None:
        """Once another broker coordinates the group, crash that one where the plan allows it, and let the others hear
        the first coordinator again. Poll until then."""
        world = self.world
        if not process.running or world.healed:
            return
        record = world.internal.latest[fault.group]
        successor = world.internal.process_of(record.owner) if record.activated else None
        if successor is None or successor is process:
            world.scheduler.after(0.02, self._succeed, fault, process)
            return
        rest = [other for other in world.running() if other is not successor]
        world.network.unblock(ways([process], rest))
        if not world.options.plan.safe or world.internal.may_lose(successor):
            successor.zk.expire_session()
            world.process_ends(successor, "crash", restart=fault.downtime)
        else:
            world.network.unblock(ways([process], [successor]))
        world.scheduler.after(fault.late, process.zk.set_cut, False)

    def _behind(self, fault: plans.FallBehind) -> bool:
        """Delay all messages to the broker, and drop the clients of the others later. Return whether any message is
        delayed."""
        world = self.world
        process = world.process_of(fault.broker)
        if process is None:
            return False
        late = ways(world.running(), [process], back=False)
        world.network.clog(late, fault.delay, fault.lasts)
        world.scheduler.after(fault.gap, self._drop_other_clients, process, fault)
        return bool(late)

    def _drop_other_clients(self, process: Process, fault: plans.FallBehind) -> None:
        """Drop the clients of all brokers but `process`, and crash the broker that the fault names, where the plan
        allows it."""
        world = self.world
        if world.healed:
            return
        for other in world.running():
            if other is not process:
                other.drop_clients()
        victim = world.process_of(fault.crash) if fault.crash else None
        if victim is not None and (not world.options.plan.safe or world.internal.may_lose(victim)):
            world.process_ends(victim, "crash", restart=fault.lasts)

    def _silence(self, fault: plans.SilentClient) -> bool:
        """Let a client's connections deliver nothing for a while. Return whether it has any."""
        client = self.world.clients[fault.client % len(self.world.clients)]
        connections = [link.connection for link in client.links.values() if link.connection is not None]
        for connection in connections:
            connection.silence(fault.to_broker, fault.to_client)
        self._silent += connections
        self.world.scheduler.after(fault.lasts, self._end_silence, connections)
        return bool(connections)

    @staticmethod
    def _end_silence(connections: list[Connection]) -> None:
        for connection in connections:
            connection.speak()

    def _partition(self, fault: plans.Partition) -> bool:
        """Block the messages between the two sides for a while, and cut one side from ZooKeeper if the fault says so.
        Return whether any direction is blocked."""
        world = self.world
        side = [process for process in world.running() if process.name in fault.side]
        rest = [process for process in world.running() if process.name not in fault.side]
        blocked = ways(side, rest, back=not fault.one_way)
        self._block(blocked, fault.lasts)
        if fault.zookeeper:
            for process in side:
                process.zk.set_cut(True)
                world.scheduler.after(fault.lasts, process.zk.set_cut, False)
        return bool(blocked)

    def _block(self, blocked: Ways, lasts: float) -> None:
        self.world.network.block(blocked)
        self.world.scheduler.after(lasts, self.world.network.unblock, blocked)

    def _replace(self, fault: plans.Replace) -> bool:
        """Start new processes of the fault's brokers, and end the old ones later. Some of the old ones still hear each
        other, but never so many that they could go on as a whole cluster. Return False if none of the brokers runs."""
        world = self.world
        old = [process for process in world.running() if process.name in fault.brokers]
        if not old:
            return False
        together = set(old) if world.random.random() < 0.6 else set()  # these replaced processes still hear each other
        serving = [process for process in world.running() if not process.replaced]
        if serving and together.issuperset(serving):
            # A cluster that is replaced as a whole cannot detect it (docs/concepts/replication.md, Fencing).
            # Processes that were replaced earlier lack one of theirs already.
            together.remove(world.random.choice([process for process in old if not process.replaced]))
        for members in self._lists():
            if together.issuperset(members):  # likewise when only a broker that just joined is left
                together.remove(world.random.choice(members))
        world.replace(old, together)
        for process in old:
            world.scheduler.after(fault.lasts, world.process_ends, process, "a replaced process ends")
        return True

    def _lists(self) -> list[list[Process]]:
        """Return, for each group whose whole list runs, the processes on the list."""
        nodes = self.world.ensemble.nodes
        records = [decode_group(node.data) for path, node in nodes.items() if path.startswith(f"{GROUPS}/")]
        lives = {process.identity: process for process in self.world.running()}
        return [[lives[member] for member in one.members] for one in records if lives.keys() >= set(one.members)]

    def _burst(self, fault: plans.Burst) -> bool:
        """Let one publisher of the topic publish `count` messages in quick succession. Return False if the topic has no
        publisher."""
        world = self.world
        topic = world.options.topics[fault.topic]
        publishers = [client for client in world.clients if topic in client.publishes]
        if not publishers:
            return False
        client = world.random.choice(publishers)
        for index in range(fault.count):
            world.scheduler.after(index * 0.01, client.publish, topic)
        return True
