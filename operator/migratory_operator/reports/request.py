"""The question as the pipeline's pod reads it (docs/reports.md has its form); pure."""

from __future__ import annotations

import json

from migratory_operator.reports.asked import Asked
from migratory_operator.reports.run import Run
from migratory_operator.verdict import time_text

FOLDER = "/etc/migratory/run"
"""Where the pods of a run find the question and the templates."""
QUESTION = "request.json"
HISTORY = "/var/lib/migratory/history"


def question(run: Run, asked: Asked) -> str:
    return json.dumps(
        {
            "run": run.id,
            "namespace": run.owner.namespace,
            "config_map": run.result,
            "cluster": asked.cluster,
            "prometheus": asked.prometheus.url,
            "start": time_text(asked.start),
            "end": time_text(asked.end),
            "zone": asked.zone,
            "history": None if asked.spark.history_claim is None else HISTORY,
            "objectives": [
                objective.model_dump(mode="json", by_alias=True, exclude_none=True) for objective in asked.objectives
            ],
        },
        indent=1,
    )
