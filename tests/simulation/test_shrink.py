"""A failing schedule is minimised, and a failing run reports the command that repeats the minimal one."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from migratory_simulation.options import draw_options
from migratory_simulation.planted import run_command
from migratory_simulation.shrink import minimise, only, shrink


@pytest.mark.parametrize("culprits", [(), (3,), (0, 9), (2, 5, 6)])
def test_minimise_removes_what_is_not_needed(culprits: tuple[int, ...]) -> None:
    tried = []

    def fails(items: tuple[int, ...]) -> bool:
        tried.append(items)
        return set(culprits) <= set(items)

    assert minimise(range(10), fails) == culprits
    assert len(tried) < 60


def test_minimise_leaves_nothing_removable() -> None:
    """When several subsets of the items make the run fail, the minimal subset still fails, and without any one of
    its items it does not."""
    for number in range(30):
        random = Random(number)
        reasons = [set(random.sample(range(12), random.randint(1, 4))) for _ in range(3)]

        def fails(items: tuple[int, ...], reasons: list[set[int]] = reasons) -> bool:
            return any(reason <= set(items) for reason in reasons)

        minimal = minimise(range(12), fails)
        assert fails(minimal)
        assert not any(fails(tuple(item for item in minimal if item != gone)) for gone in minimal)


def test_minimise_is_bounded() -> None:
    tried = []

    def fails(items: tuple[int, ...]) -> bool:
        tried.append(items)
        return set(range(0, 40, 3)) <= set(items)

    assert set(minimise(range(40), fails, tries=10)) >= set(range(0, 40, 3))
    assert len(tried) <= 10


def test_only_keeps_the_named_faults() -> None:
    options = draw_options(3, "short")
    faults = options.plan.faults
    assert only(options, (2, 0)).plan.faults == (faults[0], faults[2])
    assert only(options, ()).plan.faults == ()
    with pytest.raises(ValueError, match=rf"draws {len(faults)} faults, numbered from 0; there is no fault 99"):
        only(options, (1, 99))


def test_passing_run_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrink(only(draw_options(3, "short"), ()))


def test_shrunk_schedule_of_a_planted_fault_still_fails() -> None:
    """A planted fault's failing run is shrunk to at most two faults, and the command that it prints fails with the
    same invariant again."""
    name = "sequence numbers restart at takeover"
    done = run_command("run", "--planted", name, "--profile", "short", "--seeds", "60", "--jobs", "1")
    assert done.returncode == 1, done.stderr
    match = re.search(
        r"(\d+) of its (\d+) faults are enough \((\d+) runs tried\): (invariant \d|a core failed)", done.stdout
    )
    assert match is not None, done.stdout
    remaining, drawn, tries = map(int, match.groups()[:3])
    assert remaining <= 2 < drawn
    assert tries < 60
    again = re.search(
        r"rerun that: .* migratory_simulation run (--seed \d+ --profile short --faults [\d,none]+) ", done.stdout
    )
    assert again is not None, done.stdout
    assert len(again[1].split()[-1].split(",")) == max(remaining, 1)
    once_more = run_command("run", *again[1].split(), "--planted", name)
    assert once_more.returncode == 1
    assert f"\n{match[4]}: " in once_more.stdout
    assert "are enough" not in once_more.stdout  # it is small already


def test_options_of_one_seed_need_a_seed(tmp_path: Path) -> None:
    for words in (("--faults", "1"), ("--trace", str(tmp_path / "trace.txt"))):
        done = run_command("run", "--seeds", "1", *words)
        assert done.returncode == 2
        assert "need --seed" in done.stderr
    done = run_command("run", "--seed", "3", "--profile", "short", "--faults", "1,99")
    assert done.returncode == 2
    assert "there is no fault 99" in done.stderr
    assert "use 'none' or numbers" in run_command("run", "--seed", "3", "--faults", "x").stderr
