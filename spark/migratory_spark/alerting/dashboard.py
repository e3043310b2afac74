"""The Grafana dashboard: promises, latency, traffic, and the cluster itself, from top to bottom.

Laid out here, so that every panel looks like its neighbours, and kept as a file for who has no Python
(`manifests/monitoring/dashboard.json`).
"""

from __future__ import annotations

import json
from typing import Any

from migratory_spark.alerting.panels import CLUSTER, ROWS, Panel

WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> str:
    """JSON for Grafana 10 and later."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}, "panels": []})
        top += 1
        left = 0
        for panel in row:
            height = 5 if panel.kind == "stat" else 8
            if left + panel.width > WIDTH:
                left = 0
            if left == 0:
                line = top
                top += height
            panels.append(_panel(panel, {"x": left, "y": line, "w": panel.width, "h": height}))
            left = (left + panel.width) % WIDTH
    for number, found in enumerate(panels, 1):
        found["id"] = number
    made = {
        "uid": "migratory",
        "title": "Migratory",
        "description": "Promises, latency, traffic and brokers of a Migratory cluster.",
        "tags": ["migratory"],
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "graphTooltip": 1,
        "annotations": {"list": [_takeover_marks()]},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(made, indent=1) + "\n"


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        custom = {"fillOpacity": 25 if panel.stacked else 5, "showPoints": "never"}
        if panel.stacked:
            custom["stacking"] = {"mode": "normal", "group": "A"}
        options = {
            "tooltip": {"mode": "multi", "sort": "desc"},
            "legend": {"displayMode": "list", "placement": "bottom"},
        }
    elif panel.kind == "heatmap":
        # Buckets are cumulative; Grafana takes neighbours apart by itself where the format says heatmap.
        options = {
            "calculate": False,
            "yAxis": {"unit": panel.unit},
            "color": {"scheme": "Blues", "scale": "exponential"},
        }
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name", "colorMode": "value"}
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": custom}
    if panel.kind == "timeseries":
        defaults["min"] = 0
    if panel.steps:
        steps = [{"value": value, "color": colour} for value, colour in panel.steps]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "format": "heatmap" if panel.kind == "heatmap" else "time_series",
            }
            for number, (legend, expression) in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    query = "label_values(migratory_member, cluster)"
    return [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "cluster",
            "type": "query",
            "label": "Cluster",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": "cluster"},
            "definition": query,
            "refresh": 2,
            "sort": 1,
        },
    ]


def _takeover_marks() -> dict[str, Any]:
    return {
        "name": "Takeovers",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": f"sum(changes(migratory_takeovers_total{{{CLUSTER}}}[1m])) > 0",
        "titleFormat": "takeover",
    }
