"""One look at one cluster: observe, decide, apply. Safe to repeat and to break off anywhere."""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from datetime import UTC, datetime

from migratory_operator import members, names
from migratory_operator.api import BY_NAME, CHILDREN, CLUSTER, EVENT, POD, REPORT, Api, ApiError
from migratory_operator.brokers import Brokers
from migratory_operator.decide import Event, Plan, decide, needed
from migratory_operator.metrics import Metrics
from migratory_operator.names import Object, Owner
from migratory_operator.observe import Key, Observed, key_of
from migratory_operator.rollout import Replacement, old_members
from migratory_operator.settings import Settings

_log = logging.getLogger(__name__)


class Reconciler:
    def __init__(self, api: Api, brokers: Brokers, settings: Settings, metrics: Metrics) -> None:
        self._api = api
        self._brokers = brokers
        self._settings = settings
        self._metrics = metrics

    async def cluster(self, namespace: str, name: str) -> float:
        """Seconds after which there is more to see; 0 when something must change first.

        :raises ApiError: something was refused or not answered; a later look makes up for it.
        """
        resource = await self._api.get(CLUSTER, namespace, name)
        if resource is None:
            self._metrics.forget(namespace, name)
            return 0.0
        observed = await self._observe(resource)
        plan = decide(observed, self._settings)
        refused = await self._carry_out(plan)
        await self._tell(observed, plan)
        self._metrics.saw(namespace, name, plan)
        if refused:
            raise refused[0]
        return plan.again

    async def report(self, resource: Object) -> None:
        """Reports are not made by this release; whoever asks for one is told so."""
        generation = resource["metadata"].get("generation", 1)
        if resource.get("status", {}).get("observedGeneration") == generation:
            return
        condition = {
            "type": "Accepted",
            "status": "False",
            "reason": "NotInThisRelease",
            "message": "this release's operator makes no reports; `migratory sla report` does, from recorded samples",
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "observedGeneration": generation,
        }
        status = {"observedGeneration": generation, "phase": "NotSupported", "conditions": [condition]}
        await self._api.apply_status(REPORT, resource, status)

    async def _observe(self, resource: Object) -> Observed:
        owner = Owner.of(resource)
        labels = {**names.selector(owner.name), "app.kubernetes.io/managed-by": names.FIELD_MANAGER}
        listed = await asyncio.gather(
            *(self._api.list(kind, owner.namespace, labels) for kind in CHILDREN),
            self._api.list(POD, owner.namespace, names.selector(owner.name)),
        )
        pods = listed[-1]
        found: dict[Key, Object] = {key_of(thing): thing for part in listed[:-1] for thing in part}
        # Those without our labels: somebody took the labels away, or it is somebody else's.
        for key in needed(resource, self._settings):
            if key not in found and (thing := await self._api.get(BY_NAME[key[0]], owner.namespace, key[1])):
                found[key] = thing
        taken = frozenset(key for key, thing in found.items() if not owner.owns(thing))
        seen = Observed(
            resource=resource,
            now=datetime.now(UTC),
            objects={key: thing for key, thing in found.items() if key not in taken},
            taken=taken,
            pods=tuple(pods),
        )
        pages, modes = await asyncio.gather(
            self._brokers.pages(seen.pods_of(names.BROKER)), members.modes(old_members(seen))
        )
        return replace(seen, pages=pages, modes=modes)

    async def _carry_out(self, plan: Plan) -> list[ApiError]:
        """Everything is tried, whatever becomes of the rest."""
        refused = []
        for thing in plan.apply:
            try:
                await self._api.apply(BY_NAME[thing["kind"]], thing)
                _log.info("applied %s %s", *key_of(thing))
            except ApiError as error:
                if error.too_late:
                    return []
                _log.warning("%s %s was not applied: %s", *key_of(thing), error)
                refused.append(error)
        for thing in plan.delete:
            try:
                await self._api.delete(BY_NAME[thing["kind"]], thing)
                _log.info("deleted %s %s, which is not wanted any more", *key_of(thing))
            except ApiError as error:
                _log.warning("%s %s was not deleted: %s", *key_of(thing), error)
                refused.append(error)
        for step in plan.replace:
            try:
                await self._replace(step)
            except ApiError as error:
                _log.warning("Pod %s was not replaced: %s", step.pod["metadata"]["name"], error)
                refused.append(error)
        return refused

    async def _replace(self, step: Replacement) -> None:
        name = step.pod["metadata"]["name"]
        if not step.gently:
            await self._api.delete(POD, step.pod)
        elif not await self._api.evict(step.pod):
            _log.info("Pod %s has to wait: its disruption budget allows none to go now", name)
            return
        _log.info("Pod %s of an old revision goes", name)

    async def _tell(self, observed: Observed, plan: Plan) -> None:
        if not plan.status:
            return
        for event in plan.events:
            await self._event(observed.owner, event, observed.now)
        before = observed.resource.get("status", {})
        if any(before.get(key) != value for key, value in plan.status.items() if key != "conditions") or not _among(
            plan.status["conditions"], before.get("conditions", [])
        ):
            try:
                await self._api.apply_status(CLUSTER, observed.resource, plan.status)
            except ApiError as error:
                # deleted meanwhile, or deleted and made anew
                if error.code not in (404, 409):
                    raise

    async def _event(self, owner: Owner, event: Event, now: datetime) -> None:
        time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{owner.name}.{uuid.uuid4().hex[:16]}", "namespace": owner.namespace},
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:1024],
            "involvedObject": {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "namespace": owner.namespace,
                "uid": owner.uid,
            },
            "source": {"component": names.FIELD_MANAGER},
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }
        try:
            await self._api.create(EVENT, body)
        except ApiError as error:
            if not error.too_late:
                _log.warning("an Event was not taken: %s", error)


def _among(wanted: list[Object], present: list[Object]) -> bool:
    return all(condition in present for condition in wanted)
