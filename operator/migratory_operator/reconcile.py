"""One look at one cluster: observe, decide, apply. Safe to repeat and to break off anywhere."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime

from migratory_operator import members, names
from migratory_operator.api import BY_NAME, CHILDREN, CLUSTER, OPTIONAL, POD, Api, ApiError
from migratory_operator.brokers import Brokers
from migratory_operator.decide import Plan, decide, held_up, needed
from migratory_operator.events import tell
from migratory_operator.metrics import Metrics
from migratory_operator.names import Object, Owner
from migratory_operator.observe import Key, Observed, key_of
from migratory_operator.rollout import old_members
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
        refusals = await self._carry_out(plan)
        if refusals:
            untaken = {key: str(error) if error.lasts else "" for key, error in refusals.items()}
            told = decide(replace(observed, untaken=untaken), self._settings)
            plan = replace(plan, status=told.status, events=told.events)
        plan, held = await self._replace(plan)
        refused = [*refusals.values(), *held]
        await self._tell(observed, plan)
        self._metrics.saw(namespace, name, plan)
        if refused:
            raise refused[0]
        return plan.again

    async def _observe(self, resource: Object) -> Observed:
        owner = Owner.of(resource)
        labels = {**names.selector(owner.name), "app.kubernetes.io/managed-by": names.FIELD_MANAGER}
        listed = await asyncio.gather(
            *(self._api.list(kind, owner.namespace, labels) for kind in CHILDREN),
            self._api.list(POD, owner.namespace, names.selector(owner.name)),
        )
        pods = listed[-1]
        optional = {kind: await self._api.list_known(kind, owner.namespace, labels) for kind in OPTIONAL}
        unknown = frozenset(kind.kind for kind, part in optional.items() if part is None)
        found: dict[Key, Object] = {
            key_of(thing): thing for part in (*listed[:-1], *optional.values()) for thing in part or ()
        }
        # Those without our labels: somebody took the labels away, or it is somebody else's.
        for key in needed(resource, self._settings):
            if key[0] in unknown or key in found:
                continue
            if thing := await self._api.get(BY_NAME[key[0]], owner.namespace, key[1]):
                found[key] = thing
        taken = frozenset(key for key, thing in found.items() if not owner.owns(thing))
        seen = Observed(
            resource=resource,
            now=datetime.now(UTC),
            objects={key: thing for key, thing in found.items() if key not in taken},
            taken=taken,
            unknown=unknown,
            pods=tuple(pods),
        )
        pages, modes = await asyncio.gather(
            self._brokers.pages(seen.pods_of(names.BROKER)), members.modes(old_members(seen))
        )
        return replace(seen, pages=pages, modes=modes)

    async def _carry_out(self, plan: Plan) -> dict[Key, ApiError]:
        """Everything is tried, whatever becomes of the rest."""
        refused = {}
        for thing in plan.apply:
            try:
                await self._api.apply(BY_NAME[thing["kind"]], thing)
                _log.info("applied %s %s", *key_of(thing))
            except ApiError as error:
                if error.too_late:
                    return {}
                _log.warning("%s %s was not applied: %s", *key_of(thing), error)
                refused[key_of(thing)] = error
        for thing in plan.delete:
            try:
                await self._api.delete(BY_NAME[thing["kind"]], thing)
                _log.info("deleted %s %s, which is not wanted any more", *key_of(thing))
            except ApiError as error:
                _log.warning("%s %s was not deleted: %s", *key_of(thing), error)
                refused[key_of(thing)] = error
        return refused

    async def _replace(self, plan: Plan) -> tuple[Plan, list[ApiError]]:
        """With the plan's status as it is then: a pod may not be let go, for a reason that only the API server has."""
        refused = []
        for step in plan.replace:
            name = step.pod["metadata"]["name"]
            try:
                if step.gently:
                    why = await self._api.evict(step.pod)
                else:
                    why = ""
                    await self._api.delete(POD, step.pod)
            except ApiError as error:
                refused.append(error)
                why = str(error)
            if why:
                _log.warning("Pod %s was not let go: %s", name, why)
                plan = held_up(plan, f"{name} was not let go: {why}")
            else:
                _log.info("Pod %s of an old revision goes", name)
        return plan, refused

    async def _tell(self, observed: Observed, plan: Plan) -> None:
        if not plan.status:
            return
        await tell(self._api, observed.owner, plan.events, observed.now)
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


def _among(wanted: list[Object], present: list[Object]) -> bool:
    return all(condition in present for condition in wanted)
