"""Reconciles one MigratoryCluster: observe, decide, apply. A reconciliation can be repeated, and interrupted at any
point."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime

from migratory_operator import names
from migratory_operator.api.cluster_pods import BrokerStatusClient, ensemble_configs, member_modes
from migratory_operator.api.kubernetes import (
    CLAIM,
    CLUSTER,
    KINDS_BY_NAME,
    OPTIONAL_KINDS,
    OWNED_KINDS,
    POD,
    ApiError,
    KubernetesApi,
)
from migratory_operator.names import Object, ResourceOwner
from migratory_operator.reconcile.decide import ClusterPlan, decide, required_keys, with_blocked_replacement
from migratory_operator.reconcile.differences import first_difference, foreign_fields
from migratory_operator.reconcile.observed import ObjectKey, ObservedCluster, key_of
from migratory_operator.reconcile.rollout import outdated_members
from migratory_operator.settings import OperatorSettings
from migratory_operator.status import status_differs
from migratory_operator.telemetry.events import post_events
from migratory_operator.telemetry.metrics import OperatorMetrics

_log = logging.getLogger(__name__)


class ClusterReconciler:
    """The reconciler of clusters. It observes a cluster, and carries out the plan that `decide` makes for it."""

    def __init__(
        self,
        api: KubernetesApi,
        brokers: BrokerStatusClient,
        settings: OperatorSettings,
        metrics: OperatorMetrics,
    ) -> None:
        self._api = api
        self._brokers = brokers
        self._settings = settings
        self._metrics = metrics

    async def reconcile(self, namespace: str, name: str) -> float:
        """Reconcile a cluster once: apply and delete objects, replace pods, write the status, post Events.

        Return the seconds until the next reconciliation; 0 if none is needed before something that is watched changes,
        or if the cluster is gone or being deleted.

        :raises ApiError: a request was rejected or not answered. If the cluster could not be observed, nothing was
            changed. A failed change of an object or pod is raised at the end: the other changes are made and the status
            is written before.
        """
        resource = await self._api.get(CLUSTER, namespace, name)
        if resource is None:
            self._metrics.forget(namespace, name)
            return 0.0
        observed = await self._observe(resource)
        plan = decide(observed, self._settings)
        applied, errors = await self._apply(plan, observed)
        ineffective = {
            key_of(item): path
            for item in plan.apply
            if (live := applied.get(key_of(item))) is not None and (path := first_difference(item, live)) is not None
        }
        if errors or ineffective:
            for key, path in ineffective.items():
                _log.warning("applying %s %s had no effect on %s", *key, path)
            after = decide(
                replace(
                    observed,
                    objects={**observed.objects, **{key: applied[key] for key in ineffective}},
                    rejected={key: str(error) if error.is_permanent else "" for key, error in errors.items()},
                    ineffective=ineffective,
                ),
                self._settings,
            )
            plan = replace(after, apply=plan.apply, delete=plan.delete)
        plan, replacement_errors = await self._replace_pods(plan)
        await self._write_status(observed, plan)
        self._metrics.count_changes(applied=len(plan.apply), deleted=len(plan.delete), replaced=len(plan.replace))
        if plan.status:
            self._metrics.record_status(namespace, name, plan.status)
        if all_errors := [*errors.values(), *replacement_errors]:
            raise all_errors[0]
        return plan.requeue_after

    async def _observe(self, resource: Object) -> ObservedCluster:
        """Return the observed state of a cluster: its objects, its pods, and what brokers and ZooKeeper members
        answered. Brokers and members that do not answer are left out. Raise ApiError if a request to the API server
        failed."""
        owner = ResourceOwner.of(resource)
        labels = {**names.selector(owner.name), "app.kubernetes.io/managed-by": names.FIELD_MANAGER}
        listed = await asyncio.gather(
            *(self._api.list(kind, owner.namespace, labels) for kind in OWNED_KINDS),
            self._api.list(CLAIM, owner.namespace, names.selector(owner.name, names.ZOOKEEPER)),
            self._api.list(POD, owner.namespace, names.selector(owner.name)),
        )
        claims, pods = listed[-2:]
        optional = {kind: await self._api.list_optional(kind, owner.namespace, labels) for kind in OPTIONAL_KINDS}
        missing_kinds = frozenset(kind.kind for kind, items in optional.items() if items is None)
        present: dict[ObjectKey, Object] = {
            key_of(item): item for items in (*listed[:-2], *optional.values()) for item in items or ()
        }
        # Objects without our labels: the labels were removed, or the object has another owner.
        for key in required_keys(resource, self._settings):
            if key[0] in missing_kinds or key in present:
                continue
            if item := await self._api.get(KINDS_BY_NAME[key[0]], owner.namespace, key[1]):
                present[key] = item
        conflicting = frozenset(key for key, item in present.items() if not owner.owns(item))
        observed = ObservedCluster(
            resource=resource,
            now=datetime.now(UTC),
            objects={key: item for key, item in present.items() if key not in conflicting},
            conflicting=conflicting,
            missing_kinds=missing_kinds,
            pods=tuple(pods),
            claims=tuple(claims),
        )
        pages, ensembles, modes = await asyncio.gather(
            self._brokers.pages(observed.pods_of(names.BROKER)),
            ensemble_configs(observed.pods_of(names.ZOOKEEPER), self._settings.broker_secret),
            member_modes(outdated_members(observed), self._settings.broker_secret),
        )
        return replace(observed, pages=pages, ensembles=ensembles, modes=modes)

    async def _apply(
        self, plan: ClusterPlan, observed: ObservedCluster
    ) -> tuple[dict[ObjectKey, Object], dict[ObjectKey, ApiError]]:
        """Apply and delete the objects of the plan. Return the applied objects as the API server has them then, and the
        errors by object: one failure does not stop the rest.

        When the namespace is being deleted, stop and return two empty mappings.
        """
        applied: dict[ObjectKey, Object] = {}
        errors: dict[ObjectKey, ApiError] = {}
        for item in plan.apply:
            try:
                applied[key_of(item)] = await self._apply_object(item, observed.objects.get(key_of(item)))
                _log.info("applied %s %s", *key_of(item))
            except ApiError as error:
                if error.is_namespace_terminating:
                    return {}, {}
                _log.warning("applying %s %s failed: %s", *key_of(item), error)
                errors[key_of(item)] = error
        for item in plan.delete:
            try:
                await self._api.delete(KINDS_BY_NAME[item["kind"]], item)
                _log.info("deleted %s %s, which is no longer wanted", *key_of(item))
            except ApiError as error:
                _log.warning("deleting %s %s failed: %s", *key_of(item), error)
                errors[key_of(item)] = error
        return applied, errors

    async def _apply_object(self, item: Object, live: Object | None) -> Object:
        """Apply an object, and return it as the API server has it then. If the API server rejects it for its content
        (422) and the live object has foreign fields in its spec, remove these and try once more: a foreign port may
        have the name of one that is missing.

        :param live: the object as it was observed; None if it did not exist.
        :raises ApiError: a request failed.
        """
        kind = KINDS_BY_NAME[item["kind"]]
        try:
            return await self._api.apply(kind, item)
        except ApiError as error:
            foreign = foreign_fields(item, live) if live is not None else []
            if error.code != 422 or live is None or not foreign:
                raise
            _log.warning("applying %s %s failed: %s", *key_of(item), error)
        await self._api.remove_fields(kind, live, [one.pointer for one in foreign])
        _log.warning("removed from %s %s: %s", *key_of(item), ", ".join(one.path for one in foreign))
        return await self._api.apply(kind, item)

    async def _replace_pods(self, plan: ClusterPlan) -> tuple[ClusterPlan, list[ApiError]]:
        """Evict or delete the pods that the plan replaces. Return the plan, and the errors of the requests.

        When a pod could not be replaced, also because a disruption budget forbids it, the condition Progressing of the
        returned plan says why.
        """
        errors = []
        for replacement in plan.replace:
            name = replacement.pod["metadata"]["name"]
            try:
                if replacement.evict:
                    reason = await self._api.evict(replacement.pod)
                else:
                    reason = ""
                    await self._api.delete(POD, replacement.pod)
            except ApiError as error:
                errors.append(error)
                reason = str(error)
            if reason:
                _log.warning("replacing pod %s failed: %s", name, reason)
                plan = with_blocked_replacement(plan, f"replacing {name} failed: {reason}")
            else:
                _log.info("replacing pod %s, which is of an old revision", name)
        return plan, errors

    async def _write_status(self, observed: ObservedCluster, plan: ClusterPlan) -> None:
        """Post the Events of the plan, and write its status if that differs from the observed one. Do nothing if the
        plan has no status. Write nothing to a cluster that is gone."""
        if not plan.status:
            return
        await post_events(self._api, observed.owner, plan.events, observed.now)
        if status_differs(plan.status, observed.resource.get("status", {})):
            try:
                await self._api.apply_status(CLUSTER, observed.resource, plan.status)
            except ApiError as error:
                # 404: deleted meanwhile; 409: deleted and created again.
                if error.code not in (404, 409):
                    raise
