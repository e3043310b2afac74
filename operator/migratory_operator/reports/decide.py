"""The decision about one report; pure. Level-based: it considers what exists, however that came about.

A result decides before everything else, then how pods have ended, then the time. Objects that exist already are
adopted, and continue with their request file. A report in a final phase (Succeeded or Failed) is never started again.
The leftovers of its run are deleted, but not before the status says how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from migratory_resources.report.status import FINAL_PHASES
from migratory_resources.validation.custom_resources import unknown_report_fields

from migratory_operator.names import Object
from migratory_operator.reports import job
from migratory_operator.reports.outcome import (
    StatusReason,
    find_failure,
    has_ended,
    read_result,
    summarize,
    waiting_reason,
)
from migratory_operator.reports.policy import check_allowed
from migratory_operator.reports.resolve import UnresolvableReport, resolve_report
from migratory_operator.reports.run import ObservedReport
from migratory_operator.settings import OperatorSettings
from migratory_operator.status import ConditionValue, KubernetesEvent, condition_object, format_time, parse_time

_RETRY_TIME = timedelta(minutes=2)
"""Time from a report's creation in which its cluster may be missing or invalid, or its Secret missing, before the
report fails."""


@dataclass(frozen=True)
class ReportPlan:
    """The changes to make for a report, and its new status."""

    create: tuple[Object, ...] = ()
    """The objects of the run, in the order of their creation. A Secret or Job that exists already stays as it is."""
    delete: tuple[Object, ...] = ()
    status: Object = field(default_factory=dict)
    """The new status. Empty: leave the status as it is."""
    events: tuple[KubernetesEvent, ...] = ()
    requeue_at: datetime | None = None
    """The time at which the report must be reconciled again although nothing else changed; None for none."""


def decide(observed: ObservedReport, settings: OperatorSettings) -> ReportPlan:
    """Return the objects to create and delete now, and the new status.

    The plan is empty for a report that is being deleted. A report in a final phase (Succeeded or Failed) keeps its
    status; only leftovers of its run are deleted.
    """
    if "deletionTimestamp" in observed.resource["metadata"]:
        # The garbage collector deletes the objects with their owner.
        return ReportPlan()
    if observed.status.get("phase") in FINAL_PHASES:
        return ReportPlan(delete=_leftovers(observed))
    result = read_result(observed.run, observed.result)
    if isinstance(result, StatusReason):
        return _failed(observed, result)
    if result is not None:
        return _succeeded(observed, result)
    try:
        report = resolve_report(observed.resource, observed.cluster)
        if observed.job is None:
            check_allowed(report, settings, observed.secret)
    except UnresolvableReport as error:
        if observed.job is None:
            return _unresolvable(observed, error)
        # The run's pods have their request, whatever became of the cluster meanwhile.
        return _run(observed, job.deadline(observed.job))
    if observed.now < report.end:
        reason = StatusReason("WaitingForEnd", f"the window ends at {format_time(report.end)}")
        return _in_progress(observed, "Pending", reason, requeue_at=report.end)
    create = () if observed.job is not None else tuple(job.objects(observed.run, report, settings))
    return _run(observed, timedelta(seconds=report.spark.deadline), create)


def _run(observed: ObservedReport, deadline: timedelta, create: tuple[Object, ...] = ()) -> ReportPlan:
    """Return the plan for a report whose run has begun, or begins now: its progress, or its failure.

    :param deadline: the time from the start after which a run without a result has failed.
    :param create: the objects of the run if they are to be created; empty if there is a Job.
    """
    start_time = observed.status.get("startTime")
    started = observed.now if start_time is None else parse_time(start_time)
    if (failure := find_failure(observed, deadline, started)) is not None:
        return _failed(observed, failure)
    # The next time at which a pending pod may have failed, or else the deadline.
    pending_limit = started + deadline / 3
    requeue_at = (pending_limit if observed.now < pending_limit else started + deadline) + timedelta(seconds=1)
    waiting = waiting_reason(observed)
    if observed.driver is not None:
        name = observed.driver["metadata"]["name"]
        is_running = observed.driver.get("status", {}).get("phase") == "Running"
        phase = "Running" if is_running else "Submitting"
        reason = waiting or StatusReason(phase, f"{name} makes the report")
        return _in_progress(observed, phase, reason, started, name, requeue_at)
    reason = waiting or StatusReason("Submitting", "a Job creates the driver")
    return _in_progress(observed, "Submitting", reason, started, None, requeue_at, create)


def _unresolvable(observed: ObservedReport, error: UnresolvableReport) -> ReportPlan:
    """Return the plan for a report that can't be made: it waits if a retry may help and _RETRY_TIME has not passed
    since its creation, and else fails."""
    waited = observed.now - parse_time(observed.resource["metadata"]["creationTimestamp"])
    reason = StatusReason(error.reason, str(error))
    if error.retryable and waited < _RETRY_TIME:
        requeue_at = observed.now + (_RETRY_TIME - waited) + timedelta(seconds=1)
        return _in_progress(observed, "Pending", reason, requeue_at=requeue_at, accepted=False)
    return _failed(observed, reason, accepted=False)


def _in_progress(
    observed: ObservedReport,
    phase: str,
    reason: StatusReason,
    started: datetime | None = None,
    driver: str | None = None,
    requeue_at: datetime | None = None,
    create: tuple[Object, ...] = (),
    accepted: bool = True,
) -> ReportPlan:
    """Return the plan for a report that has not ended, with the condition Complete False for this reason.

    :param started: the start of the run, None before it.
    :param driver: the name of the driver's pod, None before it exists.
    :param accepted: False if the report can't be made as it is, for this reason.
    """
    fields: Object = {} if driver is None else {"driver": driver}
    if started is not None:
        fields["startTime"] = format_time(started)
    complete = ConditionValue("Complete", "False", reason.reason, reason.message)
    status = _status(observed, phase, complete, reason, accepted, fields)
    return ReportPlan(create=create, status=status, requeue_at=requeue_at)


def _failed(observed: ObservedReport, reason: StatusReason, accepted: bool = True) -> ReportPlan:
    """Return the plan for a report that fails for this reason, with an Event.

    :param accepted: False if the report could not even be started, for this reason.
    """
    complete = ConditionValue("Complete", "False", reason.reason, reason.message)
    status = _status(observed, "Failed", complete, reason, accepted, _final_fields(observed))
    return ReportPlan(status=status, events=(KubernetesEvent("Warning", reason.reason, reason.message),))


def _succeeded(observed: ObservedReport, result: Object) -> ReportPlan:
    """Return the plan for a report with a result, with an Event, whatever its verdict is.

    :param result: the fields of the status that the result gives.
    """
    verdict = result["verdict"]
    message = summarize(result)
    reason = {"met": "ObjectivesMet", "missed": "ObjectivesMissed", "insufficient": "InsufficientData"}[verdict]
    complete = ConditionValue("Complete", "True", reason, message)
    fields = {**_final_fields(observed), **result}
    status = _status(observed, "Succeeded", complete, StatusReason(reason, message), True, fields)
    event = KubernetesEvent("Warning" if verdict == "missed" else "Normal", reason, message)
    return ReportPlan(status=status, events=(event,))


def _final_fields(observed: ObservedReport) -> Object:
    """Return the fields of an ended report's status: start time and driver if known, and now as the completion time."""
    fields: Object = {key: observed.status[key] for key in ("startTime", "driver") if key in observed.status}
    if observed.driver is not None:
        fields["driver"] = observed.driver["metadata"]["name"]
    return {**fields, "completionTime": format_time(observed.now)}


def _status(
    observed: ObservedReport,
    phase: str,
    complete: ConditionValue,
    reason: StatusReason,
    accepted: bool,
    fields: Object,
) -> Object:
    """Return the whole status of a report, with the conditions Accepted and `complete`.

    :param reason: the reason of Accepted if the report is not accepted.
    :param fields: further fields of the status.
    """
    previous = observed.status.get("conditions", [])
    generation = observed.resource["metadata"].get("generation", 1)
    unknown = unknown_report_fields(observed.resource)
    ignored = f"; this operator does not know and ignores {', '.join(unknown)}" if unknown else ""
    acceptance = ConditionValue("Accepted", "True", "Accepted", f"the report can be made{ignored}")
    if not accepted:
        acceptance = ConditionValue("Accepted", "False", reason.reason, reason.message)
    conditions = [condition_object(value, previous, generation, observed.now) for value in (acceptance, complete)]
    return {
        "observedGeneration": generation,
        "phase": phase,
        "runId": observed.run.id,
        **fields,
        "conditions": conditions,
    }


def _leftovers(observed: ObservedReport) -> tuple[Object, ...]:
    """Return the pods and the Job that a report in a final phase no longer needs and that are not being deleted yet.

    If the report failed and its driver has ended, the driver stays, with its log, and so does the Job that the driver
    may be a part of.
    """
    driver = observed.driver
    leftovers = list(observed.executors)
    if driver is None or not has_ended(driver) or observed.status["phase"] == "Succeeded":
        leftovers += [item for item in (driver, observed.job) if item is not None]
    return tuple(item for item in leftovers if "deletionTimestamp" not in item["metadata"])
