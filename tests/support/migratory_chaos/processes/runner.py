"""A run on local processes: start cluster and clients, inject faults until the time is up, judge the histories.

A run passes when the histories are clean, nothing acknowledged is missing, every fault was proved, the cluster was
healthy in time after each, every publication was answered and the rate was held.
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
from typing import Any, ClassVar

import msgspec

from migratory_chaos.engine import Engine, FaultRecord, LoadError, Schedule
from migratory_chaos.processes import history
from migratory_chaos.processes.checker import Verdict, check
from migratory_chaos.processes.client_processes import ClientProcess
from migratory_chaos.processes.cluster import CLIENTS, ChaosCluster, make_resource
from migratory_chaos.processes.fault_mixes import NAMESPACES, mix_kinds
from migratory_chaos.processes.network import Network, explain_missing, is_inside
from migratory_chaos.processes.recording_clients import LoadOptions
from migratory_chaos.processes.scene import ProcessScene

ANSWER_SECONDS = 5.0
"""A publication of a healthy cluster is answered sooner."""
MAX_EMPTY_SHARE = 0.1
"""Share of the injections at which all publications may have been answered: a machine may be slow to inject."""
_WARMUP_SECONDS = 3.0
_CONNECT_SECONDS = 60.0
_END_SECONDS = 130.0


@dataclass(frozen=True)
class ProcessRunOptions:
    """The options of a run. `copies` is minCopies. `least_rate`: acknowledged publications a second below which the
    run fails."""

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
class ProcessRunResult:
    """The content of the JSON file. `seconds` and `rate` are those of the load."""

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
    faults: list[FaultRecord] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    verdict: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.problems

    def as_data(self) -> dict[str, Any]:
        faults = [
            {**fault.as_data(), "injections": fault.injections, "in_flight": fault.in_flight} for fault in self.faults
        ]
        return {"passed": self.passed, **asdict(self), "faults": faults}


class ProcessRun(Engine[ProcessScene]):
    """A chaos run on local processes. Call `await run()` once."""

    HEALTHY_SECONDS: ClassVar[float] = 120.0
    FAULT_SECONDS: ClassVar[float] = 420.0  # a restart storm waits for health between its kills
    PAUSE_SECONDS: ClassVar[tuple[float, float]] = (0.5, 3.0)

    def __init__(self, options: ProcessRunOptions, say: Callable[[str], None]) -> None:
        self.options = options
        spec = make_resource(options.brokers, options.copies, options.groups)
        self.network = Network(ChaosCluster.nodes(spec)) if is_inside() else None
        options.folder.mkdir(parents=True, exist_ok=True)
        self.cluster = ChaosCluster(spec, options.folder / "cluster", self.network)
        offered = frozenset({NAMESPACES} if self.network is not None else ())
        schedule = Schedule(mix_kinds(options.mix, options.copies - 1), options.seed, offered)
        super().__init__(schedule, options.seed, options.minutes, say)
        self.result = ProcessRunResult(
            seed=options.seed,
            mix=options.mix,
            brokers=options.brokers,
            copies=options.copies,
            namespaces=self.network is not None,
            left_out=sorted(schedule.left_out({NAMESPACES: explain_missing()})),
            faults=self.records,
        )
        self.histories = options.folder / "histories"
        self._client_counts: dict[str, int] = {}
        self._clients: list[ClientProcess] = []

    async def run(self) -> ProcessRunResult:
        problems = self.result.problems
        try:
            await self.cluster.start()
            await self._start_load()
            problems += await self.inject_faults()
            await self._end_load()
        except LoadError as error:
            problems.append(str(error))
        finally:
            for clients in self._clients:
                await clients.close()
                problems += [f"error in the {clients.role}: {line}" for line in clients.errors()]
            await self.cluster.stop()
            self.cluster.save_logs(self.options.folder / "logs")
        self._judge()
        return self.result

    async def _start_load(self) -> None:
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
        file.write_bytes(msgspec.json.encode(load))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for role in ("subscribers", "publishers"):
            clients = ClientProcess(role, file, self.cluster.placement(CLIENTS), environment)
            self._clients.append(clients)
            await clients.start()
            await clients.wait_connected(_CONNECT_SECONDS)
        self.load_began = time.monotonic()
        self.say(
            f"{len(self.cluster.brokers)} brokers, {options.rate:g} publications a second to {options.topics} topics"
        )
        await asyncio.sleep(_WARMUP_SECONDS)

    async def _end_load(self) -> None:
        """Wait until all publications are answered, then until every subscriber has the last acknowledged positions."""
        subscribers, publishers = self._clients
        sent = await publishers.end("stop", _END_SECONDS)
        self.result.seconds = round(time.monotonic() - self.load_began, 1)
        self.result.rate = round(sent.final.acknowledged / self.result.seconds, 1)
        received = await subscribers.end(f"until {json.dumps(sent.last)}", _END_SECONDS)
        self.result.reconnects = sent.final.reconnects + received.final.reconnects
        self._client_counts = {
            "submitted": sent.final.submitted,
            "acknowledged": sent.final.acknowledged,
            "delivered": received.final.delivered,
        }
        if sent.final.waiting:
            self.result.problems.append(f"{sent.final.waiting} publications were never answered")
        self.result.problems += [f"did not catch up: {line}" for line in received.behind]

    def make_scene(self, kind: str, chance: random.Random) -> ProcessScene:
        return ProcessScene(kind, chance, self.load_began, self.cluster, self._clients[1].burst)

    async def find_unhealthy(self) -> list[str]:
        for clients in self._clients:
            clients.check()
        wrong = await self.cluster.find_unhealthy()
        for clients in self._clients:
            sample = clients.sample
            if sample.connected < sample.clients:
                wrong.append(f"{sample.clients - sample.connected} {clients.role} have no broker")
            if sample.oldest > ANSWER_SECONDS:
                wrong.append(f"a publication waits for {sample.oldest:g} s")
        return wrong

    async def save_diagnostics(self) -> None:
        (self.options.folder / "statuses.json").write_text(json.dumps(await self.cluster.statuses(), indent=1))

    def _judge(self) -> None:
        result = self.result
        moments = sorted(moment for record in self.records for moment in record.injections)
        try:
            verdict, in_flight = check(history.read(self.histories), moments, from_start=True)
        except history.BadHistory as error:
            result.problems.append(str(error))
            return
        at = dict(zip(moments, in_flight, strict=True))
        for record in self.records:
            record.in_flight = [at[moment] for moment in record.injections]
            result.problems += record.problems()
        result.kinds = dict(Counter(record.kind for record in self.records))
        result.verdict = verdict.as_data()
        result.deliveries = verdict.delivered
        result.problems += verdict.problems() + find_missing_lines(verdict, self._client_counts)
        if result.rate < self.options.least_rate:
            result.problems.append(f"{result.rate:g} publications a second, not {self.options.least_rate:g}")
        empty = sum(not number for record in self.records for number in record.in_flight)
        if empty > len(moments) * MAX_EMPTY_SHARE:
            result.problems.append(f"at {empty} of {len(moments)} injections no publication was in flight")
        if not self.records:
            result.problems.append("no fault was injected")


def find_missing_lines(verdict: Verdict, counted: dict[str, int]) -> list[str]:
    """Return the events that the clients counted and the histories do not hold, as when a client's file is missing."""
    data: dict[str, Any] = verdict.as_data()
    return [
        f"the histories hold {data[what]} {what}, the clients counted {count}"
        for what, count in counted.items()
        if data[what] < count
    ]
