"""`python -m migratory_spark.alerting FOLDER` writes the files of manifests/monitoring into FOLDER: the rules of the
default objectives (rules.yaml), and the dashboard (dashboard.json)."""

from __future__ import annotations

import sys
from pathlib import Path

from migratory_resources.objectives import DEFAULT_OBJECTIVES

from migratory_spark.alerting.dashboard import dashboard
from migratory_spark.alerting.rules import rule_file

HEAD = """\
# Recording rules and alerts for the default objectives. Made by `migratory sla rules`, which makes the same from the
# objectives of a cluster file; docs/operations/alerts.md says what each alert means and what to do.
"""


def files() -> dict[str, str]:
    """Return the contents of `rules.yaml` and `dashboard.json`, by file name."""
    return {"rules.yaml": HEAD + rule_file(DEFAULT_OBJECTIVES), "dashboard.json": dashboard()}


if __name__ == "__main__":
    for name, content in files().items():
        Path(sys.argv[1], name).write_text(content)
