"""A run on local processes: start cluster and clients, inject faults until the time is up, judge the histories.

A run passes when the histories are clean, nothing acknowledged is missing, every fault was proved, the cluster was
healthy in time after each, every publication was answered and the rate was held.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from migratory_chaos.engine import Engine, FaultRecord, LoadError, Schedule
from migratory_chaos.processes import history
from migratory_chaos.processes.checker import Verdict, check
from migratory_chaos.processes.client_process import ClientProcess
from migratory_chaos.processes.cluster import CLIENTS, ChaosCluster
from migratory_chaos.processes.fault_mixes import NAMESPACES, make_mixes
from migratory_chaos.processes.network import explain_missing
from migratory_chaos.processes.recording_clients import LoadOptions, Sample
from migratory_chaos.processes.scene import ProcessScene

ANSWER_SECONDS = 5.0
"""Seconds within which a publication of a healthy cluster is answered."""
MAX_EMPTY_SHARE = 0.1
"""The largest share of injections at which no publication may be in flight: a machine may be slow to inject."""
TOPICS, PUBLISHERS = 10, 5
_WARMUP_SECONDS = 3.0


@dataclass(frozen=True)
class ProcessRunOptions:
    """The options of a run, as on the command line. `copies` is minCopies."""

    minutes: float
    seed: int
    mix: str
    brokers: int
    copies: int
    subscribers: int
    rate: float
    least_rate: float


@dataclass
class ProcessRunResult:
    """The content of the JSON file. `seconds` and `rate` are those of the load."""

    options: ProcessRunOptions
    namespaces: bool
    left_out: list[str]
    faults: list[FaultRecord]
    seconds: float = 0.0
    rate: float = 0.0
    reconnects: int = 0
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
    """A chaos run on local processes, whose files are in `folder`. Call `await run()` once."""

    HEALTHY_SECONDS: ClassVar[float] = 120.0
    FAULT_SECONDS: ClassVar[float] = 420.0  # a restart storm waits for health between its kills
    PAUSE_SECONDS: ClassVar[tuple[float, float]] = (0.5, 3.0)

    def __init__(self, options: ProcessRunOptions, folder: Path, say: Callable[[str], None]) -> None:
        self.options = options
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.cluster = ChaosCluster(options.brokers, options.copies, folder / "cluster")
        self.clients = ClientProcess(folder, self.cluster.placement(CLIENTS))
        has_namespaces = self.cluster.network is not None
        kinds = make_mixes(options.copies - 1)[options.mix]
        schedule = Schedule(kinds, options.seed, frozenset({NAMESPACES} if has_namespaces else ()))
        super().__init__(schedule, options.seed, options.minutes, say)
        left_out = sorted(schedule.left_out({NAMESPACES: explain_missing()}))
        self.result = ProcessRunResult(options, has_namespaces, left_out, self.records)
        self.histories = folder / "histories"
        self._final = Sample()

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
            await self.clients.close()
            await self.cluster.stop()
            self.cluster.save_logs(self.folder / "logs")
        problems += [f"error in the clients: {line}" for line in self.clients.errors()]
        self._judge()
        return self.result

    async def _start_load(self) -> None:
        options = self.options
        load = LoadOptions(
            servers=self.cluster.urls,
            folder=str(self.histories),
            topics=[f"topic-{number}" for number in range(TOPICS)],
            publishers=PUBLISHERS,
            subscribers=options.subscribers,
            rate=options.rate,
            seed=options.seed,
        )
        await self.clients.start(load)
        self.load_began = time.monotonic()
        self.say(f"{options.brokers} brokers, {options.rate:g} publications a second to {TOPICS} topics")
        await asyncio.sleep(_WARMUP_SECONDS)

    async def _end_load(self) -> None:
        """Stop the load, wait until all publications are answered and delivered or given up, and record the totals
        and problems."""
        result = self.result
        final = self._final = await self.clients.end()
        result.seconds = round(time.monotonic() - self.load_began, 1)
        result.rate = round(final.acknowledged / final.seconds, 1)
        result.reconnects = final.reconnects
        if final.unanswered:
            result.problems.append(f"{final.unanswered} publications were never answered")
        result.problems += [f"did not catch up: {line}" for line in final.behind]

    def make_scene(self, kind: str, options: dict[str, Any], chance: random.Random) -> ProcessScene:
        return ProcessScene(kind, options, chance, self.load_began, self.cluster, self.clients.burst)

    async def find_unhealthy(self) -> list[str]:
        wrong = await self.cluster.find_unhealthy()
        sample = await self.clients.ask("sample")
        if sample.connected < sample.clients:
            wrong.append(f"{sample.clients - sample.connected} clients have no broker")
        if sample.oldest > ANSWER_SECONDS:
            wrong.append(f"a publication waits for {sample.oldest:g} s")
        return wrong

    async def save_diagnostics(self) -> None:
        """Save every broker's /v1/status, which explains histories that show a fault of the product."""
        answers = {
            broker.name: await broker.get_admin(self.cluster.http, "/v1/status") for broker in self.cluster.brokers
        }
        (self.folder / "statuses.json").write_text(json.dumps(answers, indent=1))

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
        result.verdict = verdict.as_data()
        result.problems += verdict.problems() + find_missing_lines(verdict, self._final)
        if result.rate < self.options.least_rate:
            result.problems.append(f"{result.rate:g} publications a second, not {self.options.least_rate:g}")
        empty = sum(not number for record in self.records for number in record.in_flight)
        if empty > len(moments) * MAX_EMPTY_SHARE:
            result.problems.append(f"at {empty} of {len(moments)} injections no publication was in flight")
        if not self.records:
            result.problems.append("no fault was injected")


def find_missing_lines(verdict: Verdict, counted: Sample) -> list[str]:
    """Return a text for each kind of event of which the histories hold fewer than the clients counted, as when a
    client's file is missing."""
    return [
        f"the histories hold {held} {what}, the clients counted {count}"
        for what in ("submitted", "acknowledged", "delivered")
        if (held := getattr(verdict, what)) < (count := getattr(counted, what))
    ]
