"""Posts Kubernetes Events about a cluster or a report."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from datetime import datetime

from migratory_operator import names
from migratory_operator.api.kubernetes import EVENT, ApiError, KubernetesApi
from migratory_operator.names import ResourceOwner
from migratory_operator.status import KubernetesEvent, format_time

_log = logging.getLogger(__name__)


async def post_events(
    api: KubernetesApi, about: ResourceOwner, events: Iterable[KubernetesEvent], now: datetime
) -> None:
    """Post the Events about this cluster or report, one after the other. A failed request is not raised, because
    nothing depends on an Event. It is logged, unless the namespace is being deleted."""
    for event in events:
        await _post_event(api, about, event, now)


async def _post_event(api: KubernetesApi, about: ResourceOwner, event: KubernetesEvent, now: datetime) -> None:
    """Post one Event, with its message cut to 1,024 characters. A failed request is logged, unless the namespace is
    being deleted."""
    time = format_time(now)
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name}.{uuid.uuid4().hex[:16]}", "namespace": about.namespace},
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:1024],
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        },
        "source": {"component": names.FIELD_MANAGER},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
    try:
        await api.create(EVENT, body)
    except ApiError as error:
        if not error.is_namespace_terminating:
            _log.warning("posting an Event failed: %s", error)
