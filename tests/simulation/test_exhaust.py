"""The exhaustive search is complete within its bounds, recognises equal states, and detects planted faults."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from migratory_simulation import exhaust, planted
from migratory_simulation.exhaust import Bounds, Fingerprints, Search, search
from migratory_simulation.external_checker import Violation
from migratory_simulation.plans import STRIKES
from migratory_simulation.untimed import Choice, UntimedCluster


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return planted.run_command("exhaust", *arguments, timeout=300)


def begun(publications: int = 2) -> UntimedCluster:
    """Return a small cluster whose publications have just been sent."""
    small = UntimedCluster(3, 2, publications, restart=True)
    go_on(small, lambda: small.ready and not small.choices())
    small.begin()
    return small


def go_on(small: UntimedCluster, finished: Callable[[], bool]) -> None:
    """Run the cluster until `finished`, in the order in which messages were sent."""
    while not finished():
        if choices := small.choices():
            small.take(choices[0])
        else:
            small.advance()
            small.check_time()


def until(small: UntimedCluster, both: tuple[str, str]) -> tuple[Choice, Choice]:
    """Run the cluster until two events of these kinds are in flight at different brokers. Return both."""
    for _ in range(200):
        found = [next((choice for choice in small.choices() if choice[0] == kind), None) for kind in both]
        one, other = found
        if one is not None and other is not None and one != other and one[-1] != other[-1]:
            return one, other
        small.take(small.choices()[0])
    raise AssertionError(f"{both} are never under way together")


def test_search_survives_one_crash_at_every_step() -> None:
    found, decisions, violation = search(Bounds(publications=1, kinds=("crash", "crash lost")))
    assert (decisions, violation) == (None, "")
    assert not found.todo
    assert len(found.visited) > 200
    assert found.did["crash"] == found.did["crash lost"] > 10


def test_search_ends_when_a_history_is_lost() -> None:
    """Two of three brokers, the coordinator among them, crash after all publications were answered. A new, empty
    history begins."""
    small = UntimedCluster(3, 2, 1, restart=True, safe=False)
    go_on(small, lambda: small.ready and not small.choices())
    small.begin()
    go_on(small, lambda: small.done)
    record = small.internal.latest[0]
    other = next(node.name for node in small.running() if node.name != record.owner[0])
    for name in (record.owner[0], other):
        small.crash(name, lost=True)
    go_on(small, lambda: small.done)
    assert small.internal.latest[0].first > record.first
    assert not any(node.logic.groups[0].replica.topics for node in small.running())


def test_search_tries_every_order_within_the_bound() -> None:
    one, decisions, _ = search(Bounds(publications=1, faults=0, deviations=1))
    two, more, _ = search(Bounds(publications=1, faults=0, deviations=2))
    assert (decisions, more) == (None, None)
    assert (one.todo, two.todo) == ([], [])
    assert 1 < one.runs < two.runs
    assert len(one.visited) < len(two.visited)


def test_search_reports_remaining_runs_when_time_runs_out() -> None:
    found, decisions, _ = search(Bounds(), budget=0.0)
    assert decisions is None
    assert (found.todo, found.runs) == ([{}], 0)
    done = command("--budget", "0")
    assert done.returncode == 4
    assert "1 runs not tried" in done.stdout


def test_equivalent_orders_reach_the_same_state() -> None:
    first, second = begun(), begun()
    one, other = until(first, ("link", "publish"))
    assert until(second, ("link", "publish")) == (one, other)
    first.take(one)
    first.take(other)
    second.take(other)
    second.take(one)
    assert first.order > begun().order
    for small in (first, second):
        while choices := small.choices():
            small.take(choices[0])
    assert first.waiting == []  # both publications were acknowledged on the way
    assert Fingerprints().of(first) == Fingerprints().of(second)


def test_fingerprint_changes_with_every_part_of_the_state() -> None:
    """Each of these changes alone gives the state another fingerprint."""
    still = Fingerprints().of(begun())
    assert Fingerprints().of(begun()) == still
    taken = begun()
    taken.take(taken.choices()[0])
    crashed = begun()
    crashed.crash("b0", lost=False)
    expired = begun()
    expired.expire("b1")
    later = begun()
    later.now += 0.1
    promised = begun()
    node = promised.node("b0")
    assert node is not None
    node.logic.groups[0].replica.promised += 1
    fingerprints = {still, *(Fingerprints().of(small) for small in (taken, crashed, expired, later, promised))}
    assert len(fingerprints) == 6


def test_endless_run_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaust, "LIMIT", 3)
    with pytest.raises(Violation, match="no end after 3 steps"):
        Search(Bounds(faults=0)).follow({})


@pytest.mark.parametrize("kind", STRIKES)
def test_search_injects_every_kind_of_fault(kind: str) -> None:
    """The search injects faults from the start on, because transactions are in flight only while the cluster starts."""
    bounds = Bounds(publications=1, kinds=(kind,), from_start=True)
    found = Search(bounds)
    while found.todo and not found.did[kind]:
        found.follow(found.todo.pop())
    assert found.did[kind] == 1


@pytest.mark.parametrize(
    ("name", "invariant", "more"),
    [
        ("no publisher table after takeover", 4, ()),
        ("coordinator delivers before a confirmation", 5, ("--faults", "0")),
    ],
)
def test_search_detects_a_planted_fault(name: str, invariant: int, more: tuple[str, ...]) -> None:
    done = command("--planted", name, "--budget", "120", *more)
    assert done.returncode == 1, done.stderr
    assert f"VIOLATION invariant {invariant}" in done.stdout
    assert "decisions: {" in done.stdout  # the decisions that led there, and the trace
    assert re.search(r"\*\* +'crash|PublishRequest", done.stdout)


def test_invalid_bounds_are_reported() -> None:
    done = command("--brokers", "2")
    assert done.returncode == 2
    assert "2 copies need 3 brokers or more, there are 2" in done.stderr
