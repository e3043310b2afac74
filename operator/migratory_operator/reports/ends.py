"""How a run ends, or waits, without an answer: a reason in one word, and what a person should know; pure.

Exit codes decide nothing: who answered has succeeded, whatever became of its pod, and who has ended without an answer
has failed, even with exit code 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from migratory_operator.names import Object
from migratory_operator.observe import trouble
from migratory_operator.reports.asked import moment
from migratory_operator.reports.observe import Observed

_PATIENCE = timedelta(minutes=5)
"""With a pod that can't be scheduled, or whose image can't be had: less when the deadline is near."""


@dataclass(frozen=True)
class Reason:
    reason: str
    message: str


def end(observed: Observed, deadline: timedelta, started: datetime) -> Reason | None:
    """Why there will be no answer any more; None while there may still be one."""
    driver = observed.driver
    if driver is not None and (found := _of_driver(driver)) is not None:
        return found
    if driver is None and (found := _without_driver(observed)) is not None:
        return found
    waits = waiting(observed)
    pod = driver or observed.submitter
    if pod is not None and _phase(pod) == "Pending":
        lasted = observed.now - moment(pod["metadata"]["creationTimestamp"])
        if waits is not None and lasted > min(_PATIENCE, deadline / 3):
            return waits
    if observed.now - started > deadline:
        return _late(observed, deadline, waits)
    return None


def waiting(observed: Observed) -> Reason | None:
    """What keeps a pod of the run from its work, as far as Kubernetes tells."""
    for pod in (observed.driver, observed.submitter, *observed.executors):
        if pod is not None and _phase(pod) == "Pending" and (found := trouble(pod)) is not None:
            return Reason(*found)
    return None


def over(pod: Object) -> bool:
    """Whether it runs no more."""
    return _phase(pod) in ("Succeeded", "Failed")


def _of_driver(pod: Object) -> Reason | None:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    ended = _ended(status)
    if _disrupted(status):
        return Reason("DriverEvicted", f"{name}: {status.get('message') or _disrupted(status)}")
    if "deletionTimestamp" in pod["metadata"]:
        return Reason("DriverDeleted", f"{name} was deleted before it had answered")
    if _phase(pod) == "Failed":
        if status.get("reason") == "DeadlineExceeded":
            return Reason("DeadlineExceeded", f"{name} was ended at its time limit")
        if status.get("reason") == "Evicted":
            return Reason("DriverEvicted", f"{name}: {status.get('message') or 'evicted'}")
        if ended.get("reason") == "OOMKilled":
            return Reason("DriverOutOfMemory", f"{name} needed more memory than spec.spark.driver.memory")
        said = _last_lines(ended) or status.get("message") or "it said nothing"
        return Reason("DriverFailed", f"{name} ended with exit code {ended.get('exitCode', '?')}: {said}")
    if _phase(pod) == "Succeeded":
        return Reason("NoAnswer", f"{name} has ended and left no answer: {_last_lines(ended) or 'it said nothing'}")
    return None


def _without_driver(observed: Observed) -> Reason | None:
    if (known := observed.status.get("driver")) is not None:
        return Reason("DriverGone", f"{known} is gone before it had answered: deleted or evicted")
    conditions = (observed.job or {}).get("status", {}).get("conditions") or ()
    ended = {one["type"]: one for one in conditions if one["status"] == "True"}
    if "Complete" in ended:
        return Reason("DriverGone", "the driver's pod was made and is gone: deleted or evicted")
    if "Failed" in ended:
        failed = ended["Failed"]
        if failed.get("reason") == "DeadlineExceeded":
            waits = waiting(observed)
            return waits or Reason("DeadlineExceeded", "nobody made a driver within the time limit")
        pod = observed.submitter or {}
        said = _last_lines(_ended(pod.get("status", {}))) or failed.get("message", "it said nothing")
        return Reason("SubmitFailed", f"the driver was not made: {said}")
    return None


def _late(observed: Observed, deadline: timedelta, waits: Reason | None) -> Reason:
    if waits is not None:
        return waits
    pod = observed.driver or observed.submitter
    where = "no pod of it was seen"
    if pod is not None:
        where = f"{pod['metadata']['name']} is {_phase(pod) or 'not begun'}"
        if _phase(pod) == "Pending":
            where += " (a Secret or a volume that is not there, or an image that takes long, keeps a pod so)"
    return Reason("DeadlineExceeded", f"no answer within {deadline.total_seconds():g} s: {where}")


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _disrupted(status: Mapping[str, object]) -> str:
    """What the condition says by which Kubernetes tells of evictions, preemptions, lost nodes."""
    conditions = status.get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if one["type"] == "DisruptionTarget" and one["status"] == "True":
            return str(one.get("message") or one.get("reason") or "disrupted")
    return ""


def _ended(status: Mapping[str, object]) -> Object:
    """How the container ended; empty while it runs."""
    containers = status.get("containerStatuses")
    for one in containers if isinstance(containers, list) else ():
        found: Object = one.get("state", {}).get("terminated") or {}
        if found:
            return found
    return {}


def _last_lines(ended: Object) -> str:
    """Of what the pod logged last, the end."""
    lines = [line.strip() for line in str(ended.get("message", "")).splitlines() if line.strip()]
    return " | ".join(lines[-4:])[-600:]
