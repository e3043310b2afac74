"""How a run ends: reads the result that the driver wrote into the ConfigMap, or finds the reason for which there is
none; pure.

Exit codes decide nothing. A run whose result is a valid report has succeeded, whatever became of its pod. A run whose
result is invalid or reports a failure, or that ended without a result, has failed, even with exit code 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from migratory_resources.report.status import ReportFailure, ReportFiles, ReportOutcome
from pydantic import ValidationError

from migratory_operator.names import Object
from migratory_operator.reconcile.pods import find_trouble
from migratory_operator.reports.run import ObservedReport, ReportRun
from migratory_operator.status import parse_time

RESULT_KEY = "account.json"
"""The key of the result in its ConfigMap."""
_PENDING_LIMIT = timedelta(minutes=5)
"""Time from its creation after which a pending pod fails the run, if Kubernetes reports why the pod does not start; a
third of the deadline if that is shorter."""


@dataclass(frozen=True)
class StatusReason:
    """A condition's reason in one word, and a message for people."""

    reason: str
    message: str


def read_result(run: ReportRun, config_map: Object | None) -> Object | StatusReason | None:
    """Return the result as fields of the report's status, a StatusReason if the result is invalid, belongs to another
    run or reports a failure, or None if there is no result yet.

    The result comes from a pod, so it is validated like any input from outside.

    :param config_map: the ConfigMap for the result, None if it does not exist.
    """
    text = ((config_map or {}).get("data") or {}).get(RESULT_KEY)
    if text is None:
        return None
    try:
        account: Any = json.loads(text)
        if account["run"] != run.id:
            message = f"ConfigMap {run.result} has the result of another run, {account['run']!r}"
            return StatusReason("InvalidResult", message)
        if "failure" in account:
            failure = ReportFailure.model_validate(account["failure"])
            return StatusReason(failure.reason, failure.message)
        outcome = ReportOutcome.model_validate({key: account[key] for key in account if key not in ("run", "files")})
        files = ReportFiles(config_map=run.result, files=account["files"])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
        return StatusReason("InvalidResult", f"ConfigMap {run.result}: {RESULT_KEY} is malformed: {error}")
    fields = outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**fields, "result": files.model_dump(mode="json", by_alias=True)}


def summarize(status: Object) -> str:
    """Return one sentence for a condition and an Event: the missed objectives, else those with insufficient data, else
    that all were met; and the window.

    :param status: the fields that `read_result` returns.
    """
    missed = [result["name"] for result in status["objectives"] if result["verdict"] == "missed"]
    unclear = [result["name"] for result in status["objectives"] if result["verdict"] == "insufficient"]
    window = f"from {status['window']['start']} to {status['window']['end']}"
    if missed:
        return f"objectives missed {window}: {', '.join(missed)}"
    if unclear:
        return f"insufficient data {window}: {', '.join(unclear)}"
    return f"all {len(status['objectives'])} objectives met {window}"


def find_failure(observed: ObservedReport, deadline: timedelta, started: datetime) -> StatusReason | None:
    """Return the reason for which the run will have no result: a pod failed, was deleted or does not start, or the
    deadline has passed. Return None while there may still be a result.

    A pending pod fails the run only if Kubernetes reports why it does not start, and 5 minutes, or a third of the
    deadline if that is shorter, have passed since its creation.

    :param deadline: the time from `started` after which the run has failed.
    """
    driver = observed.driver
    if driver is not None and (failure := _driver_failure(driver)) is not None:
        return failure
    if driver is None and (failure := _missing_driver_failure(observed)) is not None:
        return failure
    waiting = waiting_reason(observed)
    pod = driver or observed.submitter
    if pod is not None and _phase(pod) == "Pending":
        pending = observed.now - parse_time(pod["metadata"]["creationTimestamp"])
        if waiting is not None and pending > min(_PENDING_LIMIT, deadline / 3):
            return waiting
    if observed.now - started > deadline:
        return _deadline_failure(observed, deadline, waiting)
    return None


def waiting_reason(observed: ObservedReport) -> StatusReason | None:
    """Return the reason for which a pending pod of the run does not start, None if no pod is pending or Kubernetes
    reports no reason."""
    for pod in (observed.driver, observed.submitter, *observed.executors):
        if pod is not None and _phase(pod) == "Pending" and (trouble := find_trouble(pod)) is not None:
            return StatusReason(*trouble)
    return None


def has_ended(pod: Object) -> bool:
    """Return whether the pod has ended, with success or not."""
    return _phase(pod) in ("Succeeded", "Failed")


def _driver_failure(pod: Object) -> StatusReason | None:
    """Return the reason for which this driver will write no result: it was evicted, deleted, failed, or ended without
    one. Return None while it may write one. The caller has found no result."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    terminated = _terminated_state(status)
    if disruption := _disruption(status):
        return StatusReason("DriverEvicted", f"{name}: {status.get('message') or disruption}")
    if "deletionTimestamp" in pod["metadata"]:
        return StatusReason("DriverDeleted", f"{name} was deleted before it wrote a result")
    if _phase(pod) == "Failed":
        if status.get("reason") == "DeadlineExceeded":
            return StatusReason("DeadlineExceeded", f"{name} was ended at its time limit")
        if status.get("reason") == "Evicted":
            return StatusReason("DriverEvicted", f"{name}: {status.get('message') or 'evicted'}")
        if terminated.get("reason") == "OOMKilled":
            return StatusReason("DriverOutOfMemory", f"{name} needed more memory than spec.spark.driver.memory")
        # Not its output, which may quote what a server sent.
        reason = status.get("message") or f"`kubectl logs {name}` has its output"
        return StatusReason("DriverFailed", f"{name} ended with exit code {terminated.get('exitCode', '?')}: {reason}")
    if _phase(pod) == "Succeeded":
        return StatusReason("NoResult", f"{name} ended without a result; `kubectl logs {name}` has its output")
    return None


def _missing_driver_failure(observed: ObservedReport) -> StatusReason | None:
    """Return the reason for which there is no driver's pod and will be none: it was there before, or the Job that
    creates it has ended. Return None while the Job may still create it."""
    if (name := observed.status.get("driver")) is not None:
        return StatusReason("DriverGone", f"{name} was deleted or evicted before it wrote a result")
    conditions = (observed.job or {}).get("status", {}).get("conditions") or ()
    true_conditions = {condition["type"]: condition for condition in conditions if condition["status"] == "True"}
    if "Complete" in true_conditions:
        return StatusReason("DriverGone", "the driver's pod was created, and deleted or evicted")
    if "Failed" in true_conditions:
        failed = true_conditions["Failed"]
        if failed.get("reason") == "DeadlineExceeded":
            message = "the driver was not created within the time limit"
            return waiting_reason(observed) or StatusReason("DeadlineExceeded", message)
        submitter = observed.submitter or {}
        output = _last_lines(_terminated_state(submitter.get("status", {}))) or failed.get("message", "no output")
        return StatusReason("SubmitFailed", f"the driver was not created: {output}")
    return None


def _deadline_failure(observed: ObservedReport, deadline: timedelta, waiting: StatusReason | None) -> StatusReason:
    """Return the failure of a run that has passed its deadline: `waiting` if there is a reason for a pending pod, else
    the state of the driver or the submitter."""
    if waiting is not None:
        return waiting
    pod = observed.driver or observed.submitter
    state = "no pod of the run exists"
    if pod is not None:
        state = f"{pod['metadata']['name']} is {_phase(pod) or 'not started'}"
        if _phase(pod) == "Pending":
            state += " (possible causes: a missing Secret or volume, or an image that takes long to pull)"
    return StatusReason("DeadlineExceeded", f"no result within {deadline.total_seconds():g} s: {state}")


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _disruption(status: Mapping[str, object]) -> str:
    """Return the message of the pod's condition DisruptionTarget, which reports evictions, preemptions and lost nodes;
    "" without it."""
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return str(condition.get("message") or condition.get("reason") or "disrupted")
    return ""


def _terminated_state(status: Mapping[str, object]) -> Object:
    """Return the state of the pod's first container that has ended, {} if none has. `status` is the pod's status."""
    containers = status.get("containerStatuses")
    for container in containers if isinstance(containers, list) else ():
        terminated: Object = container.get("state", {}).get("terminated") or {}
        if terminated:
            return terminated
    return {}


def _last_lines(terminated: Object) -> str:
    """Return the last four lines of the message in a container's state, joined with " | " and cut to the last 600
    characters; "" without a message.

    :param terminated: the container's state, as `_terminated_state` returns it.
    """
    lines = [line.strip() for line in str(terminated.get("message", "")).splitlines() if line.strip()]
    return " | ".join(lines[-4:])[-600:]
