"""Brokers' metrics pages: sums of samples, and the health of brokers and groups."""

from __future__ import annotations

from collections.abc import Mapping

from migratory_local.metrics.exposition import SeriesTable

Metrics = dict[tuple[str, str], float]
"""(metric, role or "") to the sum of its samples."""


def parse_metrics(broker: str, page: str) -> Metrics:
    table = SeriesTable()
    found: Metrics = {}
    for number, value in zip(*table.read(broker, page, {}), strict=True):
        key = (table.metrics[number], table.labels[number].get("role", ""))
        found[key] = found.get(key, 0.0) + value
    return found


def coordinated_groups(answers: Mapping[str, Metrics | None]) -> dict[str, int]:
    """Return how many topic groups each answering broker coordinates."""
    found = {name: answer for name, answer in answers.items() if answer is not None}
    return {name: int(answer.get(("migratory_groups", "coordinator"), 0)) for name, answer in found.items()}


def sum_metric(answers: Mapping[str, Metrics | None], metric: str) -> float:
    """Return the sum over the brokers that answered."""
    return sum(answer.get((metric, ""), 0.0) for answer in answers.values() if answer is not None)


def find_unhealthy_brokers(answers: Mapping[str, Metrics | None], groups: int) -> list[str]:
    """Return what is wrong: brokers that are silent, fenced or no synced member, and groups without a coordinator."""
    found = []
    for name, answer in answers.items():
        if answer is None:
            found.append(f"{name} does not answer")
            continue
        if answer.get(("migratory_member", "")) != 1 or answer.get(("migratory_fenced", "")) != 0:
            found.append(f"{name} is not a member of every group, or fenced")
        if waiting := answer.get(("migratory_waiting_groups", ""), 0):
            found.append(f"{name}: {waiting:g} groups wait")
    coordinated = sum(coordinated_groups(answers).values())
    if coordinated != groups:
        found.append(f"{coordinated} of {groups} groups have a coordinator")
    return found
