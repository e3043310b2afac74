"""The API server: the few requests that the operator makes, each with a time limit. The only module that imports
lightkube.

Objects are plain dictionaries, as the API has them. The token of a service account is read anew when it has expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import httpx2
from lightkube import ALL_NS
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError as _ApiError
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources.core_v1 import PodEviction
from lightkube.types import PatchType
from migratory_resources.crd.definitions import GROUP, VERSION

from migratory_operator.names import FIELD_MANAGER, Object

TIMEOUT = 10.0
"""Seconds for a request. An API server that does not answer holds one look at one cluster up that long, no more."""
WATCH_SECONDS = 60


class ApiError(Exception):
    """A request was refused (`code` is the HTTP status) or got no answer (`code` 0)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def lasts(self) -> bool:
        """What was asked for is refused for what it says, and will be again: not because of a moment's trouble."""
        return 400 <= self.code < 500 and self.code not in (401, 404, 408, 409, 429)

    @property
    def too_late(self) -> bool:
        """The namespace is on its way out: there is nothing to make any more, and nobody to tell."""
        return self.code == 403 and "being terminated" in str(self)


class NoCluster(Exception):
    """Neither a kubeconfig nor a pod's own account tells of a cluster."""


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


CLUSTER = Kind(GROUP, VERSION, "MigratoryCluster", "migratoryclusters")
REPORT = Kind(GROUP, VERSION, "SLAReport", "slareports")
POD = Kind("", "v1", "Pod", "pods")
JOB = Kind("batch", "v1", "Job", "jobs")
ROLE_KINDS = (
    Kind("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
)
EVENT = Kind("", "v1", "Event", "events")
CHILDREN = (
    Kind("", "v1", "ConfigMap", "configmaps"),
    Kind("", "v1", "Service", "services"),
    Kind("", "v1", "ServiceAccount", "serviceaccounts"),
    Kind("apps", "v1", "StatefulSet", "statefulsets"),
    Kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
)
"""Everything that the operator makes; what is not wanted any more of these kinds is deleted."""

OPTIONAL = (Kind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),)
"""Made where Kubernetes knows the kind. Not watched: the next look finds what became of them."""
BY_NAME = {kind.kind: kind for kind in (*CHILDREN, *OPTIONAL)}


class _Client(AsyncClient):
    """lightkube's deletes by name alone."""

    async def delete_one(self, kind: Any, name: str, *, namespace: str, uid: str) -> None:
        """Unless the object of this name is another one by now (409); with what belongs to it, or a Job's pods stay."""
        params = {"uid": uid, "propagationPolicy": "Background"}
        await self._client.request("delete", res=kind, name=name, namespace=namespace, params=params)


class Api:
    """One connection pool. `namespaces` empty: all of them. Raises NoCluster."""

    def __init__(self, namespaces: tuple[str, ...], config: KubeConfig | None = None) -> None:
        self.namespaces = namespaces
        try:
            self._client = _Client(
                config=config, namespace="default", timeout=httpx2.Timeout(TIMEOUT), field_manager=FIELD_MANAGER
            )
        except ConfigError as error:
            raise NoCluster(
                f"no Kubernetes cluster is known: {error}; KUBECONFIG names a file that says where one is"
            ) from error

    async def list_everywhere(self, kind: Kind) -> list[Object]:
        """In all namespaces that the operator looks after."""
        found = await asyncio.gather(*(self.list(kind, namespace) for namespace in self.namespaces or (ALL_NS,)))
        return [thing for part in found for thing in part]

    async def list_known(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> list[Object] | None:
        """None where Kubernetes has no such kind."""
        try:
            return await self.list(kind, namespace, labels)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str, labels: Mapping[str, str] | None = None) -> list[Object]:
        listing = self._client.list(_class(kind), namespace=namespace, labels=cast(Any, labels), chunk_size=500)
        async with _limited():
            return [_whole(kind, thing) async for thing in listing]

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """None when there is none."""
        try:
            async with _limited():
                return _whole(kind, await self._client.get(_class(kind), name, namespace=namespace))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def apply(self, kind: Kind, thing: Object) -> Object:
        """Server-side, for the operator's own fields: whoever else holds one of them loses it."""
        metadata = thing["metadata"]
        async with _limited():
            return _whole(
                kind,
                await self._client.patch(
                    _class(kind),
                    metadata["name"],
                    thing,
                    namespace=metadata["namespace"],
                    patch_type=PatchType.APPLY,
                    force=True,
                ),
            )

    async def apply_status(self, kind: Kind, resource: Object, status: Object, manager: str = FIELD_MANAGER) -> None:
        """Server-side as well: conditions are a map by type, so those of others stay as they are. A part that is
        written by a `manager` of its own goes and stays without the rest."""
        metadata = resource["metadata"]
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            # the uid, so that a resource that was deleted and made anew does not get the status of its former life
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "status": status,
        }
        async with _limited():
            await self._client.patch(
                _class(kind).Status,
                metadata["name"],
                body,
                namespace=metadata["namespace"],
                patch_type=PatchType.APPLY,
                field_manager=manager,
                force=True,
            )

    async def apply_definition(self, crd: Object) -> None:
        """A custom resource definition, which belongs to no namespace."""
        definition: Any = create_global_resource(
            "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
        )
        async with _limited():
            await self._client.patch(definition, crd["metadata"]["name"], crd, patch_type=PatchType.APPLY, force=True)

    async def create(self, kind: Kind, thing: Object) -> None:
        # the overloads of `create` know typed resources alone
        create: Callable[..., Awaitable[object]] = self._client.create
        async with _limited():
            await create(_class(kind)(thing), namespace=thing["metadata"]["namespace"])

    async def delete(self, kind: Kind, thing: Object) -> None:
        """This very object, by its uid. Gone already, or another one of its name by now, is well, too."""
        metadata = thing["metadata"]
        try:
            async with _limited():
                await self._client.delete_one(
                    _class(kind), metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"]
                )
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def evict(self, pod: Object) -> str:
        """As a node's drain does; this very pod, as `delete`. Why not, when a disruption budget forbids it, else ""."""
        metadata = pod["metadata"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
        }
        create: Callable[..., Awaitable[object]] = self._client.create
        try:
            async with _limited():
                await create(PodEviction.from_dict(body), metadata["name"], namespace=metadata["namespace"])
        except ApiError as error:
            if error.code == 429:
                return str(error)
            if error.code not in (404, 409):
                raise
        return ""

    async def watch(self, kind: Kind, namespace: str | None, labels: Mapping[str, str]) -> AsyncIterator[Object]:
        """Objects as they change, for a minute or so; then it ends and is to be begun anew. One that has gone silent
        ends like one that had nothing to say.

        :param namespace: None for all.
        """
        stream = self._client.watch(
            _class(kind),
            namespace=ALL_NS if namespace is None else namespace,
            labels=cast(Any, labels),
            server_timeout=WATCH_SECONDS,
        )
        try:
            async with asyncio.timeout(WATCH_SECONDS + TIMEOUT):
                async for _, thing in stream:
                    yield _whole(kind, thing)
        except TimeoutError:
            return
        except _FAILURES as error:
            raise _explained(error) from error

    async def close(self) -> None:
        await self._client.close()


@cache
def _class(kind: Kind) -> Any:
    """lightkube keeps one for the whole process, and takes none of the same name twice."""
    return create_namespaced_resource(kind.group, kind.version, kind.kind, kind.plural)


class _limited:
    """A time limit, and every failure as an ApiError."""

    def __init__(self) -> None:
        self._limit = asyncio.timeout(TIMEOUT + 1)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise ApiError(0, f"the API server did not answer within {TIMEOUT:g} s") from late
        if isinstance(error, _FAILURES):
            raise _explained(error) from error


_FAILURES = (_ApiError, httpx2.HTTPError, ValueError, KeyError)
"""The last two are what lightkube makes of an answer that is none of an API server's: a page of a proxy before it."""


def _explained(error: BaseException) -> ApiError:
    if isinstance(error, _ApiError):
        return ApiError(error.status.code or 0, error.status.message or str(error))
    if isinstance(error, httpx2.HTTPStatusError):
        # a proxy's page, or another answer that is no Status
        return ApiError(error.response.status_code, f"the API server answered {error.response.status_code}")
    if isinstance(error, (ValueError, KeyError)):
        return ApiError(0, f"what came is no answer of an API server: {error!r}")
    return ApiError(0, f"no answer from the API server: {error!r}")


def _whole(kind: Kind, thing: Any) -> Object:
    """Lists leave out what kind their entries are."""
    found: Object = thing.to_dict()
    return {**found, "apiVersion": kind.api_version, "kind": kind.kind}
