"""Builds the Grafana dashboard of the panels in `panels.py`: objectives, latency, traffic, and the cluster itself, from
top to bottom.

The layout is computed, so that all panels look alike. The result is stored as `manifests/monitoring/dashboard.json` for
users without Python.
"""

from __future__ import annotations

import json
from typing import Any

from migratory_spark.alerting.panels import CLUSTER, ROWS, Panel

WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${source}"}


def dashboard() -> str:
    """Return the dashboard as JSON text for Grafana 10 and later."""
    panels: list[dict[str, Any]] = []
    next_row = 0
    for title, row in ROWS.items():
        panels.append(
            {"type": "row", "title": title, "gridPos": {"x": 0, "y": next_row, "w": WIDTH, "h": 1}, "panels": []}
        )
        next_row += 1
        column = 0
        for panel in row:
            height = 5 if panel.kind == "stat" else 8
            if column + panel.width > WIDTH:
                column = 0
            if column == 0:
                current_row = next_row
                next_row += height
            panels.append(_panel(panel, {"x": column, "y": current_row, "w": panel.width, "h": height}))
            column = (column + panel.width) % WIDTH
    for number, panel_ in enumerate(panels, 1):
        panel_["id"] = number
    document = {
        "uid": "migratory",
        "title": "Migratory",
        "description": "Objectives, latency, traffic and brokers of a Migratory cluster.",
        "tags": ["migratory"],
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "graphTooltip": 1,
        "annotations": {"list": [_takeover_annotations()]},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


def _panel(panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    """Return a panel as Grafana's JSON has it, without its number.

    :param position: x, y, width (w) and height (h) in the dashboard's grid.
    """
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
        # Buckets are cumulative; with the format heatmap Grafana subtracts neighbors itself.
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
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": position,
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
    """Return the dashboard's variables, which its user chooses: the Prometheus data source and the cluster."""
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


def _takeover_annotations() -> dict[str, Any]:
    """Return the annotation that marks takeovers of the chosen cluster in all panels."""
    return {
        "name": "Takeovers",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": f"sum(changes(migratory_takeovers_total{{{CLUSTER}}}[1m])) > 0",
        "titleFormat": "takeover",
    }
