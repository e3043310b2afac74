"""What a person or an operator does to a cluster over many steps: rolling restarts, brokers that join and leave.

Each is a small program that looks again every now and then: it goes by what the brokers say of themselves (ready,
drained), as a real operator does, and not by what the simulation knows. Faults may spoil a rolling restart; one that is
under way when the world heals goes on, as the only thing that happens, and must come to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from migratory_broker.core.logic.events import BrokersConfigured

from migratory_simulation.faults import RollingRestart, Shrink

if TYPE_CHECKING:
    from migratory_simulation.process import Process
    from migratory_simulation.world import World

LOOK = 0.3  # seconds between two looks, times the tempo
REREAD = 2.0  # seconds, times the tempo, between two readings of the configuration
PATIENCE = 25.0  # seconds of waiting for readiness, times the tempo, until a rollout among faults is given up
MOST = 8  # brokers that a cluster may grow to


class Rollouts:
    def __init__(self, world: World) -> None:
        self.world = world
        self._rolling = False
        self._revision = 0

    @property
    def rolling(self) -> bool:
        return self._rolling

    @property
    def _tempo(self) -> float:
        return self.world.options.tempo

    # ---- joining and leaving

    def grow(self) -> bool:
        world = self.world
        if len(world.names) >= MOST:
            return False
        name = f"broker-{world.next_name()}"
        world.names = (*world.names, name)
        self.configure()
        world.start_process(name)
        return True

    def shrink(self, fault: Shrink) -> bool:
        world, name = self.world, fault.broker
        process = world.process_of(name)
        least = max(2 * world.options.min_copies - 1, 2)
        if name not in world.names or len(world.names) <= least or process is None or process.draining:
            return False
        if self._rolling or any(other.draining for other in world.running()):
            return False  # one at a time, as an operator would
        stay = tuple(other for other in world.names if other != name)
        if not any(world.options.weight(other) for other in stay if other in world.options.brokers):
            return False  # whoever was away meanwhile knows the configured ones only, and never tries weight 0
        world.names = stay
        self.configure()
        process.drain(fault.period)
        self._leaves(process)
        return True

    def configure(self) -> None:
        """The brokers read their configuration again, each at its own time; who is taken out still counts itself."""
        world = self.world
        for process in world.running():
            after = world.random.uniform(0.0, REREAD * self._tempo)
            world.scheduler.after(after, process.run, self._read, process)

    def _read(self, process: Process) -> None:
        """What stands there now: of two changes that came together, nobody reads the first one last."""
        process.step(BrokersConfigured(self.world.configured(process.name)))

    def _leaves(self, process: Process) -> None:
        world = self.world
        if not process.running:
            return  # it crashed on its way out: gone, too
        # By that count nobody who is listed may ever go where there is one copy: there its own word must do.
        if process.logic.drained and (world.options.min_copies == 1 or world.internal.may_lose(process)):
            world.process_ends(process, "leaves for good")
            world.coverage["brokers left"] += 1
            return
        world.scheduler.after(LOOK * self._tempo, self._leaves, process)

    # ---- rolling restarts

    def roll(self, fault: RollingRestart) -> bool:
        if self._rolling:
            return False
        self._rolling = True
        self._revision += 1
        self._next(fault, list(self.world.names), self.world.scheduler.now + PATIENCE * self._tempo)
        return True

    def _next(self, fault: RollingRestart, left: list[str], until: float) -> None:
        """Drain the next one, once every broker says that it is ready."""
        world = self.world
        if world.halted or (world.scheduler.now > until and not world.healed):
            self._rolling = False
            world.coverage["rollouts abandoned"] += 1
            return
        process = world.process_of(left[0]) if left[0] in world.names else None
        if not self._all_ready() or process is None:
            if left[0] not in world.names:
                left = left[1:]
            if not left:
                self._rolling = False
                return
            world.scheduler.after(LOOK * self._tempo, self._next, fault, left, until)
            return
        process.drain(fault.period)
        self._drains(fault, left, process, world.scheduler.now + fault.period)

    def _all_ready(self) -> bool:
        processes = [self.world.process_of(name) for name in self.world.names]
        return all(process is not None and process.admission.open and not process.draining for process in processes)

    def _drains(self, fault: RollingRestart, left: list[str], process: Process, until: float) -> None:
        """It ends when it says that it is drained, or when its time is over."""
        world = self.world
        over = world.scheduler.now >= until
        if process.running:
            if process.logic.drained or (over and (not world.options.plan.safe or world.internal.may_lose(process))):
                if world.process_of(process.name) is process:  # else its successor runs already, as it was before
                    world.revisions[process.name] = f"revision {self._revision}"
                world.process_ends(process, "rolled", restart=fault.downtime)
                world.coverage["brokers rolled"] += 1
            else:
                world.scheduler.after(LOOK * self._tempo, self._drains, fault, left, process, until)
                return
        if len(left) == 1:
            self._rolling = False
            world.coverage["rollouts finished"] += 1
            return
        self._next(fault, left[1:], world.scheduler.now + PATIENCE * self._tempo)
