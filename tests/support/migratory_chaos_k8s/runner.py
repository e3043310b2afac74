"""One run: a cluster, its load, faults one after the other, each followed by health; then the accounts.

A run is met when nothing acknowledged was lost, doubled or reordered; everything published was answered; every fault
was proved; and the cluster was whole in time after each, for clients as for the operator.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from migratory_node.kubectl import Object, Refused
from migratory_node.places import NodeError
from migratory_testing.accounts import recount

from migratory_chaos_k8s.api import Api, Silent
from migratory_chaos_k8s.faults import Fault, Scene
from migratory_chaos_k8s.load import LoadError, LoadPod
from migratory_chaos_k8s.machine_node import MachineNode
from migratory_chaos_k8s.place import Place
from migratory_chaos_k8s.report import report
from migratory_chaos_k8s.result import Run, Struck
from migratory_chaos_k8s.schedule import Need, Schedule
from migratory_chaos_k8s.target import ZOOKEEPER, Target, until
from migratory_chaos_k8s.timeline import Moment, read, served

HEAL_SECONDS = 400.0
"""Until the cluster must be whole again behind a fault, and every client be served. A roll of three pods is in it."""
STEADY_SECONDS = 3.0
"""For so long it must have been whole before the next fault."""
LEAST_SECONDS = 80.0
"""That a load lasts when there is to be a report of it, whose window has a minute at least."""
SCRAPES_SECONDS = 10.0
"""Behind the end, for the last scrapes to see the final counts; the load's pages stay up for longer."""
_POLL = 1.0


@dataclass(frozen=True)
class Options:
    """`minutes` of faults; None: each kind once. `load`: fields of the load generator's scenario."""

    kinds: list[str]
    seed: int
    image: str
    minutes: float | None = None
    prometheus: str = ""
    load: Object = field(default_factory=dict)


class Runner:
    """`Runner(place, api, options, say).run()`. `say` gets a line about each step."""

    def __init__(self, place: Place, api: Api, options: Options, say: Callable[[str], None]) -> None:
        self.options = options
        self._place = place
        self._say = say
        self.target = Target(place.kube, api, place.cluster)
        self.load = LoadPod(place.kube, api, options.image, place.cluster)
        self.machine = MachineNode.of(place.kube.kubeconfig, place.kube.namespace)
        self.schedule = Schedule(options.kinds, options.seed, self._offered(), options.minutes is not None)
        self.result = Run(
            seed=options.seed,
            cluster=place.cluster,
            namespace=place.kube.namespace,
            operator=place.operator.says(),
            left_out=self.schedule.left_out(),
        )
        self._offset = 0.0  # of the load's clock to this machine's monotonic one
        self._moments: list[Moment] = []

    def _offered(self) -> frozenset[Need]:
        offered: set[Need] = set()
        if self.machine is not None:
            offered.add("machine")
        if self._place.operator.in_pod:
            offered.add("operator")
        if len(self.target.pods(ZOOKEEPER)) >= 3:
            offered.add("zookeeper")
        return frozenset(offered)

    def run(self) -> Run:
        result = self.result
        for line in result.left_out:
            self._say(f"left out: {line}")
        if self.machine is not None:
            self.machine.heal()  # of a run that was killed
        try:
            self.load.remove()
            self.load.start(self.target.urls(), self.options.load)
            self._offset = time.monotonic() - float(self.load.status()["elapsed"])
            self._strike()
            self._account()
        except (LoadError, Silent, Refused) as error:
            result.errors.append(str(error))
        finally:
            if self.machine is not None:
                self.machine.heal()
                self.machine.start_daemons()
            self.load.remove()
        return result

    # ---- faults -----------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        chance = random.Random(f"run {self.options.seed}")
        began = time.monotonic()
        wrong = self._whole()
        if wrong:
            self.result.errors.append(f"not whole before any fault: {'; '.join(wrong)}")
            return
        for kind, fault in self.schedule:
            if self.options.minutes is not None and time.monotonic() - began > self.options.minutes * 60:
                return
            struck = self._one(kind, fault, random.Random(chance.random()))
            self.result.faults.append(struck)
            if struck.whole is None:
                return  # more faults would be more than was promised

    def _one(self, kind: str, fault: Fault, chance: random.Random) -> Struck:
        first = self.load.marks
        scene = Scene(
            kind=kind,
            target=self.target,
            load=self.load,
            random=chance,
            operator=self._place.operator,
            machine=self.machine,
            offset=self._offset,
            whole=self._whole,
        )
        asked = scene.now
        error = ""
        try:
            fault.strike(scene)
        except LoadError:
            raise  # without its load nothing is shown
        except (Refused, Silent, NodeError, ValueError, KeyError, RuntimeError) as failure:
            error = repr(failure)  # the fault's: the account is worth to be judged
        wrong = self._whole()
        whole = None if wrong else round(scene.now - STEADY_SECONDS, 2)
        over = scene.over if scene.over is not None else scene.now
        struck = Struck(
            kind=kind,
            options=fault.as_data(),
            targets=list(dict.fromkeys(scene.victims)),
            began=scene.began if scene.began is not None else asked,
            over=over,
            whole=None if whole is None else max(whole, over),
            proofs=[asdict(proof) for proof in scene.proofs],
            marks=(first, self.load.marks),
            notes=scene.notes,
            wrong=wrong,
            error=error,
        )
        self._tell(struck)
        return struck

    def _whole(self) -> list[str]:
        """Empty once the cluster was whole for `STEADY_SECONDS`; else what is wrong when the time is up."""
        deadline = time.monotonic() + HEAL_SECONDS
        since: float | None = None
        while True:
            wrong = self._served() or self.target.unwell()
            now = time.monotonic()
            if wrong:
                since = None
            elif since is None:
                since = now
            elif now - since >= STEADY_SECONDS:
                return []
            if now > deadline:
                return wrong or ["not whole for long enough"]
            time.sleep(_POLL)

    def _served(self) -> list[str]:
        """What is wrong for clients."""
        status = self.load.status()
        if not status:
            return ["the load does not answer"]
        if status["failure"]:
            raise LoadError(f"the load ended: {status['failure']}")
        self._moments.append(Moment(**{key: float(status[key]) for key in Moment.__dataclass_fields__}))
        return served(self._moments, len(self._moments) - 1, int(status["subscribers"]), self._publishers())

    def _publishers(self) -> int:
        return min(int(self.options.load["publishers"]), int(self.options.load["topics"]))

    def _tell(self, struck: Struck) -> None:
        options = " ".join(f"{key}={value}" for key, value in struck.options.items())
        recovery = struck.recovery_seconds
        self._say(
            f"{struck.began:7.1f} s  {struck.kind} {options} of {', '.join(struck.targets)}: "
            f"{struck.over - struck.began:.1f} s, whole {'never' if recovery is None else f'after {recovery:.1f} s'}; "
            f"{sum(proof['holds'] for proof in struck.proofs)} of {len(struck.proofs)} proofs hold"
            + "".join(f"\n           {problem}" for problem in struck.problems())
        )

    # ---- the accounts -----------------------------------------------------------------------------------------------

    def _account(self) -> None:
        result = self.result
        began = self.load.began()
        if self.options.prometheus:
            until(lambda: time.monotonic() - self._offset > LEAST_SECONDS, LEAST_SECONDS)
        result.load = self.load.end()
        result.moments = read(self.load.timeline())
        with tempfile.NamedTemporaryFile(prefix="migratory-chaos-", suffix=".jsonl") as file:
            file.write(self.load.account())
            file.flush()
            result.recount = recount(Path(file.name))
        self._say(
            f"{result.load['published']:,} published, {result.load['acknowledged']:,} acknowledged, "
            f"{result.load['delivered']:,} of {result.load['expected']:,} delivered, {result.load['lost']} lost, "
            f"{result.load['duplicates']} duplicates, {result.load['reordered']} reordered"
        )
        if self.options.prometheus:
            time.sleep(SCRAPES_SECONDS)
        name = f"chaos-{self.options.seed}"
        result.report = report(self.target, name, began, datetime.now(UTC), self.options.prometheus)
        self._say(f"SLA report: {result.report['verdict']}{_why(result.report)}")


def _why(told: Object) -> str:
    return f": {told['reason']}" if told.get("reason") else ""
