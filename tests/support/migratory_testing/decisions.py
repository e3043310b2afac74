"""What the operator sees of a cluster and decides about it, for tests of the decision."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from migratory_operator import names
from migratory_operator.decide import Plan, decide
from migratory_operator.names import Object
from migratory_operator.observe import Observed, key_of

from migratory_testing.kubernetes import NOW, SETTINGS, cluster, pages_of, pods, settled

BROKERS = ("StatefulSet", "quotes-broker")
THIRDS = pages_of(3)


def observe(resource: Object, **fields: Any) -> Observed:
    return Observed(resource=resource, now=NOW, **fields)


def whole(resource: Object | None = None, **fields: Any) -> Observed:
    """A cluster with all its pods ready, all objects there, and the status that the operator wrote of that."""
    resource = resource or cluster()
    seen = observe(resource, pods=pods(), pages=THIRDS)
    for _ in range(3):
        plan = decide(seen, SETTINGS)
        made = {key_of(thing): settled(thing) for thing in plan.apply}
        seen = replace(
            seen, objects={**seen.objects, **made}, resource={**seen.resource, "status": copy.deepcopy(plan.status)}
        )
    return replace(seen, **fields)


def condition(plan: Plan, type_: str) -> tuple[str, str]:
    found = next(one for one in plan.status["conditions"] if one["type"] == type_)
    return found["status"], found["reason"]


def message(plan: Plan, type_: str) -> str:
    return str(next(one["message"] for one in plan.status["conditions"] if one["type"] == type_))


def after(seen: Observed, **fields: Any) -> tuple[Observed, Plan]:
    """What is seen next, and what comes of it; the status is what came of it before."""
    now = replace(seen, **fields)
    plan = decide(now, SETTINGS)
    return replace(now, resource={**now.resource, "status": plan.status}), plan


def told(plan: Plan) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in plan.events]


def brokers_hash(thing: Object) -> str:
    return str(thing["spec"]["template"]["metadata"]["annotations"][names.CONFIG_HASH])


def instead(pods: Iterable[Object], *changed: Object) -> tuple[Object, ...]:
    """The pods, with these in place of their namesakes."""
    known = {one["metadata"]["name"] for one in changed}
    return (*(one for one in pods if one["metadata"]["name"] not in known), *changed)
