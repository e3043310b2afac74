"""Requests to the Kubernetes API server, each with a time limit. The only module that imports lightkube.

Objects are plain dictionaries, as the API represents them. lightkube reads the token of a service account again when it
has expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
from migratory_resources.cluster.spec import API_VERSION

from migratory_operator.names import FIELD_MANAGER, Object

TIMEOUT = 10.0
"""Seconds without a byte from the API server after which a request fails."""
_TOTAL_TIMEOUT = TIMEOUT + 1
"""Seconds after which a request, or a list in several parts, fails in any case."""
WATCH_SECONDS = 60
"""Seconds after which the API server ends a watch. A new one notices that a connection went silent."""


class ApiError(Exception):
    """A request to the API server that failed. `code` is the HTTP status of the answer, also of an error page that a
    proxy sent. It is 0 if there was no answer, or one that cannot be read as an API server's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_permanent(self) -> bool:
        """True if the API server, or a proxy before it, rejected the request for its content or for missing
        permissions, so that a retry would fail again."""
        return 400 <= self.code < 500 and self.code not in (401, 404, 408, 409, 429)

    @property
    def is_namespace_terminating(self) -> bool:
        """True if the request failed because the namespace is being deleted: nothing can be created in it, and nothing
        needs to be."""
        return self.code == 403 and "being terminated" in str(self)


class NoKubernetes(Exception):
    """Raised when neither a kubeconfig nor a pod's service account gives the address of an API server."""


@dataclass(frozen=True)
class ResourceKind:
    """A kind of resource, as API requests name it."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version


GROUP, VERSION = API_VERSION.split("/")
CLUSTER = ResourceKind(GROUP, VERSION, "MigratoryCluster", "migratoryclusters")
REPORT = ResourceKind(GROUP, VERSION, "SLAReport", "slareports")
POD = ResourceKind("", "v1", "Pod", "pods")
JOB = ResourceKind("batch", "v1", "Job", "jobs")
SECRET = ResourceKind("", "v1", "Secret", "secrets")
ROLE_KINDS = (
    ResourceKind("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    ResourceKind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
)
LEASE = ResourceKind("coordination.k8s.io", "v1", "Lease", "leases")
EVENT = ResourceKind("", "v1", "Event", "events")
OWNED_KINDS = (
    ResourceKind("", "v1", "ConfigMap", "configmaps"),
    ResourceKind("", "v1", "Service", "services"),
    ResourceKind("", "v1", "ServiceAccount", "serviceaccounts"),
    ResourceKind("apps", "v1", "StatefulSet", "statefulsets"),
    ResourceKind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    ResourceKind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
)
"""Kinds of a cluster's objects that every API server knows. Objects of these kinds are watched."""

OPTIONAL_KINDS = (ResourceKind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),)
"""Kinds of objects that are created only where the API server knows the kind. They are not watched."""
KINDS_BY_NAME = {kind.kind: kind for kind in (*OWNED_KINDS, *OPTIONAL_KINDS)}


class _LightkubeClient(AsyncClient):
    """lightkube's client with a deletion by uid and a reading of metadata alone; lightkube itself deletes by name, and
    reads whole objects."""

    async def delete_one(self, kind: Any, name: str, *, namespace: str, uid: str) -> None:
        """Delete the object with this uid, and its dependents in the background. The API answers 409 if another object
        has the name by now."""
        params = {"uid": uid, "propagationPolicy": "Background"}
        await self._client.request("delete", res=kind, name=name, namespace=namespace, params=params)

    async def get_metadata(self, kind: Any, name: str, *, namespace: str) -> Any:
        """Return the object without anything but its metadata."""
        headers = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
        return await self._client.request("get", res=kind, name=name, namespace=namespace, headers=headers)


class KubernetesApi:
    """A client of the API server with one connection pool. The methods raise ApiError when a request is rejected or not
    answered in time.

    :param namespaces: the namespaces that the operator lists and watches; empty for all.
    :param config: the kubeconfig to use; by default that of the environment or of the pod's service account.
    :raises NoKubernetes: no API server is configured.
    """

    def __init__(self, namespaces: tuple[str, ...], config: KubeConfig | None = None) -> None:
        self.namespaces = namespaces
        try:
            self._client = _LightkubeClient(
                config=config, namespace="default", timeout=httpx2.Timeout(TIMEOUT), field_manager=FIELD_MANAGER
            )
        except ConfigError as error:
            raise NoKubernetes(
                f"no Kubernetes cluster is configured: {error}; set KUBECONFIG to the path of a kubeconfig file"
            ) from error

    async def list_everywhere(self, kind: ResourceKind) -> list[Object]:
        """Return the objects of this kind in all namespaces that the operator watches."""
        lists = await asyncio.gather(*(self.list(kind, namespace) for namespace in self.namespaces or (ALL_NS,)))
        return [item for part in lists for item in part]

    async def list_optional(self, kind: ResourceKind, namespace: str, labels: Mapping[str, str]) -> list[Object] | None:
        """Return the objects of a namespace that have the labels, or None if the API server does not know the kind."""
        try:
            return await self.list(kind, namespace, labels)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(self, kind: ResourceKind, namespace: str, labels: Mapping[str, str] | None = None) -> list[Object]:
        """Return the objects of a namespace that have the labels; without labels, all objects of the namespace. The
        namespace ALL_NS stands for all."""
        listing = self._client.list(_class(kind), namespace=namespace, labels=cast(Any, labels), chunk_size=500)
        async with _limited():
            return [_to_dict(kind, item) async for item in listing]

    async def get(self, kind: ResourceKind, namespace: str, name: str, only_metadata: bool = False) -> Object | None:
        """Return the object, or None if no object has this name.

        :param only_metadata: let the API server send only the metadata, so that the content of a Secret stays there.
        """
        get: Callable[..., Awaitable[object]] = self._client.get_metadata if only_metadata else self._client.get
        try:
            async with _limited():
                return _to_dict(kind, await get(_class(kind), name, namespace=namespace))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def apply(self, kind: ResourceKind, wanted: Object) -> Object:
        """Create or change the object by a server-side apply that takes ownership of every field that `wanted` sets,
        also from other field managers. Return the resulting object."""
        metadata = wanted["metadata"]
        async with _limited():
            return _to_dict(
                kind,
                await self._client.patch(
                    _class(kind),
                    metadata["name"],
                    wanted,
                    namespace=metadata["namespace"],
                    patch_type=PatchType.APPLY,
                    force=True,
                ),
            )

    async def remove_fields(self, kind: ResourceKind, live: Object, pointers: Sequence[str]) -> None:
        """Remove fields and entries of lists from exactly this version of an object.

        :param pointers: JSON pointers of the fields, in the order in which the object has them.
        :raises ApiError: among others with code 409 if the object has changed meanwhile.
        """
        metadata = live["metadata"]
        patch: Any = [
            # With `test`, an object that changed would be answered like an invalid one: 422.
            {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            # From the last one, so that the numbers of the entries before it stay.
            *({"op": "remove", "path": pointer} for pointer in reversed(pointers)),
        ]
        async with _limited():
            await self._client.patch(
                _class(kind),
                metadata["name"],
                patch,
                namespace=metadata["namespace"],
                patch_type=PatchType.JSON,
            )

    async def apply_status(
        self, kind: ResourceKind, resource: Object, status: Object, manager: str = FIELD_MANAGER
    ) -> None:
        """Apply a resource's status server-side. Conditions are a map by type, so conditions that other field managers
        wrote stay.

        :param resource: the resource, of which name, namespace and uid are used.
        :param manager: the field manager. Each manager owns its own part of the status.
        """
        metadata = resource["metadata"]
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            # The uid keeps a resource that was deleted and created again from getting the old status.
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
        """Create or change a custom resource definition, which has no namespace, by a server-side apply."""
        definition: Any = create_global_resource(
            "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
        )
        async with _limited():
            await self._client.patch(definition, crd["metadata"]["name"], crd, patch_type=PatchType.APPLY, force=True)

    async def create(self, kind: ResourceKind, wanted: Object) -> None:
        """Create an object. Raise ApiError with code 409 if its name is taken."""
        # The overloads of `create` accept typed resources only.
        create: Callable[..., Awaitable[object]] = self._client.create
        async with _limited():
            await create(_class(kind)(wanted), namespace=wanted["metadata"]["namespace"])

    async def replace(self, kind: ResourceKind, wanted: Object) -> None:
        """Replace an object as a whole. Raise ApiError with code 409 if it has another `resourceVersion`."""
        replace: Callable[..., Awaitable[object]] = self._client.replace
        async with _limited():
            await replace(_class(kind)(wanted), namespace=wanted["metadata"]["namespace"])

    async def delete(self, kind: ResourceKind, present: Object) -> None:
        """Delete exactly this object, by uid, and its dependents. Do nothing if the object is gone or another one has
        its name by now."""
        metadata = present["metadata"]
        try:
            async with _limited():
                await self._client.delete_one(
                    _class(kind), metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"]
                )
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def evict(self, pod: Object) -> str:
        """Evict exactly this pod, by uid. Return the reason if a disruption budget forbids the eviction, else "". A pod
        that is gone counts as evicted, also when another one has its name by now."""
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

    async def watch(
        self, kind: ResourceKind, namespace: str | None, labels: Mapping[str, str]
    ) -> AsyncIterator[Object]:
        """Yield the objects that exist, and then each that is added, changed or deleted, for some seconds more than
        WATCH_SECONDS. The caller starts the next watch.

        A watch whose connection went silent ends without an error.

        :param namespace: None for all namespaces.
        :raises ApiError: the watch was rejected or broke.
        """
        stream = self._client.watch(
            _class(kind),
            namespace=ALL_NS if namespace is None else namespace,
            labels=cast(Any, labels),
            server_timeout=WATCH_SECONDS,
        )
        try:
            async with asyncio.timeout(WATCH_SECONDS + TIMEOUT):
                async for _, changed in stream:
                    yield _to_dict(kind, changed)
        except TimeoutError:
            return
        except _FAILURES as error:
            raise _to_api_error(error) from error

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self._client.close()


@cache
def _class(kind: ResourceKind) -> Any:
    """Return lightkube's class of a kind. It is made once per process, because lightkube rejects a second class of the
    same name."""
    return create_namespaced_resource(kind.group, kind.version, kind.kind, kind.plural)


class _limited:
    """A context manager around one request or list: it limits the time to _TOTAL_TIMEOUT, and converts each failure of
    lightkube to an ApiError."""

    def __init__(self) -> None:
        self._limit = asyncio.timeout(_TOTAL_TIMEOUT)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise ApiError(0, f"the API server did not answer within {_TOTAL_TIMEOUT:g} s") from late
        if isinstance(error, _FAILURES):
            raise _to_api_error(error) from error


_FAILURES = (_ApiError, httpx2.HTTPError, ValueError, KeyError)
"""Errors of lightkube. It raises the last two for an answer that is not an API server's, such as a proxy's page."""


def _to_api_error(error: BaseException) -> ApiError:
    if isinstance(error, _ApiError):
        return ApiError(error.status.code or 0, error.status.message or str(error))
    if isinstance(error, httpx2.HTTPStatusError):
        # A proxy's page, or another answer without a Status object.
        return ApiError(error.response.status_code, f"the API server answered {error.response.status_code}")
    if isinstance(error, (ValueError, KeyError)):
        return ApiError(0, f"the answer is not an API server's: {error!r}")
    return ApiError(0, f"no answer from the API server: {error!r}")


def _to_dict(kind: ResourceKind, item: Any) -> Object:
    """Return an object as a dictionary, with `apiVersion` and `kind`, which the entries of lists lack."""
    fields: Object = item.to_dict()
    return {**fields, "apiVersion": kind.api_version, "kind": kind.kind}
