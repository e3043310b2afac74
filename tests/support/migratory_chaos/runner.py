"""One run: a cluster, its clients, faults until the time is up, each followed by health; then the verdict.

A run passes when the histories are clean, nothing acknowledged is missing (told or not), every fault was proved, the
cluster was whole again in time after each, everything submitted was answered and the rate was held.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from migratory_chaos import history
from migratory_chaos.checker import Verdict, check
from migratory_chaos.clients import Clients, LoadError, write_options
from migratory_chaos.cluster import CLIENTS, ChaosCluster, resource
from migratory_chaos.faults import Fault, Scene
from migratory_chaos.load import LoadOptions
from migratory_chaos.mixes import Faults
from migratory_chaos.network import Network, inside, missing

HEAL_SECONDS = 120.0
"""Until the cluster must be whole again behind a fault, and every client be served."""
FAULT_SECONDS = 420.0
"""No fault lasts longer; a storm of restarts waits for health between them."""
OLDEST_SECONDS = 5.0
"""Nothing waits longer for its answer when all is well."""
MOST_EMPTY = 0.1
"""Share of the blows at which all publications may have been answered already: a machine may be slow to strike."""
_CONNECT_SECONDS = 60.0
_END_SECONDS = 130.0
_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class RunOptions:
    """`least_rate`: acknowledged publications a second, over the time of the load, below which the run fails."""

    minutes: float
    seed: int
    folder: Path
    mix: str = "all"
    brokers: int = 3
    copies: int = 2
    groups: int = 20
    topics: int = 10
    publishers: int = 5
    subscribers: int = 6
    rate: float = 1100.0
    least_rate: float = 0.0


@dataclass
class Struck:
    """A fault as it was: seconds since the load began; `in_flight` publications had no answer at each blow."""

    fault: dict[str, object]
    victims: list[str]
    began: float
    ended: float
    whole_after: float | None
    blows: list[int]
    in_flight: list[int]
    proofs: list[dict[str, object]]
    error: str = ""


@dataclass
class Run:
    """What goes into the JSON file."""

    seed: int
    mix: str
    brokers: int
    copies: int
    namespaces: bool
    left_out: list[str]
    seconds: float = 0.0
    rate: float = 0.0
    deliveries: int = 0
    reconnects: int = 0
    faults: list[Struck] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    verdict: dict[str, object] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.problems

    def as_data(self) -> dict[str, object]:
        return {"passed": self.passed, **asdict(self)}


class Runner:
    """`await Runner(options).run()`. `say` gets a line about each step."""

    def __init__(self, options: RunOptions, say: Callable[[str], None]) -> None:
        self.options = options
        self._say = say
        spec = resource(options.brokers, options.copies, options.groups)
        self.network = Network(ChaosCluster.nodes(spec)) if inside() else None
        options.folder.mkdir(parents=True, exist_ok=True)
        self.cluster = ChaosCluster(spec, options.folder / "cluster", self.network)
        self.faults = Faults(options.mix, options.seed, options.copies - 1, self.network is not None)
        self.result = Run(
            seed=options.seed,
            mix=options.mix,
            brokers=options.brokers,
            copies=options.copies,
            namespaces=self.network is not None,
            left_out=[f"{kind}: {missing()}" for kind in self.faults.left_out()],
        )
        self.histories = options.folder / "histories"
        self._began = 0.0
        self._counted: dict[str, int] = {}  # by the clients themselves
        self._clients: list[Clients] = []
        self._scenes: list[tuple[Struck, Scene]] = []

    async def run(self) -> Run:
        result = self.result
        try:
            await self.cluster.start()
            await self._load()
            await self._strike()
            await self._end()
        except LoadError as error:
            result.problems.append(str(error))
        finally:
            for clients in self._clients:
                await clients.close()
                result.problems += [f"the {clients.role} complain: {line}" for line in clients.complaints()]
            await self.cluster.stop()
            self.cluster.keep_logs(self.options.folder / "logs")
        self._judge()
        return result

    # ---- the load ---------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        options = self.options
        load = LoadOptions(
            servers=self.cluster.urls,
            folder=str(self.histories),
            topics=[f"topic-{number}" for number in range(options.topics)],
            publishers=options.publishers,
            subscribers=options.subscribers,
            rate=options.rate,
            seed=options.seed,
        )
        file = options.folder / "load.json"
        write_options(load, file)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        place = self.cluster.place(CLIENTS)
        for role in ("subscribers", "publishers"):
            clients = Clients(role, file, place, environment)
            self._clients.append(clients)
            await clients.start()
            await clients.connected(_CONNECT_SECONDS)
        self._began = time.monotonic()
        self._say(
            f"{len(self.cluster.brokers)} brokers, {options.rate:g} publications a second to {options.topics} topics"
        )

    async def _end(self) -> None:
        """All is answered, then every subscriber has come to the last acknowledged position."""
        subscribers, publishers = self._clients
        sent = await publishers.end("stop", _END_SECONDS)
        self.result.seconds = round(time.monotonic() - self._began, 1)
        self.result.rate = round(sent.final.acknowledged / self.result.seconds, 1)
        got = await subscribers.end(f"until {json.dumps(sent.last)}", _END_SECONDS)
        self.result.reconnects = sent.final.reconnects + got.final.reconnects
        self._counted = {
            "submitted": sent.final.submitted,
            "acknowledged": sent.final.acknowledged,
            "delivered": got.final.delivered,
        }
        if sent.final.waiting:
            self.result.problems.append(f"{sent.final.waiting} publications were never answered")
        self.result.problems += [f"did not catch up: {line}" for line in got.behind]

    # ---- faults -----------------------------------------------------------------------------------------------------

    async def _strike(self) -> None:
        chance = random.Random(f"run {self.options.seed}")
        until = self._began + self.options.minutes * 60
        await asyncio.sleep(3.0)
        for fault in self.faults:
            if time.monotonic() >= until:
                return
            struck = await self._one(fault, random.Random(chance.random()))
            self.result.faults.append(struck)
            if struck.whole_after is None:
                await self._keep_statuses()
                return  # more faults would be more than was promised
            await asyncio.sleep(chance.uniform(0.5, 3.0))

    async def _one(self, fault: Fault, chance: random.Random) -> Struck:
        scene = Scene(self.cluster, chance, self._clients[1].burst)
        before = self._acknowledged()
        began = time.monotonic()
        error = ""
        try:
            async with asyncio.timeout(FAULT_SECONDS):
                await fault.inflict(scene)
        except TimeoutError:
            error = f"not over within {FAULT_SECONDS:g} s"
        except Exception as failure:  # noqa: BLE001 - reported as the fault's: the histories are worth to be judged
            error = repr(failure)
        ended = time.monotonic()
        wrong = await self._whole()
        whole = time.monotonic()
        struck = Struck(
            fault=fault.as_data(),
            victims=scene.victims,
            began=round(began - self._began, 2),
            ended=round(ended - self._began, 2),
            whole_after=None if wrong else round(whole - ended, 2),
            blows=scene.blows,
            in_flight=[],
            proofs=[asdict(proof) for proof in scene.proofs],
            error=error,
        )
        self._find_problems(struck, scene, wrong)
        rate = (self._acknowledged() - before) / (whole - began)
        what = " ".join(
            f"{key}={value}" for key, value in struck.fault.items() if key not in ("kind", "first", "second")
        )
        self._say(
            f"{struck.began:8.1f} s  {struck.fault['kind']} {what} of {', '.join(dict.fromkeys(scene.victims))}: "
            f"{ended - began:.1f} s, whole {'never' if wrong else f'after {whole - ended:.1f} s'}; {rate:,.0f}/s"
            + "".join(f"\n    NOT PROVED {proof.what}: {proof.seen}" for proof in scene.proofs if not proof.holds)
            + (f"\n    {error}" if error else "")
        )
        return struck

    def _find_problems(self, struck: Struck, scene: Scene, wrong: list[str]) -> None:
        name = f"{struck.fault['kind']} at {struck.began:g} s"
        problems = self.result.problems
        problems += [
            f"{name} was not proved: {proof.what}: expected {proof.expected}, seen {proof.seen}"
            for proof in scene.proofs
            if not proof.holds
        ]
        if not scene.proofs and not struck.error:
            problems.append(f"{name} proved nothing")
        if struck.error:
            problems.append(f"{name}: {struck.error}")
        if wrong:
            problems.append(f"{name}: not whole within {HEAL_SECONDS:g} s: {'; '.join(wrong)}")

    async def _whole(self) -> list[str]:
        """What is still wrong when the time is up: of the cluster, or as clients see it."""
        deadline = time.monotonic() + HEAL_SECONDS
        while True:
            for clients in self._clients:
                clients.check()
            wrong = await self.cluster.unwell()
            for clients in self._clients:
                sample = clients.sample
                if sample.connected < sample.clients:
                    wrong.append(f"{sample.clients - sample.connected} {clients.role} have no broker")
                if sample.oldest > OLDEST_SECONDS:
                    wrong.append(f"a publication waits for {sample.oldest:g} s")
            if not wrong or time.monotonic() > deadline:
                return wrong
            await asyncio.sleep(_POLL_SECONDS)

    def _acknowledged(self) -> int:
        return self._clients[1].sample.acknowledged

    async def _keep_statuses(self) -> None:
        statuses = await self.cluster.statuses()
        (self.options.folder / "statuses.json").write_text(json.dumps(statuses, indent=1))

    # ---- the verdict ------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        result = self.result
        moments = sorted(blow for struck in result.faults for blow in struck.blows)
        try:
            verdict, under_way = check(history.read(self.histories), moments, from_start=True)
        except history.BadHistory as error:
            result.problems.append(str(error))
            return
        at = dict(zip(moments, under_way, strict=True))
        for struck in result.faults:
            struck.in_flight = [at[blow] for blow in struck.blows]
        result.kinds = dict(Counter(str(struck.fault["kind"]) for struck in result.faults))
        result.verdict = verdict.as_data()
        result.deliveries = verdict.delivered
        result.problems += verdict.problems()
        result.problems += missing_lines(verdict, self._counted)
        if result.rate < self.options.least_rate:
            result.problems.append(f"{result.rate:g} publications a second, not {self.options.least_rate:g}")
        empty = sum(not number for struck in result.faults for number in struck.in_flight)
        if empty > len(moments) * MOST_EMPTY:
            result.problems.append(f"at {empty} of {len(moments)} blows no publication was under way")
        if not result.faults:
            result.problems.append("no fault struck")


def missing_lines(verdict: Verdict, counted: dict[str, int]) -> list[str]:
    """What the clients counted themselves and the histories do not hold: a client whose file is not there, say."""
    return [
        f"the histories hold {found} {what}, the clients counted {count}"
        for what, count in counted.items()
        if (found := int(str(verdict.as_data()[what]))) < count
    ]
