"""Schedules and the condition SLAMet: one report per slot, the newest of missed slots, one report at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from migratory_operator.names import Object
from migratory_operator.reports.run import SLOT_ANNOTATION
from migratory_operator.reports.schedule import decide_schedule, newest_slot
from migratory_operator.reports.sla_condition import sla_status
from migratory_resources.cluster.kubernetes import KubernetesSlaSpec
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import NOW, cluster, report

SPEC: Object = {"sla": {"prometheus": {"url": "http://p"}, "schedule": "*/10 * * * *", "historyLimit": 2}}
LAST: Object = {"lastSlot": "2026-01-02T02:50:00Z"}


def sla(spec: Object = SPEC) -> KubernetesSlaSpec:
    return read_cluster(cluster(spec)).spec.sla


def scheduled_report(slot: str, phase: str = "Succeeded", owner: str = "uid-of-quotes", **status: Any) -> Object:
    metadata = {"annotations": {SLOT_ANNOTATION: slot}, "ownerReferences": [{"uid": owner}], "creationTimestamp": slot}
    return report(f"at-{slot}", metadata=metadata, status={"phase": phase, **status}, end=slot)


def decision(status: Object, *reports: Object, now: datetime = NOW, spec: Object = SPEC) -> Any:
    return decide_schedule({**cluster(spec), "status": status}, sla(spec), reports, now)


def test_a_new_schedule_has_missed_no_slot() -> None:
    result = decision({})
    assert result.create is None
    assert result.slot == "2026-01-02T03:04:05Z"


def test_a_slot_gets_one_report_with_a_name_from_it() -> None:
    result = decision(LAST)
    assert result.create["metadata"]["name"] == "quotes-202601020300"
    assert result.create["spec"] == {"cluster": "quotes", "end": "2026-01-02T03:00:00Z"}
    assert result.create["metadata"]["ownerReferences"][0]["kind"] == "MigratoryCluster"
    assert result.slot == "2026-01-02T03:00:00Z"
    assert decision({"lastSlot": result.slot}).create is None
    # Created, and the operator died before it recorded that.
    again = decision(LAST, scheduled_report("2026-01-02T03:00:00Z", "Running"))
    assert again.create is None
    assert again.slot == "2026-01-02T03:00:00Z"


def test_only_the_newest_missed_slot_gets_a_report() -> None:
    result = decision({"lastSlot": "2025-12-01T00:00:00Z"})
    assert result.create["metadata"]["name"] == "quotes-202601020300"


def test_a_slot_waits_while_a_report_is_in_progress() -> None:
    result = decision(LAST, scheduled_report("2026-01-02T02:50:00Z", "Running"))
    assert (result.create, result.slot) == (None, LAST["lastSlot"])
    assert decision(LAST, scheduled_report("2026-01-02T02:50:00Z", "Failed")).create is not None


def test_only_old_scheduled_reports_that_ended_are_deleted() -> None:
    reports = [scheduled_report(f"2026-01-02T0{hour}:00:00Z") for hour in (1, 0, 2)]
    running = scheduled_report("2026-01-01T00:00:00Z", "Running")
    by_hand = report("by-hand", status={"phase": "Succeeded"})
    others = scheduled_report("2025-01-02T00:00:00Z", owner="another")
    result = decision(LAST, *reports, running, by_hand, others)
    assert [entry["metadata"]["name"] for entry in result.delete] == ["at-2026-01-02T00:00:00Z"]
    without = decision(LAST, *reports, spec={"sla": {"historyLimit": 2}})
    assert len(without.delete) == 1
    assert (without.create, without.slot) == (None, None)


@pytest.mark.parametrize(
    ("cron", "zone", "now", "slot"),
    [
        ("*/30 * * * *", "UTC", "2026-01-02T03:30:00+00:00", "2026-01-02T03:30:00+00:00"),
        ("*/30 * * * *", "UTC", "2026-01-02T03:29:59+00:00", "2026-01-02T03:00:00+00:00"),
        ("0 9 * * MON", "Europe/Bucharest", "2026-07-07T00:00:00+00:00", "2026-07-06T06:00:00+00:00"),
        ("0 9 * * MON", "Europe/Bucharest", "2026-01-06T00:00:00+00:00", "2026-01-05T07:00:00+00:00"),
    ],
)
def test_slots_follow_the_time_zone(cron: str, zone: str, now: str, slot: str) -> None:
    assert newest_slot(cron, zone, datetime.fromisoformat(now)) == datetime.fromisoformat(slot)


def test_every_slot_of_a_day_with_25_hours_is_distinct() -> None:
    at, names = datetime(2026, 10, 24, 21, 30, tzinfo=UTC), set()
    for _ in range(25):
        result = newest_slot("0 * * * *", "Europe/Bucharest", at)
        assert result is not None
        names.add(result)
        at += timedelta(hours=1)
    assert len(names) == 25


def judged(verdict: str, at: str = "2026-01-02T03:00:00Z", **spec: Any) -> Object:
    conditions = [{"type": "Complete", "status": "True", "reason": "X", "message": "said"}]
    result = scheduled_report(at, verdict=verdict, conditions=conditions)
    return {**result, "spec": {**result["spec"], **spec}}


def status_and_events(*reports: Object, before: str | None = None, spec: Object = SPEC) -> tuple[Object, list[str]]:
    resource = cluster(spec)
    if before is not None:
        old = {"type": "SLAMet", "status": before, "lastTransitionTime": "then"}
        resource["status"] = {"conditions": [old]}
    part, events = sla_status(resource, sla(spec), reports, NOW)
    return part, [event.reason for event in events]


@pytest.mark.parametrize(
    ("verdict", "truth", "reason"),
    [("met", "True", "ObjectivesMet"), ("missed", "False", "ObjectivesMissed"),
     ("insufficient", "Unknown", "InsufficientData")],
)  # fmt: skip
def test_the_newest_report_decides_the_condition(verdict: str, truth: str, reason: str) -> None:
    old = judged("met" if verdict != "met" else "missed", "2026-01-02T02:00:00Z")
    part, _ = status_and_events(judged(verdict), old)
    (condition,) = part["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("SLAMet", truth, reason)
    assert "at-2026-01-02T03:00:00Z: said" in condition["message"]
    assert part["lastReport"] == {
        "name": "at-2026-01-02T03:00:00Z", "verdict": verdict, "time": "2026-01-02T03:00:00Z"
    }  # fmt: skip


def test_a_miss_and_a_recovery_post_one_event_each() -> None:
    assert status_and_events(judged("missed"))[1] == ["SLAMissed"]
    assert status_and_events(judged("missed"), before="True")[1] == ["SLAMissed"]
    assert status_and_events(judged("missed"), before="False")[1] == []
    assert status_and_events(judged("met"), before="False")[1] == ["SLARecovered"]
    assert status_and_events(judged("met"), before="True")[1] == []
    assert status_and_events(judged("met"))[1] == []
    # The report between had no verdict.
    missed = judged("missed", "2026-01-02T01:00:00Z")
    between = judged("insufficient", "2026-01-02T02:00:00Z")
    assert status_and_events(missed, between, judged("met"), before="Unknown")[1] == ["SLARecovered"]


def test_a_failed_report_sets_unknown_and_keeps_the_transition_time() -> None:
    part, events = status_and_events(scheduled_report("2026-01-02T03:00:00Z", "Failed"), before="Unknown")
    (condition,) = part["conditions"]
    assert (condition["status"], condition["reason"]) == ("Unknown", "ReportFailed")
    assert condition["lastTransitionTime"] == "then"
    assert part["lastReport"]["verdict"] == "failed"
    assert events == []


def test_edited_objectives_are_not_judged_by_an_earlier_report() -> None:
    first = sla_status(cluster(SPEC), sla(SPEC), [judged("met")], NOW)[0]
    assert first["conditions"][0]["observedGeneration"] == 1
    edited = {**cluster(SPEC, generation=2), "status": first}
    assert sla_status(edited, sla(SPEC), [judged("met")], NOW)[0] == first
    later = sla_status(edited, sla(SPEC), [judged("met"), judged("met", "2026-01-02T03:01:00Z")], NOW)[0]
    assert later["conditions"][0]["observedGeneration"] == 2


def test_a_report_made_by_hand_does_not_count() -> None:
    by_hand = report("by-hand", end="2026-01-02T03:00:01Z", status={"phase": "Failed"})
    of_another = judged("missed", "2026-01-02T03:00:01Z")
    of_another["metadata"]["ownerReferences"][0]["uid"] = "another"
    part, events = status_and_events(judged("met", "2026-01-02T02:00:00Z"), by_hand, of_another, before="True")
    assert [entry["reason"] for entry in part["conditions"]] == ["ObjectivesMet"]
    assert (part["lastReport"]["name"], events) == ("at-2026-01-02T02:00:00Z", [])
    assert status_and_events(by_hand, spec={"sla": {}}) == ({}, [])


def test_reports_with_own_objectives_or_in_progress_do_not_count() -> None:
    own = judged("missed", objectives=[{"name": "a"}])
    part, events = status_and_events(own, scheduled_report("2026-01-02T03:00:00Z", "Running"))
    assert [entry["reason"] for entry in part["conditions"]] == ["NoReport"]
    assert "lastReport" not in part
    assert events == []
    assert status_and_events(spec={"sla": {}}) == ({}, [])
