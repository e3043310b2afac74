"""Operations that take many steps: rolling restarts, and brokers that join and leave.

Each polls the brokers and relies only on what they report (ready, drained), as a real operator does, and not on the
simulation's knowledge. Faults may abort a rolling restart. One that runs when the world heals continues as the only
disturbance and must finish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from migratory_broker.core.logic.events import BrokersConfigured

from migratory_simulation.plans import RollingRestart, Shrink

if TYPE_CHECKING:
    from migratory_simulation.process import Process
    from migratory_simulation.world import World

LOOK = 0.3
"""Seconds between two polls, scaled by the run's tempo."""
REREAD = 2.0
"""Seconds, scaled by the run's tempo, within which all brokers read a changed configuration."""
PATIENCE = 25.0
"""Seconds, scaled by the run's tempo, that a rollout waits for readiness among faults before it is abandoned."""
MOST = 8
"""The most brokers that a cluster may grow to."""


class Rollouts:
    """The rolling restart that is in progress, and changes of the cluster's size."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rolling = False
        self._revision = 0

    @property
    def _tempo(self) -> float:
        return self.world.options.tempo

    # ---- joining and leaving

    def grow(self) -> bool:
        """Add a broker that never existed, and start it. Return False when the cluster has `MOST` brokers."""
        world = self.world
        if len(world.names) >= MOST:
            return False
        name = f"broker-{world.next_name()}"
        world.names = (*world.names, name)
        self.configure()
        world.start_process(name)
        return True

    def shrink(self, fault: Shrink) -> bool:
        """Begin to drain a broker, which is removed for good once it is drained. Return False when the state of the
        cluster does not allow it now: too few brokers would remain, another one drains, or a rolling restart is in
        progress."""
        world, name = self.world, fault.broker
        process = world.process_of(name)
        least = max(2 * world.most_copies - 1, 2)
        if name not in world.names or len(world.names) <= least or process is None or process.draining:
            return False
        if self.rolling or any(other.draining for other in world.running()):
            return False  # one at a time, as an operator does
        stay = tuple(other for other in world.names if other != name)
        if not any(world.options.weight(other) for other in stay if other in world.options.brokers):
            return False  # a client that was away knows only the configured brokers and never tries weight 0
        world.names = stay
        self.configure()
        process.drain(fault.period)
        self._leaves(process)
        return True

    def configure(self) -> None:
        """Let the running brokers read their configuration, each at its own time within `REREAD`. A removed broker
        still finds itself there."""
        world = self.world
        for process in world.running():
            after = world.random.uniform(0.0, REREAD * self._tempo)
            world.scheduler.after(after, process.run, self._read, process)

    def _read(self, process: Process) -> None:
        """Apply the current configuration, so that of two changes in quick succession the last one wins."""
        process.step(BrokersConfigured(self.world.configured(process.name)))

    def _leaves(self, process: Process) -> None:
        """End a leaving broker once it is drained. Poll until then."""
        world = self.world
        if not process.running:
            return  # it crashed while it drained
        # With one copy no listed broker may ever end by that count; its own report decides.
        if process.logic.drained and (process.logic.config.min_copies == 1 or world.internal.may_lose(process)):
            world.process_ends(process, "leaves for good")
            world.coverage["brokers left"] += 1
            return
        world.scheduler.after(LOOK * self._tempo, self._leaves, process)

    # ---- rolling restarts

    def roll(self, fault: RollingRestart) -> bool:
        """Begin a rolling restart. Return False when one is in progress."""
        if self.rolling:
            return False
        self.rolling = True
        self._revision += 1
        self._next(fault, list(self.world.names), self.world.scheduler.now + PATIENCE * self._tempo)
        return True

    def _next(self, fault: RollingRestart, remaining: list[str], until: float) -> None:
        """Drain the next broker once every broker reports ready. Poll until then, and abandon the restart after the
        moment `until`, except after the last fault."""
        world = self.world
        if world.halted or (world.scheduler.now > until and not world.healed):
            self.rolling = False
            world.coverage["rollouts abandoned"] += 1
            return
        process = world.process_of(remaining[0]) if remaining[0] in world.names else None
        if not self._all_ready() or process is None:
            if remaining[0] not in world.names:
                remaining = remaining[1:]
            if not remaining:
                self.rolling = False
                return
            world.scheduler.after(LOOK * self._tempo, self._next, fault, remaining, until)
            return
        process.drain(fault.period)
        self._drains(fault, remaining, process, world.scheduler.now + fault.period)

    def _all_ready(self) -> bool:
        """Return whether all configured brokers report that they accept clients, and none drains."""
        return self.world.all_open() and not any(process.draining for process in self.world.members())

    def _drains(self, fault: RollingRestart, remaining: list[str], process: Process, until: float) -> None:
        """End the draining broker when it is drained or its time `until` is over, in a safe plan only if its loss is
        tolerated, and go on with the next one. Poll until then."""
        world = self.world
        over = world.scheduler.now >= until
        if process.running:
            if process.logic.drained or (over and (not world.options.plan.safe or world.internal.may_lose(process))):
                if world.process_of(process.name) is process:  # else its successor already runs the old revision
                    world.revisions[process.name] = f"revision {self._revision}"
                    if fault.copies:
                        world.copies[process.name] = fault.copies
                        world.coverage["minCopies changed"] += 1
                world.process_ends(process, "rolled", restart=fault.downtime)
                world.coverage["brokers rolled"] += 1
            else:
                world.scheduler.after(LOOK * self._tempo, self._drains, fault, remaining, process, until)
                return
        if len(remaining) == 1:
            self.rolling = False
            world.coverage["rollouts finished"] += 1
            return
        self._next(fault, remaining[1:], world.scheduler.now + PATIENCE * self._tempo)
