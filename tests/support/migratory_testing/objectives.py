"""Objectives of every kind, for what is made of objectives: rules, alerts, queries. Slices are short, so that a run
of a minute has some."""

from __future__ import annotations

from migratory_resources.objectives import DEFAULT_OBJECTIVES, Objective

EVERY_KIND = [
    *DEFAULT_OBJECTIVES,
    Objective.model_validate({"name": "served", "type": "availability", "target": "99.9"}),
    Objective.model_validate(
        {"name": "serving", "type": "availability", "target": "99", "slices": {"length": "10s", "share": "99.5"}}
    ),
    Objective.model_validate({"name": "again", "type": "publish", "threshold": "5s", "target": "99"}),
    Objective.model_validate(
        {
            "name": "far",
            "type": "latency",
            "threshold": "1s",
            "target": "99",
            "clock": "any",
            "window": {"rolling": "7d"},
        }
    ),
    Objective.model_validate(
        {
            "name": "steady",
            "type": "latency",
            "target": "99.5",
            "slices": {"length": "10s", "percentile": "99", "threshold": "250ms"},
        }
    ),
]
