"""A run on a Kubernetes: load, faults one after the other, then the accounts.

A run is met when nothing acknowledged was lost, duplicated or reordered, everything published was answered, every fault
was proved, and cluster and clients were healthy in time after each.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from migratory_node.kubectl import KubectlError, Object
from migratory_testing.accounts import recount

from migratory_chaos.engine import Engine, LoadError, Schedule
from migratory_chaos.kubernetes.environment import Environment
from migratory_chaos.kubernetes.fault_kinds import KINDS, NEEDS
from migratory_chaos.kubernetes.load_pod import LoadPod
from migratory_chaos.kubernetes.local_node import LocalNode
from migratory_chaos.kubernetes.report import create_report
from migratory_chaos.kubernetes.result import KubernetesRunResult
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import ZOOKEEPER, Api, NoAnswer, Target
from migratory_chaos.kubernetes.timeline import Moment, find_unserved, parse_timeline

MIN_LOAD_SECONDS = 80.0
"""Seconds that a load with a report lasts at least: the report's window has a minute at least."""
LAST_SCRAPES_SECONDS = 10.0
"""After the end, for the last scrapes to get the final counts. The load's pages stay up for longer."""


@dataclass(frozen=True)
class KubernetesRunOptions:
    """The options of a run. `minutes` of faults, or None for each kind once. `load`: fields of the load
    generator's scenario."""

    kinds: list[str]
    seed: int
    image: str
    minutes: float | None = None
    prometheus: str = ""
    load: Object = field(default_factory=dict)


class KubernetesRun(Engine[KubernetesScene]):
    """A chaos run on a Kubernetes. Call `await run()` once."""

    HEALTHY_SECONDS: ClassVar[float] = 400.0  # a roll of three pods is part of it
    STEADY_SECONDS: ClassVar[float] = 3.0
    HEALTH_INTERVAL: ClassVar[float] = 1.0
    FAULT_SECONDS: ClassVar[float] = 1500.0  # the limits of a roll's or a scaling's proofs together

    def __init__(
        self, environment: Environment, api: Api, options: KubernetesRunOptions, say: Callable[[str], None]
    ) -> None:
        self.options = options
        kube = environment.kube
        self.target = Target(kube, api, environment.cluster)
        self.load = LoadPod(kube, api, options.image, environment.cluster)
        self.node = LocalNode.find(kube.kubeconfig, kube.namespace)
        self.operator = environment.operator
        met = {
            "node": self.node is not None,
            "operator": self.operator.in_pod,
            "zookeeper": len(self.target.pods(ZOOKEEPER)) >= 3,
        }
        kinds = {name: KINDS[name] for name in options.kinds}
        offered = frozenset(need for need, is_met in met.items() if is_met)
        schedule = Schedule(kinds, options.seed, offered, options.minutes is not None)
        super().__init__(schedule, options.seed, options.minutes, say)
        self.result = KubernetesRunResult(
            seed=options.seed,
            cluster=environment.cluster,
            namespace=kube.namespace,
            operator=self.operator.describe(),
            left_out=schedule.left_out(NEEDS),
            faults=self.records,
        )
        self._moments: list[Moment] = []

    async def run(self) -> KubernetesRunResult:
        result = self.result
        for line in result.left_out:
            self.say(f"left out: {line}")
        if self.node is not None:
            self.node.heal()  # after a run that was killed
        try:
            self.load.remove()
            self.load.start(self.target.urls(), self.options.load)
            self.load_began = time.monotonic() - float(self.load.status()["elapsed"])
            result.errors += await self.inject_faults()
            await self._account()
        except (LoadError, NoAnswer, KubectlError) as error:
            result.errors.append(str(error))
        finally:
            if self.node is not None:
                self.node.heal()
                self.node.start_daemons()
            self.load.remove()
        return result

    def make_scene(self, kind: str, chance: random.Random) -> KubernetesScene:
        target, load = self.target, self.load
        return KubernetesScene(
            kind, chance, self.load_began, target, load, self.operator, self.node, self.wait_healthy
        )  # fmt: skip

    async def find_unhealthy(self) -> list[str]:
        return self._find_unserved() or self.target.find_unhealthy()

    def _find_unserved(self) -> list[str]:
        status = self.load.status()
        if not status:
            return ["the load does not answer"]
        if status["failure"]:
            raise LoadError(f"the load ended: {status['failure']}")
        self._moments.append(Moment(**{key: float(status[key]) for key in Moment.__dataclass_fields__}))
        publishers = min(int(self.options.load["publishers"]), int(self.options.load["topics"]))
        return find_unserved(self._moments, len(self._moments) - 1, int(status["subscribers"]), publishers)

    async def _account(self) -> None:
        result = self.result
        began = self.load.began()
        if self.options.prometheus:
            await asyncio.sleep(max(0.0, MIN_LOAD_SECONDS - (time.monotonic() - self.load_began)))
        result.load = self.load.end()
        result.moments = parse_timeline(self.load.timeline())
        with tempfile.NamedTemporaryFile(prefix="migratory-chaos-", suffix=".jsonl") as file:
            file.write(self.load.account())
            file.flush()
            result.recount = recount(Path(file.name))
        self.say(
            f"{result.load['published']:,} published, {result.load['acknowledged']:,} acknowledged, "
            f"{result.load['delivered']:,} of {result.load['expected']:,} delivered, {result.load['lost']} lost, "
            f"{result.load['duplicates']} duplicates, {result.load['reordered']} reordered"
        )
        if self.options.prometheus:
            await asyncio.sleep(LAST_SCRAPES_SECONDS)
        report = await create_report(
            self.target, f"chaos-{self.options.seed}", began, datetime.now(UTC), self.options.prometheus
        )
        result.report = report
        self.say(f"SLA report: {report['verdict']}" + (f": {report['reason']}" if report.get("reason") else ""))
