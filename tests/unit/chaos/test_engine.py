"""The chaos engine: what seeds draw for both kinds of runs, proofs of faults, the main loop, and the records that
make a run fail."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import click
import pytest
from migratory_chaos.__main__ import parse_kinds
from migratory_chaos.engine import Engine, Fault, Kind, LoadError, Scene, Schedule, poll_until
from migratory_chaos.kubernetes.fault_kinds import KINDS, NEEDS
from migratory_chaos.processes.broker_faults import FreezeBrokers, KillBrokers
from migratory_chaos.processes.fault_mixes import MIXES, NAMESPACES, Combined, make_mixes

Kinds = Mapping[str, Kind[Any]]
ALL_NEEDS = frozenset({*NEEDS, NAMESPACES})
TARGETS: dict[str, Kinds] = {"kubernetes": KINDS, **make_mixes(1)}
ALL = TARGETS["all"]


def draw(kinds: Kinds, seed: int = 5, offered: frozenset[str] = ALL_NEEDS, count: int = 200) -> list[tuple[str, Any]]:
    return list(itertools.islice(Schedule(kinds, seed, offered), count))


@pytest.mark.parametrize("kinds", TARGETS.values(), ids=list(TARGETS))
class TestSchedule:
    def test_a_seed_draws_the_same_faults_again_and_another_seed_others(self, kinds: Kinds) -> None:
        assert draw(kinds, 5) == draw(kinds, 5)
        assert draw(kinds, 5) != draw(kinds, 6)

    def test_the_first_round_has_each_kind_once_and_later_rounds_have_all_kinds(self, kinds: Kinds) -> None:
        names = [name for name, _ in draw(kinds, count=len(kinds) + 400)]
        assert sorted(names[: len(kinds)]) == sorted(kinds)
        assert set(names[len(kinds) :]) == set(kinds)

    def test_faults_are_data(self, kinds: Kinds) -> None:
        for _, fault in draw(kinds, 13):
            assert json.loads(json.dumps(asdict(fault))) == asdict(fault)


@pytest.mark.parametrize("need", sorted(ALL_NEEDS))
def test_schedule_leaves_out_kinds_with_unmet_needs_and_names_them(need: str) -> None:
    kinds: Kinds = {**KINDS, **ALL}
    missing = {name for name, kind in kinds.items() if kind.needs == need}
    assert missing, "no kind needs it"
    offered = ALL_NEEDS - {need}
    assert not missing & {name for name, _ in draw(kinds, offered=offered, count=500)}
    reasons = {**NEEDS, NAMESPACES: "no root"}
    left_out = Schedule(kinds, 1, offered).left_out(reasons)
    assert {line.partition(":")[0] for line in left_out} == missing
    assert all(line.endswith(reasons[need]) for line in left_out)
    assert Schedule(kinds, 1, ALL_NEEDS).left_out(reasons) == []


def test_schedule_without_namespaces_leaves_out_networks_and_disks() -> None:
    left_out = Schedule(ALL, 3, frozenset()).left_out({NAMESPACES: "no root"})
    assert sorted(line.partition(":")[0] for line in left_out) == [
        "cut ZooKeeper member", "delay", "full disk (ZooKeeper)", "full disk (logs)", "loss", "partition"
    ]  # fmt: skip
    assert Schedule(TARGETS["processes"], 3, frozenset()).left_out({}) == []


def test_schedule_ends_after_one_round_unless_endless() -> None:
    kinds = {name: KINDS[name] for name in ("kill", "scale", "evict")}
    assert sorted(name for name, _ in Schedule(kinds, 3, ALL_NEEDS, endless=False)) == ["evict", "kill", "scale"]
    assert list(Schedule({"partition": KINDS["partition"]}, 1, frozenset())) == []


def test_mixes_have_the_names_of_the_command_line() -> None:
    assert tuple(sorted(make_mixes(1))) == MIXES


@pytest.mark.parametrize("away", [1, 2])
def test_mixes_take_away_at_most_as_many_brokers_as_promised(away: int) -> None:
    counts: set[int] = set()
    for _, fault in draw(make_mixes(away)["all"], 11, count=2000):
        parts = [fault.first, fault.second] if isinstance(fault, Combined) else [fault]
        brokers = [part for part in parts if isinstance(part, KillBrokers | FreezeBrokers)]
        assert len(brokers) <= 1
        counts.update(part.count for part in brokers)
    assert counts == set(range(1, away + 1))


def test_parse_kinds_rejects_unknown_names() -> None:
    assert parse_kinds("kill, scale,kill") == ["kill", "scale"]
    assert parse_kinds("") == list(KINDS)
    with pytest.raises(click.UsageError, match=r"no such fault: kil, x; there are kill, kill-forced"):
        parse_kinds("kil,kill,x")


async def test_poll_until_returns_the_last_value_and_raises_a_last_error() -> None:
    values = iter((0, 0, 7))

    async def count() -> int:
        return next(values)

    async def refuse() -> int:
        raise ConnectionError("refused")

    assert await poll_until(count, 5.0, 0.0) == 7
    values = iter((0,))
    assert await poll_until(count, -1.0, 0.0) == 0
    with pytest.raises(ConnectionError):
        await poll_until(refuse, -1.0, 0.0, (ConnectionError,))


# ---- the loop, with a target of no processes ------------------------------------------------------------------------


@dataclass(frozen=True)
class FakeFault(Fault[Scene]):
    behaviour: str

    async def inject(self, scene: Scene) -> None:
        if self.behaviour == "load ends":
            raise LoadError("the load ended")
        scene.note_injection("b-0", "b-0")
        if self.behaviour == "error":
            raise ValueError("no such pod")
        if self.behaviour == "hangs":
            await poll_until(never, 60.0)
        if self.behaviour != "proves nothing":
            scene.prove("the state", "T", "R" if self.behaviour == "no effect" else "T")


async def never() -> bool:
    return False


class FakeRun(Engine[Scene]):
    HEALTHY_SECONDS: ClassVar[float] = 0.05
    FAULT_SECONDS: ClassVar[float] = 0.05
    HEALTH_INTERVAL: ClassVar[float] = 0.01

    def __init__(self, behaviour: str, find_unhealthy: Callable[[int], list[str]] = lambda _: []) -> None:
        kinds = {"fake": Kind(lambda _: FakeFault(behaviour)), "fake 2": Kind(lambda _: FakeFault(behaviour))}
        self.said: list[str] = []
        self.diagnostics = 0
        self._find_unhealthy = find_unhealthy
        super().__init__(Schedule(kinds, 1, frozenset(), endless=False), 1, None, self.said.append)

    def make_scene(self, kind: str, options: dict[str, Any], chance: random.Random) -> Scene:
        return Scene(kind, options, chance, self.load_began)

    async def find_unhealthy(self) -> list[str]:
        return self._find_unhealthy(len(self.records))

    async def save_diagnostics(self) -> None:
        self.diagnostics += 1


async def test_engine_records_a_fault_of_each_kind() -> None:
    run = FakeRun("works")
    assert await run.inject_faults() == []
    assert sorted(record.kind for record in run.records) == ["fake", "fake 2"]
    for record in run.records:
        assert record.problems() == []
        assert (record.targets, record.options) == (["b-0"], {"behaviour": "works"})
        assert record.recovery_seconds is not None
    assert "1 of 1 proofs hold" in run.said[0]


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("proves nothing", "proved nothing"),
        ("no effect", "was not proved: the state: expected T, seen R"),
        ("error", "ValueError('no such pod')"),
        ("hangs", "not over within 0.05 s"),
    ],
)
async def test_engine_reports_faults_without_proof_or_end(behaviour: str, problem: str) -> None:
    run = FakeRun(behaviour)
    await run.inject_faults()
    for record in run.records:
        (finding,) = record.problems()
        assert problem in finding
    assert problem in run.said[0]


async def test_engine_stops_after_a_fault_that_the_cluster_does_not_survive() -> None:
    healthy = iter((True,))  # before the first fault only
    run = FakeRun("works", lambda _: [] if next(healthy, False) else ["2 of 3 pods"])
    assert await run.inject_faults() == []
    (record,) = run.records
    assert (record.healthy, record.recovery_seconds, run.diagnostics) == (None, None, 1)
    assert record.problems() == [f"{record.kind} at {record.began:g} s: not healthy in time: 2 of 3 pods"]
    assert "not healthy again" in run.said[0]


async def test_engine_injects_nothing_into_an_unhealthy_cluster() -> None:
    run = FakeRun("works", lambda _: ["2 of 3 pods"])
    assert await run.inject_faults() == ["not healthy before any fault: 2 of 3 pods"]
    assert run.records == []


async def test_engine_ends_with_the_load() -> None:
    with pytest.raises(LoadError):
        await FakeRun("load ends").inject_faults()
