"""The engine of a chaos run: faults with proofs, a seeded schedule, and the loop that injects one fault after another.

It knows no target. A target (`processes`, `kubernetes`) derives its scene from `Scene` and its run from `Engine`.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

POLL_SECONDS = 0.25
"""Seconds between two polls of the cluster. Short beside all limits here, which are seconds to minutes."""
T = TypeVar("T")
Observation = tuple[bool, object]
"""(whether the expected effect was seen, the value that was seen)"""


class LoadError(Exception):
    """An error of the load: it ended early or missed a time limit."""


async def poll_until(
    look: Callable[[], Awaitable[T]],
    within: float,
    interval: float = POLL_SECONDS,
    transient: tuple[type[Exception], ...] = (),
) -> T:
    """Call `look` every `interval` seconds. Return its first true value, or its last value after `within` seconds.

    Errors listed in `transient` count as a false value, and are raised if one comes at the end.
    """
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() > deadline
        try:
            value = await look()
        except transient:
            if late:
                raise
        else:
            if value or late:
                return value
        await asyncio.sleep(interval)


@dataclass(frozen=True)
class Proof:
    """An observation which shows that a fault took effect. `at` is in seconds since the load began."""

    what: str
    expected: str
    seen: str
    holds: bool
    at: float


@dataclass
class FaultRecord:
    """An injected fault and its outcome. Times are seconds since the load began.

    `began`: the first injection. `released`: the cluster recovers from then on. `healthy`: cluster and clients were
    healthy again; None if not in time, and then `unhealthy` says what was wrong. `injections`: milliseconds of the
    monotonic clock; `in_flight`: unacknowledged publications at each of them. `marks`: the range of the moments, marked
    in the load generator, that belong to this fault.
    """

    kind: str
    options: dict[str, Any]
    began: float
    targets: list[str] = field(default_factory=list)
    released: float | None = None
    healthy: float | None = None
    proofs: list[Proof] = field(default_factory=list)
    injections: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    marks: tuple[int, int] = (0, 0)
    notes: dict[str, Any] = field(default_factory=dict)
    unhealthy: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def recovery_seconds(self) -> float | None:
        return None if self.healthy is None or self.released is None else round(self.healthy - self.released, 2)

    def problems(self) -> list[str]:
        """Return the reasons for which this fault fails a run; empty if there are none."""
        name = f"{self.kind} at {self.began:g} s"
        found = [
            f"{name} was not proved: {proof.what}: expected {proof.expected}, seen {proof.seen}"
            for proof in self.proofs
            if not proof.holds
        ]
        if self.error:
            found.append(f"{name}: {self.error}")
        elif not self.proofs:
            found.append(f"{name} proved nothing")
        if self.healthy is None:
            found.append(f"{name}: not healthy in time: {'; '.join(self.unhealthy) or 'no health check ended'}")
        return found

    def as_data(self) -> dict[str, Any]:
        """Return a fault as results have it: `released` has the documented key `over`, and `healthy` has `whole`."""
        return {
            "kind": self.kind,
            "options": self.options,
            "targets": self.targets,
            "began": self.began,
            "over": self.released,
            "whole": self.healthy,
            "recovery_seconds": self.recovery_seconds,
            "proofs": [asdict(proof) for proof in self.proofs],
            "notes": self.notes,
            "error": self.error,
        }

    def summary(self) -> str:
        """Return a text of one line about the fault, and one more for each of its problems."""
        options = "".join(f" {key}={value}" for key, value in self.options.items() if not isinstance(value, dict))
        recovery = self.recovery_seconds
        return (
            f"{self.began:8.1f} s  {self.kind}{options} of {', '.join(self.targets)}: "
            f"{'not healthy again' if recovery is None else f'healthy after {recovery:.1f} s'}; "
            f"{sum(proof.holds for proof in self.proofs)} of {len(self.proofs)} proofs hold"
            + "".join(f"\n           {problem}" for problem in self.problems())
        )


class Scene:
    """The context in which one fault is injected and proved: its random numbers, and the record that it fills. Targets
    add a cluster.

    :param load_began: seconds of the monotonic clock.
    """

    PROOF_SECONDS: ClassVar[float] = 120.0
    """Seconds for the effect of a fault to show, at most. The slowest is a takeover on a busy machine: it needs the
    expiry of a ZooKeeper session, and a quorum."""
    PROOF_INTERVAL: ClassVar[float] = 0.1
    TRANSIENT: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors that count as "not yet" while a proof is awaited."""

    def __init__(self, kind: str, options: dict[str, Any], chance: random.Random, load_began: float) -> None:
        self.random = chance
        self.load_began = load_began
        self.record = FaultRecord(kind, options, self.now)

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return round(time.monotonic() - self.load_began, 2)

    def note_injection(self, *victims: str) -> None:
        """Record that the fault hits `victims` now. It is called right before each injection."""
        record = self.record
        if not record.injections:
            record.began = self.now
        record.injections.append(int(time.monotonic() * 1000))
        record.targets = list(dict.fromkeys([*record.targets, *victims]))

    def release(self) -> None:
        """Record that nothing more is done to the cluster: it recovers from now on."""
        self.record.released = self.now

    def prove(self, what: str, expected: object, seen: object, holds: bool | None = None) -> bool:
        """Record a proof and return whether it holds. By default it holds when `seen` equals `expected`."""
        result = expected == seen if holds is None else holds
        self.record.proofs.append(Proof(what, str(expected), str(seen), result, self.now))
        return result

    async def wait_until(
        self,
        what: str,
        expected: str,
        look: Callable[[], Awaitable[Observation]],
        within: float | None = None,
        interval: float | None = None,
    ) -> bool:
        """Poll `look` for at most `within` seconds, record its last observation as a proof, return whether it holds."""
        seen: list[Observation] = []

        async def observe() -> bool:
            seen.append(await look())
            return seen[-1][0]

        limit = self.PROOF_SECONDS if within is None else within
        await poll_until(observe, limit, self.PROOF_INTERVAL if interval is None else interval, self.TRANSIENT)
        return self.prove(what, expected, seen[-1][1], seen[-1][0])


S = TypeVar("S", bound=Scene)


class Fault(ABC, Generic[S]):
    """A fault of one type. Subclasses are frozen dataclasses, whose fields a seed drew. The victims are chosen at
    injection."""

    @abstractmethod
    async def inject(self, scene: S) -> None:
        """Inject the fault, prove its effect, let it last and end it. Undo everything, also after an error."""


@dataclass(frozen=True)
class Kind(Generic[S]):
    """A kind of fault: how a seed draws one, what it needs of the machine or cluster, and the weight with which it
    is drawn after the first round."""

    draw: Callable[[random.Random], Fault[S]]
    needs: str | None = None
    weight: int = 3


@dataclass(frozen=True)
class Schedule(Generic[S]):
    """The faults of one run, as (kind, fault): one of each kind in random order, then, if `endless`, more of them by
    weight.

    The first round makes sure that a short run does not depend on luck. Kinds whose `needs` are not `offered` are left
    out.
    """

    kinds: Mapping[str, Kind[S]]
    seed: int
    offered: frozenset[str]
    endless: bool = True

    def __iter__(self) -> Iterator[tuple[str, Fault[S]]]:
        chance = random.Random(f"faults {self.seed}")
        possible = [name for name in self.kinds if self.is_possible(name)]
        first_round = list(possible)
        chance.shuffle(first_round)
        for name in first_round:
            yield name, self.kinds[name].draw(chance)
        weights = [self.kinds[name].weight for name in possible]
        while self.endless and possible:
            name = chance.choices(possible, weights)[0]
            yield name, self.kinds[name].draw(chance)

    def is_possible(self, name: str) -> bool:
        return self.kinds[name].needs in (None, *self.offered)

    def left_out(self, reasons: Mapping[str, str]) -> list[str]:
        """Return the kinds left out, each with the reason for its unmet need."""
        return [
            f"{name}: {reasons[kind.needs or '']}" for name, kind in self.kinds.items() if not self.is_possible(name)
        ]


class Engine(ABC, Generic[S]):
    """The loop of a run: draw a fault, inject it, wait until cluster and clients are healthy, record the outcome.

    A run ends when its minutes are over (None: after one fault of each kind), or when the cluster does not become
    healthy: another fault would then take away more than the product promises to survive.
    """

    HEALTHY_SECONDS: ClassVar[float]
    """Seconds for cluster and clients to become healthy after a fault, at most."""
    STEADY_SECONDS: ClassVar[float] = 0.0
    """Seconds for which cluster and clients must have been healthy before the next fault."""
    HEALTH_INTERVAL: ClassVar[float] = POLL_SECONDS
    FAULT_SECONDS: ClassVar[float]
    """Seconds after which a fault that has not ended is cancelled. It then fails the run."""
    PAUSE_SECONDS: ClassVar[tuple[float, float]] = (0.0, 0.0)
    """The range in seconds of the random pause between two faults."""

    def __init__(self, schedule: Schedule[S], seed: int, minutes: float | None, say: Callable[[str], None]) -> None:
        """Prepare a run of `minutes` (None: until the schedule ends) with the random numbers of `seed`.

        :param say: receives a line about each step.
        """
        self.schedule = schedule
        self.seed = seed
        self.minutes = minutes
        self.say = say
        self.records: list[FaultRecord] = []
        self.load_began = 0.0  # on the monotonic clock

    @abstractmethod
    def make_scene(self, kind: str, options: dict[str, Any], chance: random.Random) -> S:
        """Return the scene of the next fault."""

    @abstractmethod
    async def find_unhealthy(self) -> list[str]:
        """Return what is wrong with the cluster or for its clients; empty when all are healthy. :raises LoadError:
        the load ended."""

    async def save_diagnostics(self) -> None:
        """Save the state of a cluster that did not become healthy, for the reader of the result. By default do
        nothing."""

    async def inject_faults(self) -> list[str]:
        """Run the loop, which fills `records`. Return what was wrong when the cluster was not healthy before the
        first fault, otherwise []."""
        if wrong := await self.wait_healthy():
            return [f"not healthy before any fault: {'; '.join(wrong)}"]
        chance = random.Random(f"run {self.seed}")
        end = None if self.minutes is None else time.monotonic() + self.minutes * 60
        for kind, fault in self.schedule:
            if end is not None and time.monotonic() >= end:
                break
            record = await self._inject(kind, fault, random.Random(chance.random()))
            self.records.append(record)
            self.say(record.summary())
            if record.healthy is None:
                await self.save_diagnostics()
                break
            await asyncio.sleep(chance.uniform(*self.PAUSE_SECONDS))
        return []

    async def _inject(self, kind: str, fault: Fault[S], chance: random.Random) -> FaultRecord:
        scene = self.make_scene(kind, asdict(fault), chance)  # type: ignore[call-overload]
        record = scene.record
        try:
            async with asyncio.timeout(self.FAULT_SECONDS):
                await fault.inject(scene)
        except LoadError:
            raise
        except TimeoutError:
            record.error = f"not over within {self.FAULT_SECONDS:g} s"
        except Exception as failure:  # noqa: BLE001 - recorded as the fault's: the deliveries are still worth judging
            record.error = repr(failure)
        if record.released is None:
            scene.release()
        record.unhealthy = await self.wait_healthy()
        if not record.unhealthy:
            record.healthy = max(record.released or 0.0, round(scene.now - self.STEADY_SECONDS, 2))
        return record

    async def wait_healthy(self) -> list[str]:
        """Return [] once all was healthy for `STEADY_SECONDS`, or what is wrong after `HEALTHY_SECONDS`."""
        deadline = time.monotonic() + self.HEALTHY_SECONDS
        since: float | None = None
        while True:
            wrong = await self.find_unhealthy()
            now = time.monotonic()
            if wrong:
                since = None
            else:
                since = now if since is None else since
                if now - since >= self.STEADY_SECONDS:
                    return []
            if now > deadline:
                return wrong or ["not healthy for long enough"]
            await asyncio.sleep(self.HEALTH_INTERVAL)
