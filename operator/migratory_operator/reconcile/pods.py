"""Functions that tell from a Kubernetes pod whether it is ready, settled, terminating, in trouble or failed;
pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from migratory_operator.names import Object

SETTLE_TIME = timedelta(seconds=5)
"""Time that a pod must be ready before it counts as available, so that a pod that is ready for seconds between two
crashes does not count. Doubled for each restart of its container, up to MAX_SETTLE_TIME."""
MAX_SETTLE_TIME = timedelta(minutes=5)
READY_DEADLINE = timedelta(minutes=10)
"""Time after which a pod that is not ready has failed. Starting takes seconds, pulling an image a few minutes."""
CRASH_LOOP_LIFETIME = timedelta(minutes=10)
"""A container that lived longer before it ended is not in a crash loop: the kubelet restarts it at once."""
_PROBE_RESOLUTION = timedelta(seconds=2)
"""Time from a pod's start to a change of its condition Ready within which the pod was never ready: shorter than any
readiness probe takes to succeed and fail again."""
_SAME_REASON = {"ErrImagePull": "ImagePullBackOff", "InvalidImageName": "ImagePullBackOff"}
"""Reasons of the kubelet that alternate for the same trouble, and the one that is reported for all of them."""
_STARTING_REASONS = (None, "ContainerCreating", "PodInitializing")


def is_terminating(pod: Object) -> bool:
    """Return whether the pod is being deleted."""
    return "deletionTimestamp" in pod["metadata"]


def is_ready(pod: Object) -> bool:
    """Return whether the pod is ready, and not being deleted."""
    return not is_terminating(pod) and ready_condition(pod).get("status") == "True"


def ready_condition(pod: Object) -> Object:
    """Return the pod's condition Ready, or {} if the pod has none."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})


def find_trouble(pod: Object) -> tuple[str, str] | None:
    """Return reason and message if the pod is in trouble that may need a person; None if no trouble is known.

    Troubles are: no node fits the pod, a container ends repeatedly, or a container waits for any other reason than that
    it starts, such as an image that cannot be pulled. The reason is one word. It stays the same while the trouble does,
    because each change of a reason posts an Event.
    """
    status = pod.get("status", {})
    name = pod["metadata"]["name"]
    for condition in status.get("conditions") or ():
        # Other reasons are temporary failures of the scheduler itself.
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return "Unschedulable", f"{name}: {condition.get('message', 'not scheduled')}"
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = container.get("state", {}).get("waiting") or {}
        terminated = container.get("lastState", {}).get("terminated", {})
        reason, message = waiting.get("reason"), waiting.get("message") or waiting.get("reason")
        if reason in _STARTING_REASONS:
            if not _is_crash_looping(container):
                continue
            reason, message = "CrashLoopBackOff", "the container ends repeatedly"
        if terminated:
            message = f"{message}; last exit code {terminated.get('exitCode')}"
        return _SAME_REASON.get(reason, reason), f"{name}: {message}"
    return None


def find_failure(pod: Object, now: datetime) -> str:
    """Return the reason for which a pod that is not ready has failed: the trouble of `find_trouble`, or not ready for
    longer than READY_DEADLINE. Return "" if the pod has not failed.

    A terminating pod has not failed: it is not ready because it is being deleted.
    """
    if is_ready(pod) or is_terminating(pod):
        return ""
    if (trouble := find_trouble(pod)) is not None:
        reason, message = trouble
        return f"{message} ({reason})"
    since = _parse_time(ready_condition(pod).get("lastTransitionTime") or pod["metadata"].get("creationTimestamp"))
    if since is not None and now - since > READY_DEADLINE:
        return f"{pod['metadata']['name']} has not been ready for {READY_DEADLINE.total_seconds() / 60:g} minutes"
    return ""


def was_never_ready(pod: Object) -> bool:
    """Return whether the pod is not ready and never was: its condition Ready last changed when the pod started, or at
    most 2 s later. Return False if one of these times is missing."""
    condition, started = ready_condition(pod), _parse_time(pod.get("status", {}).get("startTime"))
    since = _parse_time(condition.get("lastTransitionTime"))
    if condition.get("status") == "True" or since is None or started is None:
        return False
    return since - started <= _PROBE_RESOLUTION


def unsettled_reason(pod: Object, now: datetime) -> str:
    """Return the reason for which a ready pod does not count as available yet: it has been ready for less than its
    settle time. This is SETTLE_TIME, doubled for each restart of its container, at most MAX_SETTLE_TIME. Return "" if
    the pod counts, or if it is unknown since when it is ready."""
    restarts = max((int(status.get("restartCount", 0)) for status in _container_statuses(pod)), default=0)
    settle_time = min(SETTLE_TIME * 2 ** min(restarts, 10), MAX_SETTLE_TIME)
    since = _parse_time(ready_condition(pod).get("lastTransitionTime"))
    if since is None or now - since >= settle_time:
        return ""
    after_restarts = f" after {restarts} restarts" if restarts else ""
    return f"{pod['metadata']['name']} has been ready for less than {settle_time.total_seconds():g} s{after_restarts}"


def _is_crash_looping(container: Object) -> bool:
    """Return whether a container that is not ready has restarted at least twice, and ran for less than
    CRASH_LOOP_LIFETIME before it last ended."""
    last = container.get("lastState", {}).get("terminated", {})
    if container.get("ready") or int(container.get("restartCount", 0)) < 2:
        return False
    if not (last.get("startedAt") and last.get("finishedAt")):
        return False
    lifetime = datetime.fromisoformat(last["finishedAt"]) - datetime.fromisoformat(last["startedAt"])
    return lifetime < CRASH_LOOP_LIFETIME


def _container_statuses(pod: Object) -> list[Object]:
    return pod.get("status", {}).get("containerStatuses") or []


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
