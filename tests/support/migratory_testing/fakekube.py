"""A fake API server: objects by path, server-side apply as a plain merge with a record of the fields, lists by
label.

Enough for the operator's requests. The behaviour of a real API server is tested on one (tests/cluster).
"""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any, Self

from aiohttp import web
from kubernetes.aio.client import Configuration
from migratory_operator.names import Object

from migratory_testing.kubernetes import as_applied


class FakeKube:
    """A fake API server, which listens on a free port within `async with`.

    It answers only while `is_answering` is set. `refuse` maps a part of "METHOD path" to the HTTP status with which
    requests that contain it are refused, with the message `reason`. If `token` is set, requests with another token are
    refused. Pods in `protected` can't be evicted. `admit` maps paths to what an admission webhook sets in an object at
    each apply. Applies of paths in `crowded` are rejected for their content until somebody removes a field there.
    `requests` and `applied` record the requests and the applied objects.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.requests: list[tuple[str, str]] = []
        self.metadata_requests: list[str] = []
        """Paths of the requests for an object's metadata alone."""
        self.applied: list[Object] = []
        self.refuse: dict[str, int] = {}
        self.reason = ""
        self.protected: set[str] = set()
        self.admit: dict[str, Object] = {}
        self.crowded: set[str] = set()
        self.token = ""
        self.is_answering = asyncio.Event()
        self.is_answering.set()
        self._watchers: dict[asyncio.Queue[Object], str] = {}
        self._version = 0
        # The part of a status that each field manager owns.
        self._statuses: dict[str, dict[str, Object]] = {}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_answering.set()
        await self._runner.cleanup()

    @property
    def kubeconfig(self) -> Object:
        """The content of a kubeconfig file for this server."""
        return kubeconfig(self.port, {"token": "fake"})

    @property
    def config(self) -> Configuration:
        """The client's configuration for this server."""
        return configuration(self.port)

    async def wait_for_watches(self, *plurals: str, count: int = 1) -> None:
        """Wait, without a limit, until each of these kinds, by its plural name, is watched, by `count` watches in
        all."""
        while not set(plurals) <= set(self._watchers.values()) or len(self._watchers) < count:  # noqa: ASYNC110 - watchers come and go
            await asyncio.sleep(0.02)

    def put(self, path: str, item: Object) -> None:
        """Store an object with a new version and send it to the watches of its kind.

        :param path: without its group and version, such as "namespaces/market/pods/a".
        """
        self._version += 1
        item = copy.deepcopy(item)
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = item
        for watcher, plural in self._watchers.items():
            if plural == path.split("/")[-2]:
                watcher.put_nowait({"type": "MODIFIED", "object": item})

    def end_watches(self, status: Object) -> None:
        """Send an error, as the API server does before it ends a watch."""
        for watcher in self._watchers:
            watcher.put_nowait({"type": "ERROR", "object": status})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request as the switches and the stored objects say. Wait while the server does not answer."""
        await self.is_answering.wait()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        parts = request.match_info["path"].strip("/").split("/")
        if parts[0] in ("api", "apis", "version") and len(parts) < 4 and parts[-1] not in _PLURALS:
            return _json(_discovery("/".join(parts)))
        path = "/".join(parts[2:] if parts[0] == "api" else parts[3:])
        self.requests.append((request.method, path))
        for part, code in self.refuse.items():
            if part in f"{request.method} {path}":
                return _status(code, self.reason or f"{path} is refused")
        if request.query.get("watch") == "true":
            return await self._watch(request, path.split("/")[-1])
        match request.method:
            case "GET" if path in self.objects and "as=PartialObjectMetadata" in request.headers.get("Accept", ""):
                self.metadata_requests.append(path)
                return _json({"kind": "PartialObjectMetadata", "metadata": self.objects[path]["metadata"]})
            case "GET" if path in self.objects:
                return _json(self.objects[path])
            case "GET" if len(path.split("/")) in (1, 3):
                return _json(_part(self._listed(path, request), request))
            case "PATCH" if request.content_type == "application/json-patch+json":
                return self._remove(path, json.loads(await request.read()))
            case "PATCH":
                return self._apply(path, json.loads(await request.read()), request.query.get("fieldManager", ""))
            case "PUT" if path in self.objects:
                body = json.loads(await request.read())
                if body["metadata"].get("resourceVersion") != self.objects[path]["metadata"]["resourceVersion"]:
                    return _status(409, f"{path} has been modified")
                self.put(path, body)
                return _json(self.objects[path])
            case "POST" if path.endswith("/eviction"):
                return self._evict(path.removesuffix("/eviction"), json.loads(await request.read()))
            case "POST":
                body = json.loads(await request.read())
                if f"{path}/{body['metadata']['name']}" in self.objects:
                    return _status(409, f"{path}/{body['metadata']['name']} already exists")
                body["metadata"].setdefault("uid", f"uid-of-{path}/{body['metadata']['name']}")
                body["metadata"].setdefault("creationTimestamp", "2026-01-02T03:03:05Z")
                self.put(f"{path}/{body['metadata']['name']}", body)
                return _json(body, 201)
            case "DELETE" if path in self.objects:
                return self._delete(path, json.loads(await request.read())["preconditions"]["uid"])
        return _status(404, f"{path} does not exist")

    def _listed(self, path: str, request: web.Request) -> list[Object]:
        """Return the stored objects that a list request asks for, by kind, namespace and labels."""
        wanted = dict(part.split("=") for part in request.query.get("labelSelector", "").split(",") if part)
        plural = path.rpartition("/")[2]
        return [
            item
            for at, item in self.objects.items()
            if at.split("/")[-2] == plural
            and (plural == path or at.startswith(f"{path}/"))
            and wanted.items() <= item["metadata"].get("labels", {}).items()
        ]

    def _evict(self, path: str, body: Object) -> web.Response:
        """Delete a pod, as an eviction does. Refuse it with 429 if the pod is in `protected`."""
        if path in self.protected:
            return _status(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        return self._delete(path, body["deleteOptions"]["preconditions"]["uid"])

    def _delete(self, path: str, uid: str) -> web.Response:
        """Delete an object. Refuse that with 404 if there is none, and with 409 if it has another uid."""
        if path not in self.objects:
            return _status(404, f"{path} does not exist")
        if self.objects[path]["metadata"].get("uid", uid) != uid:
            return _status(409, f"{path} has another uid")
        del self.objects[path]
        return _status(200, "deleted")

    def _apply(self, path: str, body: Object, manager: str) -> web.Response:
        """Merge the applied fields into the object, or into its status if the path ends with /status, with the record
        of the manager. Return the object. Reject it with 422 if the path is in `crowded`."""
        at = path.removesuffix("/status")
        if path in self.crowded:
            return _status(422, "duplicate value")
        self.applied.append(body)
        if at != path:
            if at not in self.objects:
                return _status(404, f"{at} does not exist")
            parts = self._statuses.setdefault(at, {})
            parts[manager] = body["status"]
            status = {key: value for part in parts.values() for key, value in part.items()}
            status["conditions"] = [condition for part in parts.values() for condition in part.get("conditions", ())]
            self.put(at, {**self.objects[at], "status": status})
        else:
            live = self.objects.get(at, {})
            applied = as_applied(body, manager)["metadata"]["managedFields"]
            others = [
                record for record in live.get("metadata", {}).get("managedFields", ()) if record["manager"] != manager
            ]
            merged = _merged(_merged(live, body), self.admit.get(at, {}))
            self.put(at, {**merged, "metadata": {**merged["metadata"], "managedFields": [*others, *applied]}})
        return _json(self.objects[at])

    def _remove(self, path: str, patch: list[Object]) -> web.Response:
        """Remove the fields that a JSON patch names, and let later applies of the path through, if it was in `crowded`.
        Refuse the patch with 409 if the object has another version than it expects."""
        item = copy.deepcopy(self.objects[path])
        if patch[0]["value"] != item["metadata"]["resourceVersion"]:
            return _status(409, f"{path} has been modified")
        for step in patch[1:]:
            *parents, last = (int(part) if part.isdigit() else part for part in step["path"].strip("/").split("/"))
            parent: Any = item
            for part in parents:
                parent = parent[part]
            del parent[last]
        self.put(path, item)
        self.crowded.discard(path)
        return _json(item)

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        """Send each change of this kind of object, from now on, until the client disconnects."""
        queue: asyncio.Queue[Object] = asyncio.Queue()
        self._watchers[queue] = plural
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        try:
            while True:
                await response.write(json.dumps(await queue.get()).encode() + b"\n")
        except ConnectionError:
            return response
        finally:
            del self._watchers[queue]


_PLURALS = ("pods", "configmaps", "services", "serviceaccounts")
"""Kinds that can be listed in all namespaces: the paths of such lists are as short as those of API groups."""


def _discovery(path: str) -> Object:
    """Return the description of an API group, of all groups or of the core API, with only the fields that kopf
    reads."""
    version = {"groupVersion": "migratory.dev/v1alpha1", "version": "v1alpha1"}
    match path:
        case "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        case "apis":
            group = {"name": "migratory.dev", "versions": [version], "preferredVersion": version}
            return {"kind": "APIGroupList", "groups": [group]}
        case "api/v1":
            resources = [_resource("namespaces", "Namespace", False), _resource("events", "Event", True)]
            return {"kind": "APIResourceList", "groupVersion": "v1", "resources": resources}
    resources = [
        _resource("migratoryclusters", "MigratoryCluster", True),
        _resource("slareports", "SLAReport", True),
    ]
    return {"kind": "APIResourceList", "groupVersion": version["groupVersion"], "resources": resources}


def _part(items: list[Object], request: web.Request) -> Object:
    """Return the part of a list that the request asks for."""
    start, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", str(len(items) or 1)))
    metadata = {"resourceVersion": "1"}
    if start + limit < len(items):
        metadata["continue"] = str(start + limit)
    return {"kind": "List", "metadata": metadata, "items": items[start : start + limit]}


def _resource(plural: str, kind: str, namespaced: bool) -> Object:
    verbs = ["create", "get", "list", "watch", "patch"]
    return {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": verbs}


def configuration(port: int) -> Configuration:
    """Return the client's configuration for a server on this port."""
    return Configuration(host=f"http://127.0.0.1:{port}", api_key={"BearerToken": "Bearer fake"})


def kubeconfig(port: int, user: dict[str, str]) -> Object:
    """Return the content of a kubeconfig file for a server on this port, with this user."""
    return {
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "fake", "user": user}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "current-context": "fake",
    }


def _merged(live: Any, wanted: Any) -> Any:
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {**live, **{key: _merged(live.get(key), value) for key, value in wanted.items()}}
    return wanted


def _status(code: int, message: str) -> web.Response:
    return _json({"kind": "Status", "code": code, "message": message}, code)


def _json(body: Object, code: int = 200) -> web.Response:
    # Without a charset, as API servers answer.
    return web.Response(body=json.dumps(body).encode(), status=code, content_type="application/json")
