"""Events: what a person would want to know, told at the object that it is about."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from datetime import datetime

from migratory_operator import names
from migratory_operator.api import EVENT, Api, ApiError
from migratory_operator.decide import Event
from migratory_operator.names import Owner
from migratory_operator.verdict import time_text

_log = logging.getLogger(__name__)


async def tell(api: Api, about: Owner, events: Iterable[Event], now: datetime) -> None:
    """One that is not taken is logged: nothing depends on it."""
    for event in events:
        await _tell(api, about, event, now)


async def _tell(api: Api, about: Owner, event: Event, now: datetime) -> None:
    time = time_text(now)
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
        if not error.too_late:
            _log.warning("an Event was not taken: %s", error)
