"""A chaos run on a Kubernetes: load, faults one after the other, then the accounts.

The verdict is `met` when nothing acknowledged was lost, duplicated or reordered, everything published was answered,
every fault was proved, and cluster and clients were healthy in time after each.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from migratory_loadtest import LoadEvent
from migratory_node.kubectl import KubectlError
from migratory_node.load import LoadFailed, LoadPod
from migratory_testing.accounts import recount

from migratory_chaos.engine import Engine, LoadError, Schedule
from migratory_chaos.kubernetes.environment import Environment
from migratory_chaos.kubernetes.fault_kinds import KINDS, NEEDS
from migratory_chaos.kubernetes.local_node import LocalNode
from migratory_chaos.kubernetes.report import create_report
from migratory_chaos.kubernetes.result import KubernetesRunResult, find_unserved
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import ZOOKEEPER, Target

LOAD: dict[str, Any] = {
    "subscribers": 60,
    "topics": 20,
    "rate": 4.0,
    "publishers": 4,
    "patience": 60.0,
    "resume_limit": 60.0,
}
"""The scenario of the load generator in every run."""
MIN_LOAD_SECONDS = 80.0
"""Seconds that a load with a report lasts at least: the report's window has a minute at least."""
LAST_SCRAPES_SECONDS = 10.0
"""Seconds after the end of the load in which the last scrapes get the final counts. The load's metrics pages stay up
for longer."""


class KubernetesRun(Engine[KubernetesScene]):
    """A chaos run in Kubernetes. Call `await run()` once.

    :param minutes: for how long to inject faults; None injects one of each kind. :param prometheus: the URL of a
    Prometheus as pods reach it; empty: the one of the cluster's spec.
    """

    HEALTHY_SECONDS: ClassVar[float] = 400.0  # a roll of three pods is part of it
    STEADY_SECONDS: ClassVar[float] = 3.0
    HEALTH_INTERVAL: ClassVar[float] = 1.0
    FAULT_SECONDS: ClassVar[float] = 1500.0  # the limits of a roll's or a scaling's proofs together

    def __init__(
        self,
        environment: Environment,
        kinds: Sequence[str],
        seed: int,
        minutes: float | None,
        prometheus: str,
        say: Callable[[str], None],
    ) -> None:
        kube = environment.kube
        self.prometheus = prometheus
        self.target = Target(kube, environment.cluster)
        self.load = LoadPod(kube, "chaos-load", environment.cluster)
        self.node = LocalNode.find(kube.kubeconfig, kube.namespace)
        self.operator = environment.operator
        met = {
            "node": self.node is not None,
            "operator": self.operator.deployment is not None,
            "zookeeper": len(self.target.pods(ZOOKEEPER)) >= 3,
        }
        offered = frozenset(need for need, is_met in met.items() if is_met)
        schedule = Schedule({name: KINDS[name] for name in kinds}, seed, offered, minutes is not None)
        super().__init__(schedule, seed, minutes, say)
        self.result = KubernetesRunResult(
            seed=seed,
            cluster=environment.cluster,
            namespace=kube.namespace,
            operator=str(self.operator),
            left_out=schedule.left_out(NEEDS),
            faults=self.records,
        )
        self._moments: list[LoadEvent] = []

    async def run(self) -> KubernetesRunResult:
        result = self.result
        for line in result.left_out:
            self.say(f"left out: {line}")
        if self.node is not None:
            self.node.heal()  # after a run that was killed
        try:
            self.load.remove()
            self.load.start(**LOAD, seed=self.seed, topic_prefix=f"chaos/{self.seed}")
            self.load_began = time.monotonic() - float(self.load.status()["now"])
            result.errors += await self.inject_faults()
            await self._account()
        except (LoadError, LoadFailed, KubectlError, AssertionError) as error:
            result.errors.append(str(error))
        finally:
            if self.node is not None:
                self.node.heal()
                self.node.start_daemons()
            self.load.remove()
        return result

    def make_scene(self, kind: str, options: dict[str, Any], chance: random.Random) -> KubernetesScene:
        marks = max((record.marks[1] for record in self.records), default=0)
        return KubernetesScene(
            kind, options, chance, self.load_began, self.target, self.load, marks, self.operator, self.node,
            self.wait_healthy,
        )  # fmt: skip

    async def find_unhealthy(self) -> list[str]:
        return self._find_unserved() or await self.target.find_unhealthy()

    def _find_unserved(self) -> list[str]:
        status = self.load.status()
        if not status:
            return ["the load does not answer"]
        self._moments.append(msgspec.convert(status, LoadEvent))
        return find_unserved(self._moments, len(self._moments) - 1, LOAD["publishers"])

    async def _account(self) -> None:
        result = self.result
        began = self.load.began()
        if self.prometheus:
            await asyncio.sleep(max(0.0, MIN_LOAD_SECONDS - (time.monotonic() - self.load_began)))
        self.load.cease()
        result.load = self.load.result()
        result.moments = self.load.timeline()
        with tempfile.NamedTemporaryFile("w", prefix="migratory-chaos-", suffix=".jsonl") as file:
            file.write(self.load.account())
            file.flush()
            result.recount = recount(Path(file.name))
        self.say(
            f"{result.load['published']:,} published, {result.load['acknowledged']:,} acknowledged, "
            f"{result.load['delivered']:,} of {result.load['expected']:,} delivered, {result.load['lost']} lost, "
            f"{result.load['duplicates']} duplicates, {result.load['reordered']} reordered"
        )
        if self.prometheus:
            await asyncio.sleep(LAST_SCRAPES_SECONDS)
        name = f"chaos-{self.seed}"
        report = await create_report(self.target, name, began, datetime.now(UTC), self.prometheus)
        result.report = report
        self.say(f"SLA report: {report['verdict']}" + (f": {report['reason']}" if report.get("reason") else ""))
