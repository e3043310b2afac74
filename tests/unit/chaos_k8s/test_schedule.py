"""What seeds draw: every kind once and first, only what can be struck here, and what is left out is said."""

from __future__ import annotations

import itertools

import pytest
from migratory_chaos_k8s.faults import Fault
from migratory_chaos_k8s.schedule import KINDS, WHY, Need, NoSuchKind, Schedule, parse

ALL: frozenset[Need] = frozenset(WHY)


def drawn(
    seed: int = 5, kinds: list[str] | None = None, offered: frozenset[Need] = ALL, count: int = 200
) -> list[tuple[str, Fault]]:
    return list(itertools.islice(Schedule(kinds or list(KINDS), seed, offered, endless=True), count))


def test_a_seed_draws_the_same_faults_again_and_another_seed_others() -> None:
    assert drawn(5) == drawn(5)
    assert drawn(5) != drawn(6)


def test_the_first_faults_are_one_of_each_kind_and_later_every_kind_comes_again() -> None:
    names = [name for name, _ in drawn(count=len(KINDS) + 400)]
    assert sorted(names[: len(KINDS)]) == sorted(KINDS)
    assert set(names[len(KINDS) :]) == set(KINDS)


def test_without_an_end_in_sight_each_kind_comes_once() -> None:
    schedule = Schedule(["kill", "scale", "evict"], 3, ALL, endless=False)
    assert sorted(name for name, _ in schedule) == ["evict", "kill", "scale"]
    assert schedule.left_out() == []


@pytest.mark.parametrize("need", sorted(WHY))
def test_what_cannot_be_struck_is_left_out_and_said(need: Need) -> None:
    offered = ALL - {need}
    missing = {name for name, kind in KINDS.items() if kind.needs == need}
    assert missing, "no kind needs it"
    assert not missing & {name for name, _ in drawn(offered=offered, count=500)}
    said = Schedule(list(KINDS), 1, offered, endless=True).left_out()
    assert {line.partition(":")[0] for line in said} == missing
    assert all(line.endswith(WHY[need]) for line in said)


def test_where_nothing_is_possible_the_run_ends_at_once() -> None:
    assert list(Schedule(["partition"], 1, frozenset(), endless=True)) == []


def test_faults_are_named_by_kind_and_a_name_that_is_none_is_refused() -> None:
    assert parse("kill, scale,kill") == ["kill", "scale"]
    assert parse("") == list(KINDS)
    with pytest.raises(NoSuchKind, match=r"no such fault: kil, x; there are kill, kill-forced"):
        parse("kil,kill,x")


def test_every_fault_is_data() -> None:
    for name, kind in KINDS.items():
        (found,) = {str(fault.as_data()) for _, fault in drawn(3, [name], count=1)}
        assert found.startswith("{"), kind
