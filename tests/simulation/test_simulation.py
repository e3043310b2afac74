"""A few seeds in full, and the options that a seed draws. `make sim` runs many seeds."""

from __future__ import annotations

import pytest
from migratory_simulation import plans
from migratory_simulation.coverage import REQUIRED, Coverage
from migratory_simulation.options import Profile, draw_options, profile_of
from migratory_simulation.world import run_seed


@pytest.mark.parametrize("profile", ["long", "short"])
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_invariants_hold_for_a_few_seeds(seed: int, profile: Profile) -> None:
    report = run_seed(seed, options=draw_options(seed, profile))
    assert report.violation == ""
    assert report.coverage["acknowledged"] > 0
    assert report.coverage["delivered"] > 0


@pytest.mark.parametrize("profile", ["long", "short"])
def test_seeds_draw_every_kind_of_fault(profile: Profile) -> None:
    drawn = [draw_options(seed, profile) for seed in range(1, 200)]
    kinds = {type(fault) for options in drawn for _, fault in options.plan.faults}
    drawn_apart = {plans.Hang, plans.ZooKeeperEmptied, plans.ZooKeeperRolledBack}
    only_short = {plans.LeaveBehind}
    assert {*plans.ALL, *drawn_apart, *only_short} == set(plans.NAMES)
    assert kinds == set(plans.NAMES) - (only_short if profile == "long" else set())
    assert len({options.plan.faults for options in drawn}) > 190
    assert {options.profile for options in drawn} == {profile}
    safe = [options for options in drawn if options.plan.safe]
    assert 0.5 < len(safe) / len(drawn) < 0.9
    assert not any(type(fault) in plans.WILD_ONLY for options in safe for _, fault in options.plan.faults)
    assert {options.on_history_loss for options in safe} == {"reset"}
    assert {options.on_history_loss for options in drawn} == {"reset", "halt"}
    assert {len(options.brokers) for options in drawn} >= {3, 4, 5}


def test_mixed_profile_is_mostly_short() -> None:
    drawn = [profile_of(seed, "mixed") for seed in range(1, 1001)]
    assert 0 < drawn.count("long") < 100


def test_zookeeper_loses_its_data_in_each_plan_of_the_profile_losses() -> None:
    drawn = [draw_options(seed, "losses") for seed in range(1, 60)]
    assert all(
        options.plan.loses_data or {type(fault) for _, fault in options.plan.faults} & {plans.Shrink, plans.Grow}
        for options in drawn
    )
    assert {options.profile for options in drawn} == {"short", "long"}


def test_counters_that_are_zero_are_reported() -> None:
    coverage = Coverage(dict.fromkeys(REQUIRED, 1))
    assert coverage.missing() == []
    coverage["takeovers"] = 0
    assert coverage.missing() == ["takeovers"]
    assert "takeovers" in coverage.table(1)


@pytest.mark.parametrize(
    ("seed", "profile"),
    [
        *((seed, "long") for seed in (3200, 9450, 106450)),
        *((seed, "losses") for seed in (1289, 5209, 7121, 8764, 10843)),
        *((seed, "short") for seed in (3847, 4992, 8303, 10515, 11605, 12509)),
        *((seed, "short") for seed in (5372, 12992, 13836, 21424, 25620, 25993, 31886, 43072, 46654, 47040, 86360)),
    ],
)
def test_seed_that_failed_before_passes(seed: int, profile: Profile) -> None:
    """Each seed that once failed (docs/contributing/simulation.md, "Faults found") now passes and has acknowledged
    publications."""
    report = run_seed(seed, options=draw_options(seed, profile, more=False))
    assert report.violation == ""
    assert report.coverage["acknowledged"] > 0


def test_rollback_of_an_activation_that_only_the_owner_told_is_noticed() -> None:
    """Seed 4604: ZooKeeper goes back to before the first activation, whose record only the coordinator had read, and
    that one hangs."""
    report = run_seed(4604, options=draw_options(4604, "short"))
    assert report.violation == ""


def test_a_refused_publication_creates_no_topic() -> None:
    """Seed 2670: the cache is full of publications that wait when one for a removed topic comes."""
    report = run_seed(2670, options=draw_options(2670, "short"))
    assert report.violation == ""
    assert report.coverage["topics removed"] > 0


def test_replaced_processes_may_continue_a_history_without_a_record() -> None:
    """Seed 702: ZooKeeper is emptied and all brokers are replaced within a second. A replaced process acknowledges
    until it fences itself, though a new history has begun (docs/concepts/guarantees.md, Not promised)."""
    report = run_seed(702, options=draw_options(702, "short"))
    assert report.violation == ""
    assert report.coverage["unrestorable records"] > 0
