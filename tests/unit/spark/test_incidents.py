"""Scrape coverage, and incidents that are derived from gaps of exporters and increases of counters, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest
from migratory_spark.aggregate.coverage import ScrapedExporter, ScrapedExporters
from migratory_spark.aggregate.incidents import (
    MAX_STEPS,
    DetectedIncident,
    Episode,
    IncidentStep,
    broker_steps,
    episode_steps,
    find_incidents,
)
from migratory_spark.aggregate.time_grid import intersection
from migratory_spark.metrics import PUBLISH_ERRORS, TAKEOVERS, Role

END = 100_000
SECOND = 1000


def exporter(name: str, role: Role = "clients", first: int = 0, last: int = END, **other: object) -> ScrapedExporter:
    fields: dict[str, object] = {"scrapes": 100, "interval": 1000.0, "longest": 1000, "gaps": (), "restarts": ()}
    return ScrapedExporter(role, name, first, last, **{**fields, **other})  # type: ignore[arg-type]


def broker(name: str, **other: object) -> ScrapedExporter:
    return exporter(name, "brokers", **other)  # type: ignore[arg-type]


class TestCoverage:
    def test_gap_of_one_exporter_is_covered_by_another(self) -> None:
        exporters = ScrapedExporters((exporter("a", gaps=((20_000, 40_000),)), exporter("b", gaps=((60_000, 70_000),))))
        assert exporters.coverage(0, END, "clients").share == 1.0

    def test_time_in_which_no_exporter_was_scraped_is_not_covered(self) -> None:
        exporters = ScrapedExporters((exporter("a", gaps=((20_000, 40_000),)), exporter("b", gaps=((30_000, 50_000),))))
        covered = exporters.coverage(0, END, "clients")
        assert covered.share == pytest.approx(0.9)
        assert covered.longest == 10_000

    def test_time_before_the_first_and_after_the_last_scrape_is_not_covered(self) -> None:
        covered = ScrapedExporters((exporter("a", first=10_000, last=80_000),)).coverage(0, END, "clients")
        assert covered.share == pytest.approx(0.7)
        assert covered.longest == 20_000

    def test_one_missed_scrape_is_not_a_gap(self) -> None:
        assert ScrapedExporters((exporter("a", first=2000, last=END - 2000),)).coverage(0, END, "clients").share == 1.0

    def test_scrapes_of_other_roles_do_not_count(self) -> None:
        covered = ScrapedExporters((broker("b"),)).coverage(0, END, "clients", "publishers")
        assert (covered.share, covered.scrapes, covered.interval) == (0.0, 0, None)

    def test_an_exporter_of_another_time_does_not_count(self) -> None:
        assert ScrapedExporters((exporter("a", first=0, last=1000),)).coverage(50_000, END, "clients").scrapes == 0

    def test_intersection_is_the_time_in_every_set(self) -> None:
        assert intersection([]) == []
        assert intersection([[(0, 10), (20, 30)], [(5, 25)], [(0, 22)]]) == [(5, 10), (20, 22)]
        assert intersection([[(0, 10)], [(10, 20)]]) == []


class TestSilences:
    def test_broker_that_is_not_scraped_while_others_are_is_silent(self) -> None:
        gap = (40_000, 46_000)
        steps = broker_steps(ScrapedExporters((exporter("w"), broker("b1", gaps=(gap,), restarts=(gap,)))), 0, END)
        assert steps == [
            IncidentStep("silent", "b1", 40_000, 41_000, 46_000),
            IncidentStep("back", "b1", 46_000, 46_000, 46_000),
            IncidentStep("restarted", "b1", 46_000, 46_000, 46_000),
        ]

    def test_gap_of_all_exporters_is_not_a_silent_broker(self) -> None:
        gap = (40_000, 46_000)
        everybody = (exporter("w", gaps=(gap,)), broker("b0", gaps=(gap,)), broker("b1", gaps=(gap,)))
        assert broker_steps(ScrapedExporters(everybody), 0, END) == []

    def test_broker_that_never_returns_is_silent_to_the_end(self) -> None:
        steps = broker_steps(ScrapedExporters((exporter("w"), broker("b1", last=60_000))), 0, END)
        assert steps == [IncidentStep("silent", "b1", 60_000, 61_000, END)]

    def test_restart_without_a_gap_is_detected(self) -> None:
        """It began after the last scrape before, also where one was missed in between."""
        steps = broker_steps(ScrapedExporters((exporter("w"), broker("b1", restarts=((48_000, 50_000),)))), 0, END)
        assert steps == [IncidentStep("restarted", "b1", 48_000, 50_000, 50_000)]

    def test_broker_without_other_exporters_is_not_silent(self) -> None:
        assert broker_steps(ScrapedExporters((broker("b1", last=60_000),)), 0, END) == []


DEATH = [
    IncidentStep("silent", "b1", 40_000, 41_000, 70_000),
    IncidentStep("reconnects", "b1", 41_000, 42_000, 43_000, 500),
    IncidentStep("takeover", "b2", 44_000, 45_000, 45_000, 30),
    IncidentStep("publish_errors", "b1", 41_000, 42_000, 44_000, 7),
]


class TestFind:
    def test_death_with_its_consequences_is_one_incident(self) -> None:
        (incident,) = find_incidents(DEATH, [], max_clients=1500)
        assert (incident.kind, incident.broker, incident.at, incident.seen, incident.until) == (
            "broker died", "b1", 40_000, 41_000, 45_000,
        )  # fmt: skip
        assert len(incident.steps) == 4
        assert not incident.known

    def test_absent_broker_does_not_extend_its_incident(self) -> None:
        later = IncidentStep("takeover", "b3", 64_000, 65_000, 65_000, 2)
        assert [incident.kind for incident in find_incidents([*DEATH, later], [], max_clients=1500)] == [
            "broker died",
            "takeover",
        ]

    def test_known_incident_includes_the_steps_at_its_time(self) -> None:
        known = DetectedIncident("kill broker", "b1", 40_500, 40_500, 44_000)
        (incident,) = find_incidents(DEATH, [known], max_clients=1500)
        assert (incident.kind, incident.at, incident.until, incident.known) == ("kill broker", 40_500, 44_000, True)
        assert len(incident.steps) == 4

    def test_few_reconnects_are_not_an_incident(self) -> None:
        assert find_incidents([IncidentStep("reconnects", "b1", 1000, 2000, 3000, 4)], [], max_clients=10) == []
        assert find_incidents([IncidentStep("reconnects", "b1", 1000, 2000, 3000, 14)], [], max_clients=1500) == []
        (incident,) = find_incidents([IncidentStep("reconnects", "b1", 1000, 2000, 3000, 15)], [], max_clients=1500)
        assert (incident.kind, incident.broker) == ("reconnect wave", "b1")

    def test_failed_publications_alone_are_not_an_incident(self) -> None:
        assert find_incidents([IncidentStep("publish_errors", "b1", 1000, 2000, 3000, 400)], [], max_clients=10) == []

    def test_takeover_by_several_brokers_names_no_broker(self) -> None:
        steps = [IncidentStep("takeover", name, 1000, 2000, 2000, 5) for name in ("b1", "b2")]
        (incident,) = find_incidents(steps, [], max_clients=10)
        assert (incident.kind, incident.broker) == ("takeover", "")

    def test_step_that_ended_before_a_death_is_another_incident(self) -> None:
        start = [IncidentStep("takeover", name, 30_000, 31_000, 33_000, 33) for name in ("b0", "b1")]
        first, second = find_incidents([*start, *DEATH], [], max_clients=1500)
        assert (first.kind, first.at, first.until) == ("takeover", 30_000, 33_000)
        assert (second.kind, second.at, len(second.steps)) == ("broker died", 40_000, 4)

    def test_takeovers_before_the_first_client_are_not_incidents(self) -> None:
        start = IncidentStep("takeover", "b0", 0, 520, 520, 33)
        assert [incident.kind for incident in find_incidents([start], [], max_clients=10)] == ["takeover"]
        assert find_incidents([start], [], max_clients=10, first_client_at=521) == []
        assert find_incidents([start], [], max_clients=10, first_client_at=519) == [], (
            "the last group's, when the first client was there"
        )
        later = IncidentStep("takeover", "b0", 40_000, 40_500, 40_500, 1)
        assert [
            incident.at for incident in find_incidents([start, later], [], max_clients=10, first_client_at=521)
        ] == [40_000]
        # With a death or lost links it is one, whenever it was.
        reconnects = IncidentStep("reconnects", "b0", 100, 520, 520, 9)
        assert [
            incident.kind for incident in find_incidents([start, reconnects], [], max_clients=10, first_client_at=521)
        ] == ["takeover"]
        assert [incident.kind for incident in find_incidents(DEATH, [], max_clients=10, first_client_at=60_000)] == [
            "broker died"
        ]

    def test_background_steps_do_not_join_incidents(self) -> None:
        """A refused publication and a client that loses its link, every 12 s, do not make one incident of two deaths
        that are ten minutes apart. Each incident has only the steps at its time."""
        background = [
            IncidentStep(kind, "b9", at - 1000, at, at, 1)
            for at in range(0, 1_200_000, 12_000)
            for kind in ("publish_errors", "reconnects")
        ]  # fmt: skip
        second = [
            replace(step, broker="b2", at=step.at + 600_000, seen=step.seen + 600_000, until=step.until + 600_000)
            for step in DEATH
        ]
        incidents = find_incidents([*DEATH, *background, *second], [], max_clients=1500)
        assert [(incident.kind, incident.broker, incident.at) for incident in incidents] == [
            ("broker died", "b1", 40_000),
            ("broker died", "b2", 640_000),
        ]
        assert all(incident.until - incident.at <= 20_000 for incident in incidents)
        assert all(len(incident.steps) <= len(DEATH) + 8 for incident in incidents)

    def test_brokers_that_die_one_after_the_other_are_incidents_of_their_own(self) -> None:
        """Each death or restart is an incident with the name of its broker, however close. Lost links belong to their
        broker's incident, takeovers to the latest one before them."""
        steps = [
            *DEATH,
            IncidentStep("silent", "b3", 48_000, 49_000, 80_000),
            IncidentStep("reconnects", "b3", 49_000, 50_000, 50_000, 400),
            IncidentStep("reconnects", "b1", 49_000, 50_000, 50_000, 30),
            IncidentStep("takeover", "b2", 52_000, 53_000, 53_000, 30),
            IncidentStep("restarted", "b4", 55_000, 56_000, 56_000),
        ]
        incidents = find_incidents(steps, [], max_clients=1500)
        assert [(incident.kind, incident.broker) for incident in incidents] == [
            ("broker died", "b1"),
            ("broker died", "b3"),
            ("broker restarted", "b4"),
        ]
        lost = [sum(step.count or 0 for step in incident.steps if step.kind == "reconnects") for incident in incidents]
        assert lost == [530, 400, 0]
        assert [sum(step.kind == "takeover" for step in incident.steps) for incident in incidents] == [1, 1, 0]

    def test_many_single_errors_do_not_hide_what_comes_later(self) -> None:
        errors = [Episode(at, at, at, 1.0) for at in range(0, 60_000_000, 12_000)]
        late = {(TAKEOVERS, "b1"): [Episode(90_000_000, 90_000_000, 90_000_000, 3.0)]}
        steps = episode_steps({(PUBLISH_ERRORS, ""): errors, **late}, 0)
        assert [step.kind for step in steps].count("publish_errors") == MAX_STEPS
        assert steps[-1].kind == "takeover"

    def test_few_lost_links_of_many_brokers_at_once_are_a_wave(self) -> None:
        steps = [IncidentStep("reconnects", f"b{number}", 1000, 2000, 3000, 3) for number in range(4)]
        assert [incident.kind for incident in find_incidents(steps, [], max_clients=100)] == ["reconnect wave"]

    def test_separate_incidents_are_returned_in_order(self) -> None:
        second = [IncidentStep("restarted", "b2", 80_000, 81_000, 81_000)]
        assert [incident.kind for incident in find_incidents([*second, *DEATH], [], max_clients=10)] == [
            "broker died",
            "broker restarted",
        ]
