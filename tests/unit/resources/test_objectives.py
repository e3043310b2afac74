"""Objectives: fields that fit together, and errors for objectives that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_resources.objectives import ContradictoryObjectives, Objective, check_objectives
from pydantic import ValidationError

FAST: dict[str, Any] = {"name": "fast", "type": "latency", "threshold": "250ms", "target": "99"}
OPEN: dict[str, Any] = {"name": "open", "type": "availability", "target": "99.5"}
STEADY: dict[str, Any] = {"length": "1m", "percentile": "99", "threshold": "250ms"}


def test_windows_and_clocks_are_read() -> None:
    month = Objective.model_validate({**FAST, "window": {"calendar": "month", "zone": "Europe/Bucharest"}})
    assert month.window is not None
    assert (month.window.calendar, month.window.zone) == ("month", "Europe/Bucharest")
    assert Objective.model_validate({**OPEN, "window": {"rolling": "30d"}}).window is not None
    assert Objective.model_validate(FAST).clocks == ("same",)
    assert Objective.model_validate({**FAST, "clock": "any"}).clocks == ("same", "estimated")


def test_slices_depend_on_the_type() -> None:
    assert Objective.model_validate({**OPEN, "slices": {"length": "15s", "share": "100"}}).thresholds == ()
    steady = Objective.model_validate({"name": "s", "type": "latency", "target": "99", "slices": STEADY})
    assert steady.thresholds == (0.25,)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({**FAST, "window": {}}, "either rolling or calendar"),
        ({**FAST, "window": {"rolling": "1h", "calendar": "day"}}, "either rolling or calendar"),
        ({**FAST, "window": {"rolling": "1h", "zone": "UTC"}}, "a zone only with calendar"),
        ({**FAST, "window": {"calendar": "day", "zone": "Europe/Bukarest"}}, "there is no time zone"),
        ({**FAST, "window": {"calendar": "day", "zone": "../etc/passwd"}}, "a time zone of the tz database"),
        ({**FAST, "window": {"calendar": "fortnight"}}, "day, week, month, quarter, year"),
        ({**OPEN, "clock": "any"}, "a clock only for type latency"),
        ({**OPEN, "slices": STEADY}, "slices with a share, and neither percentile"),
        (
            {"name": "s", "type": "latency", "target": "99", "slices": {"length": "1m", "share": "99"}},
            "slices with a percentile and a threshold",
        ),
        (
            {**OPEN, "slices": {"length": "1h", "share": "99"}, "window": {"rolling": "30m"}},
            "slices no longer than the window",
        ),
    ],
)
def test_fields_that_do_not_fit_the_type_are_refused(objective: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        Objective.model_validate(objective)


def test_two_targets_for_the_same_events_are_refused() -> None:
    stricter = {**FAST, "name": "faster", "target": "99.9"}
    with pytest.raises(
        ContradictoryObjectives, match=r"objective 'faster': target '99.9' is not allowed.*'fast' for the same events"
    ):
        check_objectives([Objective.model_validate(FAST), Objective.model_validate(stricter)])
    with pytest.raises(ContradictoryObjectives, match="a name that no other objective has"):
        check_objectives([Objective.model_validate(FAST), Objective.model_validate({**OPEN, "name": "fast"})])


def test_different_events_may_have_different_targets() -> None:
    others: list[dict[str, Any]] = [{"threshold": "100ms"}, {"clock": "any"}, {"window": {"rolling": "1h"}}]
    made = [{**FAST, **change, "name": f"o{number}", "target": "90"} for number, change in enumerate(others)]
    check_objectives([Objective.model_validate(each) for each in (FAST, *made)])
