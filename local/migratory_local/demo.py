"""`migratory demo`: a cluster, load on it, the kill of one of its processes in the middle, and the accounts afterwards.

Two parties judge. The load generator's verifier compares every acknowledged publication with every delivery; it decides
about success. The SLA report is made by Spark from the recorded metrics alone; its verdict is the result's `verdict`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from migratory_loadtest.api import Load, LoadEvent, LoadFailed, LoadResult, Scenario
from migratory_resources import MigratoryCluster, Objective

from migratory_local.cluster import LocalCluster
from migratory_local.demo_options import KILL_AFTER, DemoOptions, Kill, check_time, objectives_of, too_little
from migratory_local.errors import LocalError
from migratory_local.java import find_java, spark_home
from migratory_local.machine import allow_descriptors
from migratory_local.process import Process
from migratory_local.recorder import Recorder
from migratory_local.report_job import write_request
from migratory_local.state import publish
from migratory_local.supervisor import Happening, ending
from migratory_local.zookeeper import Member

DEAD_SECONDS = 2.0
"""How long the killed process stays away, so that the others must do without it."""
_REPORT_SECONDS = 300.0
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The report's JVM lives for half a minute: with the second compiler it took 52 s of CPU time, without 28."""
_UNEVEN = 1.3
"""Clients spread by chance, and unevenly while one broker is away: room above an even share."""


@dataclass
class Killed:
    """The process that was killed, and what became of it. Wall-clock seconds; `rejoined` counts from the kill."""

    kind: Kill
    name: str
    at: float
    rejoined: float | None = None
    failure: str = ""


@dataclass
class DemoResult:
    load: LoadResult
    report: dict[str, Any]
    killed: Killed | None
    options: DemoOptions
    failures: list[str] = field(default_factory=list)
    """Why the demo did not succeed, one sentence each; empty on success."""

    @property
    def success(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """docs/local.md describes the keys."""
        result: dict[str, Any] = msgspec.to_builtins(self.load)
        # A broker without clients is a broker all the same.
        seen = sorted({name for clients in result["connections"].values() for name in clients})
        for when, clients in result["connections"].items():
            result["connections"][when] = dict.fromkeys(seen, 0) | clients
        result["verified"] = result.pop("verdict")
        result["verdict"] = self.report["verdict"]
        result["success"] = self.success
        result["failures"] = self.failures
        result["seed"] = self.options.seed
        result["kill"] = {"kind": self.options.kill}
        if self.killed is not None:
            result["kill"].update(
                target=self.killed.name, at=round(self.killed.at, 3), rejoined_seconds=self.killed.rejoined
            )
        result["report"] = self.report
        return result


@dataclass
class Watcher:
    """What a display is told."""

    step: Callable[[str], None] = lambda _: None
    load: Callable[[LoadEvent], None] = lambda _: None


async def demo(resource: MigratoryCluster, workdir: Path, options: DemoOptions, watcher: Watcher) -> DemoResult:
    """The whole demo. When it returns or raises, nothing that it started is left.

    :raises LocalError: for what kept it from a result (ports, disk, descriptors, Java, a broker that does not start).
    """
    check_time(options)
    for warning in too_little(resource, options):
        watcher.step(warning)
    brokers = resource.spec.brokers.replicas
    per_broker = options.subscribers if brokers == 1 else round(options.subscribers / (brokers - 1) * _UNEVEN)
    allow_descriptors(min(per_broker, options.subscribers))

    def tell(happening: Happening) -> None:
        watcher.step(happening.text)

    cluster = LocalCluster(resource, workdir, ports=options.ports, on_happening=tell)
    await cluster.start(watcher.step)
    try:
        state_file = publish(cluster.state(str(workdir / "samples")))
        try:
            load, killed, start, end = await _run(cluster, options, watcher)
        finally:
            state_file.unlink(missing_ok=True)
    finally:
        await cluster.stop()
    watcher.step("The cluster has ended; Spark makes the report")
    objectives = objectives_of(resource, options)
    report = await _report(workdir, start, end, objectives, _incidents(load, killed), options.html, caveats(load))
    return DemoResult(load, report, killed, options, failures(load, killed, report, options, objectives))


def caveats(load: LoadResult) -> list[str]:
    """What a reader of the report should know of this run, one sentence each."""
    if not load.generator_late:
        return []
    return [
        "the latency is no measure of the brokers, as this machine was too busy to publish in time "
        f"({load.late_sends:,} of {load.scheduled:,} sends late)"
    ]


def scenario_of(resource: MigratoryCluster, options: DemoOptions, servers: list[str]) -> Scenario:
    """:raises LocalError: for numbers that can't be run."""
    try:
        return Scenario(
            servers=tuple(servers),
            subscribers=options.subscribers,
            topics=options.topics,
            payload=options.payload,
            rate=options.rate,
            duration=options.duration,
            warmup=options.warmup,
            seed=options.seed,
            groups=resource.spec.topics.groups,
            cluster=resource.name,
            resume_limit=options.resume_limit,
            topic_prefix="demo",
            thresholds=tuple(
                sorted({bound for objective in objectives_of(resource, options) for bound in objective.thresholds})
            ),
            metrics=True,
        )
    except ValueError as error:
        raise LocalError(str(error)) from error


async def _run(
    cluster: LocalCluster, options: DemoOptions, watcher: Watcher
) -> tuple[LoadResult, Killed | None, float, float]:
    """Load and kill. Returns the verifier's result, the kill, and the window of the report."""
    scenario = scenario_of(cluster.resource, options, cluster.urls)
    async with Recorder(cluster.workdir / "samples") as recorder:
        for broker in cluster.brokers:
            recorder.add(broker.ports.admin, "broker")
        try:
            async with Load(scenario, watcher.load) as load:
                start = time.time()
                for target in load.targets:
                    recorder.add(int(target.rpartition(":")[2]), "load")
                await load.measuring()
                watcher.step("Warm-up is over")
                killed = await _kill(cluster, load, options, watcher)
                recorder.check()
                result = await load.result()
                # The workers export what the verifier found; they are scraped before they end, and the window with it.
                await asyncio.sleep(scenario.scrape_interval)
                await recorder.scrape()
                end = time.time()
        except LoadFailed as error:
            raise LocalError(f"the load generator failed: {error}") from error
        return result, killed, start, end


async def _kill(cluster: LocalCluster, load: Load, options: DemoOptions, watcher: Watcher) -> Killed | None:
    if options.kill == "none":
        return None
    await asyncio.sleep(options.duration * KILL_AFTER)
    ready: Callable[[], Awaitable[None]]
    if options.kill == "zookeeper-leader":
        member = await cluster.zookeeper_leader()
        process, ready = member.process, partial(_zookeeper_ready, member)
        await load.mark(f"kill {options.kill}")
    else:
        if options.kill == "coordinator":
            name = await cluster.busiest_coordinator()
        else:
            name = random.Random(f"{options.seed}/kill").choice(cluster.resource.broker_names)
        process, ready = cluster.broker(name).process, cluster.wait_ready
        await load.mark(f"kill {options.kill}", name)
    killed = Killed(options.kill, process.name, time.time())
    cluster.supervisor.hold(process.name)
    process.kill()
    watcher.step(f"Killed {process.name}" + (f", the {options.kill}" if options.kill != "broker" else ""))
    await asyncio.sleep(DEAD_SECONDS)
    cluster.supervisor.release(process.name)
    try:
        await ready()
    except LocalError as error:
        killed.failure = str(error)
        watcher.step(f"{process.name} has not rejoined")
    else:
        killed.rejoined = round(time.time() - killed.at, 3)
        watcher.step(f"{process.name} has rejoined {killed.rejoined:.1f} s after its death")
    return killed


async def _zookeeper_ready(member: Member) -> None:
    deadline = time.monotonic() + 30.0
    while await asyncio.to_thread(member.mode) is None:
        if time.monotonic() > deadline:
            raise LocalError(f"{member.name} did not come back within 30 s; its log ends:\n{member.process.tail()}")
        await asyncio.sleep(0.1)


def failures(
    load: LoadResult,
    killed: Killed | None,
    report: dict[str, Any],
    options: DemoOptions,
    objectives: Sequence[Objective] = (),
) -> list[str]:
    """Why the run was no success: what the verifier found, and objectives that the report says were missed."""
    promised = {objective.name: objective for objective in objectives}
    found = []
    for problem in load.problems:
        positions = ", ".join(problem.positions)
        who = "" if problem.subscriber is None else f" at subscriber {problem.subscriber}"
        found.append(
            f"{problem.kind}: topic {problem.topic}{who}, {problem.count} at {positions or '?'} {problem.text}".rstrip()
        )
    if not only_late(load):
        found += load.reasons
    if load.verdict != "met" and not found and not only_late(load):
        found.append(f"the verifier's verdict is {load.verdict}")
    if killed is not None and killed.failure:
        found.append(killed.failure)
    if options.kill in ("broker", "coordinator") and not load.reconnect_reasons.get("broken"):
        found.append("no client lost its connection: the kill had no effect")
    found += [
        f"objective {result['name']} was missed: {missed(result, promised.get(result['name']))}"
        for result in report["objectives"]
        if result["verdict"] == "missed"
    ]
    return found


def missed(result: dict[str, Any], objective: Objective | None) -> str:
    """An objective's result in words: "73.86% of deliveries within 500 ms, target 90%"."""
    if result["reason"]:
        return str(result["reason"])
    share, target = result["compliance"] * 100, float(result["target"])
    # As many digits as it takes to tell it from the target.
    shown = next((text for digits in (2, 4, 6) if float(text := f"{share:.{digits}f}") < target), f"{share!r}")
    what = {
        "latency": "deliveries",
        "delivery": "expected deliveries once and in order",
        "resume": "resumes",
        "publish": "publish gaps",
        "availability": "publications acknowledged",
    }[result["type"]]
    if objective is not None and objective.slices is not None:
        slices = objective.slices
        what = f"slices of {slices.length:g} s"
        if slices.threshold is not None:  # of availability there is none: a slice is good by its share
            what += f" with P{slices.percentile} within {_duration(slices.threshold)}"
    elif objective is not None and objective.threshold is not None:
        what += f" within {_duration(objective.threshold)}"
    return f"{shown}% of {what}, target {target:g}%"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def only_late(load: LoadResult) -> bool:
    """Whether the machine was too busy to publish in time, and nothing else is wrong: the latency is then the load
    generator's as well and not fit to be judged, but the accounts of deliveries and resumes are as exact as ever."""
    return load.verdict == "insufficient" and load.generator_late and len(load.reasons) == 1


def _incidents(load: LoadResult, killed: Killed | None) -> list[dict[str, Any]]:
    """The kill, over when the last client had resumed and the last publisher was served again."""
    if killed is None:
        return []
    lasted = max(load.resume_seconds.max or 0.0, load.publish_gap_seconds.max or 0.0, 0.1)
    broker = killed.name if killed.kind in ("broker", "coordinator") else ""
    return [{"kind": f"kill {killed.kind}", "broker": broker, "at": killed.at, "until": killed.at + lasted}]


async def _report(
    workdir: Path,
    start: float,
    end: float,
    objectives: list[Objective],
    incidents: list[dict[str, Any]],
    page: Path | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    request, answer = workdir / "report-request.json", workdir / "report.json"
    try:
        answer.unlink(missing_ok=True)
        java_home = spark_home(await asyncio.to_thread(find_java), workdir)
        write_request(
            request,
            samples=workdir / "samples",
            start=start,
            end=end,
            objectives=objectives,
            incidents=incidents,
            java_home=java_home,
            page=page,
            notes=notes,
        )
    except OSError as error:
        raise LocalError(f"cannot write into {workdir}: {error.strerror}") from error
    command = [sys.executable, "-m", "migratory_local.report_job", str(request), str(answer)]
    environment = {**os.environ, "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    job = Process("sla-report", command, workdir / "logs" / "sla-report.log", environment=environment)
    job.start()
    try:
        deadline = time.monotonic() + _REPORT_SECONDS
        while job.alive:
            if time.monotonic() > deadline:
                raise LocalError(f"the SLA report took more than {_REPORT_SECONDS:g} s; its log ends:\n{job.tail()}")
            await asyncio.sleep(0.1)
    finally:
        job.kill()
    if job.exit_code != 0:
        raise LocalError(f"the SLA report {ending(job.exit_code)}; its log ends:\n{job.tail()}")
    report: dict[str, Any] = json.loads(answer.read_text())
    return report
