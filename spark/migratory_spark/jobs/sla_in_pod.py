"""`spark-submit … sla_in_pod.py REQUEST.json`: the report of an SLAReport resource, from its pod into its ConfigMap.

Exit code: 0 when an answer is in the ConfigMap, be it a verdict or why there is none; else 70.
"""

from __future__ import annotations

import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from migratory_spark.jobs.exits import INTERNAL, BadInput, Unreadable
from migratory_spark.jobs.run import add_to_history, answer
from migratory_spark.jobs.sessions import submitted_session
from migratory_spark.pod import access, request, result, server


def main(path: Path) -> int:
    asked = request.read(path)
    try:
        server.patch(asked.namespace, asked.config_map, _answer(asked))
    except server.NotTaken as error:
        print(f"sla_in_pod: the result is lost: {error}", file=sys.stderr)
        return INTERNAL
    return 0


def _answer(asked: request.Request) -> dict[str, Any]:
    try:
        question = request.question(asked, access.settings())
        report = answer(question, request.objectives(asked), partial(submitted_session, asked.run))
        add_to_history(question, report)
        from migratory_spark.html.page import render_page

        return result.answer(asked.run, report, render_page)
    except BadInput as error:
        return result.failure(asked.run, "BadQuestion", error.message)
    except Unreadable as error:
        return result.failure(asked.run, "SamplesUnreadable", error.message)
    except Exception as error:  # noqa: BLE001 - whoever waits for the result is told, and the log has all of it
        traceback.print_exception(error)
        return result.failure(asked.run, "InternalError", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
