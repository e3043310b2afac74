"""The answer of a run, as its pod left it in the ConfigMap; pure.

It came from a pod, so it is judged like anything from outside: by the model of what the status may hold.
"""

from __future__ import annotations

import json
from typing import Any

from migratory_resources.report.status import ReportFailure, ReportFiles, ReportOutcome
from pydantic import ValidationError

from migratory_operator.names import Object
from migratory_operator.reports.ends import Reason
from migratory_operator.reports.run import Run

ACCOUNT = "account.json"


def read(run: Run, config_map: Object | None) -> Object | Reason | None:
    """The part of the status that it makes; why there is none; or None while nothing was answered."""
    text = ((config_map or {}).get("data") or {}).get(ACCOUNT)
    if text is None:
        return None
    try:
        account: Any = json.loads(text)
        if account["run"] != run.id:
            return Reason("UnknownAnswer", f"ConfigMap {run.result} has the answer of another run, {account['run']!r}")
        if "failure" in account:
            failure = ReportFailure.model_validate(account["failure"])
            return Reason(failure.reason, failure.message)
        outcome = ReportOutcome.model_validate({key: account[key] for key in account if key not in ("run", "files")})
        files = ReportFiles(config_map=run.result, files=account["files"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        return Reason("UnknownAnswer", f"ConfigMap {run.result}: {ACCOUNT} is not as expected: {error}")
    plain = outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**plain, "result": files.model_dump(mode="json", by_alias=True)}


def summary(status: Object) -> str:
    """In words, for a condition and an Event."""
    missed = [one["name"] for one in status["objectives"] if one["verdict"] == "missed"]
    unclear = [one["name"] for one in status["objectives"] if one["verdict"] == "insufficient"]
    when = f"from {status['window']['start']} to {status['window']['end']}"
    if missed:
        return f"missed {when}: {', '.join(missed)}"
    if unclear:
        return f"insufficient data {when}: {', '.join(unclear)}"
    return f"all {len(status['objectives'])} objectives are met {when}"
