"""Rolling restarts and changes of the number of brokers: a restart continues under load after the faults have ended,
and must finish."""

from __future__ import annotations

from dataclasses import replace

import pytest
from migratory_simulation.external_checker import Violation
from migratory_simulation.options import Options, draw_options
from migratory_simulation.plans import Grow, Plan, RollingRestart, Shrink
from migratory_simulation.process import Process
from migratory_simulation.world import World, run_seed


@pytest.fixture
def options() -> Options:
    """Return options with a single fault: a rolling restart, which begins just before the world heals."""
    drawn = draw_options(1, "short")
    plan = Plan(True, ((drawn.faults_end - 0.05, RollingRestart(0.6, 0.1)),))
    return replace(drawn, plan=plan, on_history_loss="reset")


def test_rolling_restart_restarts_every_broker_and_ends(options: Options) -> None:
    report = run_seed(1, options=options)
    assert report.violation == ""
    assert report.coverage["brokers rolled"] == len(options.brokers)
    assert report.coverage["rollouts finished"] == 1
    assert report.coverage["rollouts abandoned"] == 0


def test_publishers_continue_during_a_rolling_restart(options: Options) -> None:
    without = run_seed(1, options=replace(options, plan=Plan(True, ())))
    assert run_seed(1, options=options).coverage["published"] > without.coverage["published"] + 10


def test_endless_rolling_restart_is_a_violation(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rolling restart that waits for ever, because brokers never drain here and no list may lose a member, is a
    violation of invariant 7."""
    world = World(options)
    monkeypatch.setattr(Process, "drain", lambda process, period: None)
    monkeypatch.setattr(world.internal, "may_lose", lambda process, drains=True: False)
    with pytest.raises(Violation, match="a rolling restart does not end") as violation:
        world.run()
    assert violation.value.invariant == 7


def test_rolling_restart_among_faults_is_abandoned_after_a_while(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("migratory_simulation.rollouts.PATIENCE", 0.0)
    fault = RollingRestart(0.6, 0.1)
    early = replace(options, plan=Plan(True, ((0.0, fault),)))  # no broker is ready yet
    report = run_seed(1, options=early)
    assert report.violation == ""
    assert (report.coverage["rollouts abandoned"], report.coverage["brokers rolled"]) == (1, 0)


@pytest.mark.parametrize(("leaves", "removed"), [("broker-0", 1), ("broker-1", 0)])
def test_configured_broker_keeps_accepting_clients(options: Options, leaves: str, removed: int) -> None:
    """A broker with a configured weight is not removed, because a disconnected client may know only its address; a
    broker with weight 0 is removed."""
    weights = (0, 100, *(0 for _ in options.brokers[2:]))
    begin = options.faults_end - 0.2
    plan = Plan(True, ((begin, Grow()), (begin + 0.1, Shrink(leaves, 0.6))))
    report = run_seed(1, options=replace(options, weights=weights, plan=plan))
    assert report.violation == ""
    assert (report.coverage["fault broker added"], report.coverage["fault broker removed"]) == (1, removed)
