"""What is to be done about one report; pure. Level-based: it goes by what there is, however that came about.

An answer decides before everything else, then how pods have ended, then the time. What exists already is adopted, and
goes on with what it was asked. A report in its last phase is never begun again; what its run left behind is removed
then, and not before the status says how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from migratory_resources.report.status import FINAL_PHASES
from migratory_resources.validation.custom_resources import unknown_report_fields

from migratory_operator.decide import Event
from migratory_operator.names import Object
from migratory_operator.reports import answer, job
from migratory_operator.reports.asked import NotPossible, asked, moment
from migratory_operator.reports.ends import Reason, end, over, waiting
from migratory_operator.reports.observe import Observed
from migratory_operator.settings import Settings
from migratory_operator.verdict import Verdict, time_text, written

_FOR_A_CLUSTER = timedelta(minutes=2)
"""That a report may be there before its cluster is."""


@dataclass(frozen=True)
class Plan:
    """`make` in this order, the last one only where there is none; `status` empty: leave it as it is; `look_at`: when
    time alone will change something."""

    make: tuple[Object, ...] = ()
    delete: tuple[Object, ...] = ()
    status: Object = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    look_at: datetime | None = None


def decide(observed: Observed, settings: Settings) -> Plan:
    if "deletionTimestamp" in observed.resource["metadata"]:
        # Everything belongs to the resource: the garbage collector takes it.
        return Plan()
    if observed.status.get("phase") in FINAL_PHASES:
        return Plan(delete=_leftovers(observed))
    answered = answer.read(observed.run, observed.result)
    if isinstance(answered, Reason):
        return _failed(observed, answered)
    if answered is not None:
        return _succeeded(observed, answered)
    try:
        question = asked(observed.resource, observed.cluster)
        if not (question.spark.image or settings.spark_image):
            raise NotPossible("NoImage", "the operator was given no image for reports: MIGRATORY_SPARK_IMAGE")
    except NotPossible as problem:
        if observed.job is None:
            return _impossible(observed, problem)
        # What was asked is in its pods' hands, whatever became of the cluster meanwhile.
        return _run(observed, job.deadline(observed.job))
    if observed.now < question.end:
        text = f"the window ends at {time_text(question.end)}"
        return _going(observed, "Pending", Reason("WaitingForEnd", text), look_at=question.end)
    make = () if observed.job is not None else tuple(job.objects(observed.run, question, settings))
    return _run(observed, timedelta(seconds=question.spark.deadline), make)


def _run(observed: Observed, deadline: timedelta, make: tuple[Object, ...] = ()) -> Plan:
    """:param make: what it takes to begin, where there is no Job."""
    begun = observed.status.get("startTime")
    started = observed.now if begun is None else moment(begun)
    if (found := end(observed, deadline, started)) is not None:
        return _failed(observed, found)
    # The next time at which waiting has lasted long enough, or else the last of all.
    step = started + deadline / 3
    look_at = (step if observed.now < step else started + deadline) + timedelta(seconds=1)
    waits = waiting(observed)
    if observed.driver is not None:
        name = observed.driver["metadata"]["name"]
        running = observed.driver.get("status", {}).get("phase") == "Running"
        phase = "Running" if running else "Submitting"
        return _going(observed, phase, waits or Reason(phase, f"{name} makes the report"), started, name, look_at)
    reason = waits or Reason("Submitting", "a Job makes the driver")
    return _going(observed, "Submitting", reason, started, None, look_at, make)


def _impossible(observed: Observed, problem: NotPossible) -> Plan:
    waited = observed.now - moment(observed.resource["metadata"]["creationTimestamp"])
    reason = Reason(problem.reason, str(problem))
    if problem.later and waited < _FOR_A_CLUSTER:
        look_at = observed.now + (_FOR_A_CLUSTER - waited) + timedelta(seconds=1)
        return _going(observed, "Pending", reason, look_at=look_at, accepted=False)
    return _failed(observed, reason, accepted=False)


def _going(
    observed: Observed,
    phase: str,
    reason: Reason,
    started: datetime | None = None,
    driver: str | None = None,
    look_at: datetime | None = None,
    make: tuple[Object, ...] = (),
    accepted: bool = True,
) -> Plan:
    more: Object = {} if driver is None else {"driver": driver}
    if started is not None:
        more["startTime"] = time_text(started)
    complete = Verdict("Complete", "False", reason.reason, reason.message)
    return Plan(make=make, status=_status(observed, phase, complete, reason, accepted, more), look_at=look_at)


def _failed(observed: Observed, reason: Reason, accepted: bool = True) -> Plan:
    complete = Verdict("Complete", "False", reason.reason, reason.message)
    status = _status(observed, "Failed", complete, reason, accepted, _last(observed))
    return Plan(status=status, events=(Event("Warning", reason.reason, reason.message),))


def _succeeded(observed: Observed, answered: Object) -> Plan:
    verdict = answered["verdict"]
    text = answer.summary(answered)
    reason = {"met": "ObjectivesMet", "missed": "ObjectivesMissed", "insufficient": "InsufficientData"}[verdict]
    complete = Verdict("Complete", "True", reason, text)
    more = {**_last(observed), **answered}
    status = _status(observed, "Succeeded", complete, Reason(reason, text), True, more)
    return Plan(status=status, events=(Event("Warning" if verdict == "missed" else "Normal", reason, text),))


def _last(observed: Observed) -> Object:
    known: Object = {key: observed.status[key] for key in ("startTime", "driver") if key in observed.status}
    if observed.driver is not None:
        known["driver"] = observed.driver["metadata"]["name"]
    return {**known, "completionTime": time_text(observed.now)}


def _status(observed: Observed, phase: str, complete: Verdict, reason: Reason, accepted: bool, more: Object) -> Object:
    before = observed.status.get("conditions", [])
    generation = observed.resource["metadata"].get("generation", 1)
    unknown = unknown_report_fields(observed.resource)
    without = f", without {', '.join(unknown)}, which this operator does not know" if unknown else ""
    taken = Verdict("Accepted", "True", "Accepted", f"the report can be made{without}")
    if not accepted:
        taken = Verdict("Accepted", "False", reason.reason, reason.message)
    conditions = [written(one, before, generation, observed.now) for one in (taken, complete)]
    return {
        "observedGeneration": generation,
        "phase": phase,
        "runId": observed.run.id,
        **more,
        "conditions": conditions,
    }


def _leftovers(observed: Observed) -> tuple[Object, ...]:
    """What a report in its last phase has no use for. A driver that failed by itself stays, with its log, and so does
    the Job that it may be part of."""
    driver = observed.driver
    gone = list(observed.executors)
    if driver is None or not over(driver) or observed.status["phase"] == "Succeeded":
        gone += [thing for thing in (driver, observed.job) if thing is not None]
    return tuple(thing for thing in gone if "deletionTimestamp" not in thing["metadata"])
