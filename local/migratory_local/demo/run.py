"""The steps of `migratory demo`: starts a cluster, puts load on it, kills a process in the middle, makes the report."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from migratory_loadtest.api import Load, LoadEvent, LoadFailed, LoadResult, Scenario
from migratory_resources import MigratoryCluster

from migratory_local import LocalError
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_local.cluster.state import write_state
from migratory_local.cluster.zookeeper import ZooKeeperMember
from migratory_local.demo.options import KILL_AFTER, DemoOptions, check_duration, objectives_of, report_warnings
from migratory_local.demo.report_job import make_report
from migratory_local.demo.result import DemoResult, KilledProcess, describe_caveats, find_failures
from migratory_local.metrics.recorder import Recorder
from migratory_local.processes.preflight import raise_descriptor_limit
from migratory_local.processes.supervisor import SupervisorEvent

DOWN_SECONDS = 2.0
"""Seconds that the killed process stays down, so that the others must take over."""
_UNEVEN = 1.3
"""The largest number of clients of a broker, as a multiple of an even share among the brokers that the kill leaves:
clients choose brokers at random."""
_ZOOKEEPER_TIMEOUT = 30.0
"""Seconds for a killed ZooKeeper member to rejoin; it takes a second or two on an idle machine."""


@dataclass
class DemoObserver:
    """The callbacks that show the progress of a demo: `step` receives a line of text, `load` the state of the load."""

    step: Callable[[str], None] = lambda _: None
    load: Callable[[LoadEvent], None] = lambda _: None


async def run_demo(
    resource: MigratoryCluster, workdir: Path, options: DemoOptions, observer: DemoObserver
) -> DemoResult:
    """Run a demo in the work folder and return its result: start the cluster, put load on it, kill a process, end the
    cluster, and make the report. When it returns or raises, everything that it started has ended.

    Raise this process's limit of open files if needed. Warn through `observer` of options that may leave the report
    without a verdict.

    :raises LocalError: there is no result (options out of range, ports, disk, descriptors, Java, a broker that does not
        start, a failed load generator or report).
    """
    check_duration(options)
    for warning in report_warnings(resource, options):
        observer.step(warning)
    brokers = resource.spec.brokers.replicas
    per_broker = options.subscribers if brokers == 1 else round(options.subscribers / (brokers - 1) * _UNEVEN)
    raise_descriptor_limit(min(per_broker, options.subscribers))

    def show(event: SupervisorEvent) -> None:
        observer.step(event.text)

    cluster = LocalCluster(resource, workdir, ports=options.ports, on_event=show)
    await cluster.start(observer.step)
    try:
        state_file = write_state(cluster.state(str(workdir / "samples")))
        try:
            load, killed, start, end = await _run_load(cluster, options, observer)
        finally:
            state_file.unlink(missing_ok=True)
    finally:
        await cluster.stop()
    observer.step("The cluster has ended. Spark makes the report")
    objectives = objectives_of(resource, options)
    report = await make_report(
        workdir,
        start=start,
        end=end,
        objectives=objectives,
        incidents=_incidents(load, killed),
        page=options.html,
        notes=describe_caveats(load),
    )
    return DemoResult(load, report, killed, options, find_failures(load, killed, report, options, objectives))


def scenario_of(resource: MigratoryCluster, options: DemoOptions, servers: list[str]) -> Scenario:
    """Return the load scenario of a demo. Its thresholds are those of the cluster's objectives.

    :param servers: the brokers' URLs.
    :raises LocalError: the options are out of range.
    """
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


async def _run_load(
    cluster: LocalCluster, options: DemoOptions, observer: DemoObserver
) -> tuple[LoadResult, KilledProcess | None, float, float]:
    """Run the load, record metrics, and kill a process in the middle. Return the verified result, the killed process
    (None without a kill), and start and end of the report's window in seconds since 1970.

    :raises LocalError: the load generator or the recorder failed, or there is no process to kill.
    """
    scenario = scenario_of(cluster.resource, options, cluster.urls)
    tls = cluster.resource.spec.security.tls.administration is not None
    async with Recorder(cluster.workdir / "samples") as recorder:
        for broker in cluster.brokers:
            recorder.add(broker.ports.admin, "broker", tls=tls)
        try:
            async with Load(scenario, observer.load) as load:
                start = time.time()
                for target in load.targets:
                    recorder.add(int(target.rpartition(":")[2]), "load")
                await load.measuring()
                observer.step("Warm-up is over")
                killed = await _kill(cluster, load, options, observer)
                recorder.check()
                result = await load.result()
                # The workers export the verifier's findings. Scrape them before the workers and the window end.
                await asyncio.sleep(scenario.scrape_interval)
                await recorder.scrape()
                end = time.time()
        except LoadFailed as error:
            raise LocalError(f"the load generator failed: {error}") from error
        return result, killed, start, end


async def _kill(
    cluster: LocalCluster, load: Load, options: DemoOptions, observer: DemoObserver
) -> KilledProcess | None:
    """Wait for `KILL_AFTER` of the measured time, and kill the process that the options choose. Start it again after
    `DOWN_SECONDS`, and wait until it has rejoined. Return the killed process, or None if the options choose none. If it
    does not rejoin, its `failure` says so, and nothing is raised.

    :raises LocalError: there is no ZooKeeper leader or no coordinator to kill.
    """
    if options.kill == "none":
        return None
    await asyncio.sleep(options.duration * KILL_AFTER)
    wait_rejoined: Callable[[], Awaitable[None]]
    if options.kill == "zookeeper-leader":
        member = await cluster.zookeeper_leader()
        process, wait_rejoined = member.process, partial(_wait_for_member, member)
        await load.mark(f"kill {options.kill}")
    else:
        if options.kill == "coordinator":
            name = await cluster.busiest_coordinator()
        else:
            name = random.Random(f"{options.seed}/kill").choice(cluster.resource.broker_names)
        process, wait_rejoined = cluster.broker(name).process, cluster.wait_ready
        await load.mark(f"kill {options.kill}", name)
    killed = KilledProcess(options.kill, process.name, time.time())
    cluster.supervisor.hold(process.name)
    process.kill()
    observer.step(f"Killed {process.name}" + (f", the {options.kill}" if options.kill != "broker" else ""))
    await asyncio.sleep(DOWN_SECONDS)
    cluster.supervisor.release(process.name)
    try:
        await wait_rejoined()
    except LocalError as error:
        killed.failure = str(error)
        observer.step(f"{process.name} has not rejoined")
    else:
        killed.rejoined = round(time.time() - killed.at, 3)
        observer.step(f"{process.name} rejoined {killed.rejoined:.1f} s after the kill")
    return killed


async def _wait_for_member(member: ZooKeeperMember) -> None:
    """Wait until a ZooKeeper member has a quorum again.

    :raises LocalError: it has none after `_ZOOKEEPER_TIMEOUT` seconds; the message has the end of its log.
    """
    deadline = time.monotonic() + _ZOOKEEPER_TIMEOUT
    while await asyncio.to_thread(member.mode) is None:
        if time.monotonic() > deadline:
            raise LocalError(
                f"{member.name} did not rejoin within {_ZOOKEEPER_TIMEOUT:g} s; its log ends:\n{member.process.tail()}"
            )
        await asyncio.sleep(0.1)


def _incidents(load: LoadResult, killed: KilledProcess | None) -> list[dict[str, Any]]:
    """Return the kill as an incident for the report, or none without a kill. The incident ends after the longest resume
    time or publish gap of the run, when the last client and publisher are served again."""
    if killed is None:
        return []
    duration = max(load.resume_seconds.max or 0.0, load.publish_gap_seconds.max or 0.0, 0.1)
    broker = killed.name if killed.kind in ("broker", "coordinator") else ""
    return [{"kind": f"kill {killed.kind}", "broker": broker, "at": killed.at, "until": killed.at + duration}]
