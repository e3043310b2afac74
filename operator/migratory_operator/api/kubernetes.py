"""Requests to the Kubernetes API server, each with a time limit. The only module that imports the Kubernetes client.

Objects are plain dictionaries, as the API represents them. Of the official client this uses the dynamic client, without
its discovery, its watch and the generated models: docs/decisions/0013-kubernetes-client.md.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.dynamic import DynamicClient, Resource
from migratory_resources.cluster.spec import API_VERSION
from yaml import YAMLError

from migratory_operator.names import FIELD_MANAGER, Object

TIMEOUT = 10.0
"""Seconds without a byte from the API server after which a request fails."""
_TOTAL_TIMEOUT = TIMEOUT + 1
"""Seconds after which a request, or a list in several parts, fails in any case."""
WATCH_SECONDS = 60
"""Seconds after which the API server ends a watch. A new one notices that a connection went silent."""
_MAX_REQUESTS = 100
"""Connections for requests, beside one for each watch. Further requests wait, and fail after TIMEOUT."""
_PAGE_SIZE = 500
"""Objects in one part of a list."""


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
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version


GROUP, VERSION = API_VERSION.split("/")
CLUSTER = ResourceKind(GROUP, VERSION, "MigratoryCluster", "migratoryclusters")
REPORT = ResourceKind(GROUP, VERSION, "SLAReport", "slareports")
POD = ResourceKind("", "v1", "Pod", "pods")
JOB = ResourceKind("batch", "v1", "Job", "jobs")
CLAIM = ResourceKind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
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
"""Kinds of a cluster's objects that every API server knows."""
WATCHED_KINDS = (*OWNED_KINDS, POD)
"""Kinds of which the operator watches a cluster's objects, in each of its namespaces."""

OPTIONAL_KINDS = (ResourceKind("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),)
"""Kinds of objects that are created only where the API server knows the kind. They are not watched."""
KINDS_BY_NAME = {kind.kind: kind for kind in (*OWNED_KINDS, *OPTIONAL_KINDS, CLAIM)}


async def load_configuration(kubeconfig: str | None = None) -> Configuration:
    """Return the configuration of the pod's service account or, outside of a pod, of a kubeconfig. A token from a file
    is read again: a service account's after a minute, a kubeconfig's at each request.

    :param kubeconfig: the path of the kubeconfig to use. By default it is the service account's configuration, or else
        that of the paths in KUBECONFIG or of ~/.kube/config.
    :raises NoKubernetes: neither exists, or one of them is invalid.
    """
    configuration = Configuration()
    if kubeconfig is None and _use_service_account(configuration):
        return configuration
    try:
        paths = _existing(kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")
        loader = await load_kube_config(paths, client_configuration=configuration, persist_config=False)
    except (ConfigException, YAMLError, OSError) as error:
        raise NoKubernetes(
            f"no Kubernetes cluster is configured: {error}; set KUBECONFIG to the path of a kubeconfig file"
        ) from error

    async def read_again(present: Configuration) -> None:
        await loader.load_and_set(present)
        # A file's last line break would be refused in a header.
        present.api_key = {name: token.strip() for name, token in present.api_key.items()}

    configuration.refresh_api_key_hook = read_again
    return configuration


def _existing(paths: str) -> str:
    """Return the paths if one of them is a file. The client itself would only log that there is none."""
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep)):
        raise ConfigException(f"{paths} does not exist")
    return paths


def _use_service_account(configuration: Configuration) -> bool:
    """Set what the pod's service account gives. Return whether there is one."""
    try:
        load_incluster_config(configuration)
    except ConfigException:
        return False
    return True


class KubernetesApi:
    """A client of the API server with one connection pool. The methods raise ApiError when a request is rejected or not
    answered in time.

    :param namespaces: the namespaces that the operator lists and watches; empty for all.
    :param configuration: address and credentials of the API server. Its connections are limited here.
    """

    def __init__(self, namespaces: tuple[str, ...], configuration: Configuration) -> None:
        self.namespaces = namespaces
        configuration.connection_pool_maxsize = _MAX_REQUESTS + len(WATCHED_KINDS) * max(1, len(namespaces))
        self._http = ApiClient(configuration)
        self._http.user_agent = FIELD_MANAGER
        # Not awaited, so that it makes no discovery: all kinds are known here.
        self._client = DynamicClient(self._http)
        self._resources: dict[ResourceKind, Any] = {}

    async def list_everywhere(self, kind: ResourceKind) -> list[Object]:
        """Return the objects of this kind in all namespaces that the operator watches."""
        lists = await asyncio.gather(*(self.list(kind, namespace) for namespace in self.namespaces or (None,)))
        return [item for part in lists for item in part]

    async def list_optional(self, kind: ResourceKind, namespace: str, labels: Mapping[str, str]) -> list[Object] | None:
        """Return the objects of a namespace that have the labels, or None if the API server does not know the kind."""
        try:
            return await self.list(kind, namespace, labels)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def list(
        self, kind: ResourceKind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return the objects of a namespace that have the labels; without labels, all objects of the namespace.

        :param namespace: None for all namespaces.
        """
        found: list[Object] = []
        following = None
        async with _limited():
            while following != "":
                part = await self._request(
                    self._resource(kind).get,
                    namespace=namespace,
                    label_selector=_selector(labels),
                    limit=_PAGE_SIZE,
                    _continue=following,
                )
                found += (_typed(kind, item) for item in part["items"])
                following = part["metadata"].get("continue", "")
        return found

    async def get(self, kind: ResourceKind, namespace: str, name: str, only_metadata: bool = False) -> Object | None:
        """Return the object, or None if no object has this name.

        :param only_metadata: let the API server send only the metadata, so that the content of a Secret stays there.
        """
        form = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1" if only_metadata else ""
        headers = {"Accept": f"application/json{form}"}
        try:
            found = await self._request(self._resource(kind).get, name=name, namespace=namespace, header_params=headers)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return _typed(kind, found)

    async def apply(self, kind: ResourceKind, wanted: Object) -> Object:
        """Create or change the object by a server-side apply that takes ownership of every field that `wanted` sets,
        also from other field managers. Return the resulting object."""
        apply = self._resource(kind).server_side_apply
        return await self._request(apply, body=wanted, field_manager=FIELD_MANAGER, force_conflicts=True)

    async def remove_fields(self, kind: ResourceKind, live: Object, pointers: Sequence[str]) -> None:
        """Remove fields and entries of lists from exactly this version of an object.

        :param pointers: JSON pointers of the fields, in the order in which the object has them.
        :raises ApiError: among others with code 409 if the object has changed meanwhile.
        """
        metadata = live["metadata"]
        patch = [
            # With `test`, an object that changed would be answered like an invalid one: 422.
            {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
            # From the last one, so that the numbers of the entries before it stay.
            *({"op": "remove", "path": pointer} for pointer in reversed(pointers)),
        ]
        await self._request(
            self._resource(kind).patch,
            body=patch,
            name=metadata["name"],
            namespace=metadata["namespace"],
            content_type="application/json-patch+json",
            field_manager=FIELD_MANAGER,
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
        apply = self._resource(kind).status.server_side_apply
        await self._request(apply, body=body, field_manager=manager, force_conflicts=True)

    async def apply_definition(self, crd: Object) -> None:
        """Create or change a custom resource definition by a server-side apply."""
        apply = self._resource(_DEFINITION).server_side_apply
        await self._request(apply, body=crd, field_manager=FIELD_MANAGER, force_conflicts=True)

    async def create(self, kind: ResourceKind, wanted: Object) -> None:
        """Create an object. Raise ApiError with code 409 if its name is taken."""
        await self._request(self._resource(kind).create, body=wanted, field_manager=FIELD_MANAGER)

    async def replace(self, kind: ResourceKind, wanted: Object) -> None:
        """Replace an object as a whole. Raise ApiError with code 409 if it has another `resourceVersion`."""
        await self._request(self._resource(kind).replace, body=wanted, field_manager=FIELD_MANAGER)

    async def delete(self, kind: ResourceKind, present: Object) -> None:
        """Delete exactly this object, by uid, and its dependents in the background. Do nothing if the object is gone or
        another one has its name by now."""
        metadata = present["metadata"]
        body = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
        try:
            await self._request(
                self._resource(kind).delete, name=metadata["name"], namespace=metadata["namespace"], body=body
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
        try:
            await self._request(self._resource(POD).eviction.create, body=body)
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
        WATCH_SECONDS. The caller starts the next watch, so no resource version is kept that could expire.

        A watch whose connection went silent ends without an error.

        :param namespace: None for all namespaces.
        :raises ApiError: the watch was rejected or broke.
        """
        try:
            async with (
                asyncio.timeout(WATCH_SECONDS + TIMEOUT),
                await self._resource(kind).get(
                    namespace=namespace,
                    label_selector=_selector(labels),
                    watch=True,
                    timeout_seconds=WATCH_SECONDS,
                    serialize=False,
                    _request_timeout=aiohttp.ClientTimeout(connect=TIMEOUT),
                ) as response,
            ):
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 0), event["object"].get("message", "unknown error"))
                    yield _typed(kind, event["object"])
        except TimeoutError:
            return
        except _FAILURES as error:
            raise _to_api_error(error) from error

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self._http.close()

    def _resource(self, kind: ResourceKind) -> Any:
        """Return the dynamic client's methods for a kind."""
        if kind not in self._resources:
            self._resources[kind] = Resource(
                client=self._client,
                prefix="apis" if kind.group else "api",
                group=kind.group,
                api_version=kind.version,
                kind=kind.kind,
                name=kind.plural,
                namespaced=kind.namespaced,
                subresources={
                    name: {"kind": kind.kind, "name": f"{kind.plural}/{name}", "namespaced": kind.namespaced}
                    for name in ("status", "eviction")
                },
            )
        return self._resources[kind]

    async def _request(self, method: Callable[..., Awaitable[Any]], **arguments: Any) -> Object:
        """Call a method of the dynamic client within the time limits, and return the answer."""
        limits = aiohttp.ClientTimeout(connect=TIMEOUT, sock_read=TIMEOUT)
        async with _limited():
            answer = await method(serializer=_plain, _request_timeout=limits, **arguments)
            if not isinstance(answer, dict) or "kind" not in answer:
                raise ValueError(answer)
        return answer


_DEFINITION = ResourceKind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


class _limited:
    """A context manager around one request or list: it limits the time to _TOTAL_TIMEOUT, and converts each failure of
    the Kubernetes client to an ApiError."""

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


_FAILURES = (ApiException, ConfigException, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError)
"""Errors of the Kubernetes client. The last three are for an answer that is not an API server's, such as a proxy's
page."""


def _to_api_error(error: BaseException) -> ApiError:
    # Without `repr` of aiohttp's errors: it contains the request's headers, and so the token.
    if isinstance(error, ApiException):
        return ApiError(error.status or 0, _message(error.body) or f"the API server answered {error.status}")
    if isinstance(error, (ValueError, KeyError, TypeError)):
        return ApiError(0, f"the answer is not an API server's: {error!r}")
    if isinstance(error, aiohttp.ContentTypeError):
        return ApiError(0, f"the answer is not an API server's: {error.message}")
    return ApiError(0, f"no answer from the API server: {error or type(error).__name__}")


def _message(body: str | None) -> str:
    """Return the message of a Status, or "" for a proxy's page or another body."""
    try:
        status = json.loads(body or "")
    except ValueError:
        return ""
    return str(status.get("message", "")) if isinstance(status, dict) else ""


def _selector(labels: Mapping[str, str] | None) -> str | None:
    return ",".join(f"{name}={value}" for name, value in labels.items()) if labels else None


def _plain(_: Any, answer: Any) -> Any:
    return answer


def _typed(kind: ResourceKind, item: Object) -> Object:
    """Return the object with `apiVersion` and `kind`, which the entries of lists lack."""
    return {**item, "apiVersion": kind.api_version, "kind": kind.kind}
