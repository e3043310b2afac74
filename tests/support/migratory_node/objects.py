"""Reads and patches objects of the API server through the official client, in this process.

Tests poll, and each run of kubectl would take a tenth of a second of CPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from kubernetes.client import ApiClient, Configuration
from kubernetes.config import load_kube_config
from urllib3.exceptions import HTTPError

Object = dict[str, Any]
LIMIT = 60.0
"""Seconds for one request."""
_JSON = "application/json"
_DISCOVERY = f"{_JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class RequestError(Exception):
    """A request that the API server refused or did not answer. `code` is the HTTP status, 0 without an answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Kind(NamedTuple):
    """A kind of object: the path of its group and version, its plural, and whether its objects are in namespaces."""

    path: str
    plural: str
    namespaced: bool


class Objects:
    """The objects of one API server, as dictionaries. A kind has any of the names that kubectl takes for it, such as
    "pods", "pod" and "po". Threads may share it."""

    def __init__(self, kubeconfig: Path) -> None:
        configuration = Configuration()
        load_kube_config(str(kubeconfig), client_configuration=configuration)
        self._client = ApiClient(configuration)
        self._kinds: dict[str, Kind] = {}

    def get(self, kind: str, name: str, namespace: str) -> Object | None:
        """Return an object, or None when it does not exist.

        :raises RequestError: the request failed, or there is no such kind
        """
        try:
            return _without_managers(self._request("GET", f"{self._path(kind, namespace)}/{name}"))
        except RequestError as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None, labels: str = "") -> list[Object]:
        """Return the objects of a kind in a namespace (None: in all), those with the labels if there are labels.

        :raises RequestError: the request failed, or there is no such kind
        """
        found = self._request("GET", self._path(kind, namespace), query=[("labelSelector", labels)])
        # An item of a list says neither its kind nor its version.
        common = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
        return [common | _without_managers(item) for item in found["items"]]

    def patch(self, kind: str, name: str, namespace: str, change: Object) -> None:
        """Merge a change into an object.

        :raises RequestError: the request failed, or there is no such kind or object
        """
        self._request("PATCH", f"{self._path(kind, namespace)}/{name}", change, content="application/merge-patch+json")

    def _path(self, kind: str, namespace: str | None) -> str:
        if kind not in self._kinds:
            self._kinds = self._discover()
        if kind not in self._kinds:
            raise RequestError(404, f"the server has no kind {kind!r}")
        found = self._kinds[kind]
        inside = f"/namespaces/{namespace}" if found.namespaced and namespace else ""
        return f"{found.path}{inside}/{found.plural}"

    def _discover(self) -> dict[str, Kind]:
        """Return the kinds of the API server by all their names, each in the version that the server prefers."""
        kinds: dict[str, Kind] = {}
        for root in ("/api", "/apis"):
            for group in self._request("GET", root, accept=_DISCOVERY)["items"]:
                for version in group["versions"]:
                    path = "/".join(filter(None, (root, group["metadata"].get("name"), version["version"])))
                    for one in version["resources"]:
                        kind = Kind(path, one["resource"], one["scope"] == "Namespaced")
                        for name in (one["resource"], one["singularResource"], *one.get("shortNames", ())):
                            kinds.setdefault(name, kind)
        return kinds

    def _request(self, method: str, path: str, body: Object | None = None, **options: Any) -> Object:
        found: Object = json.loads(self.request(method, path, body, **options))
        return found

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content: str = _JSON,
        accept: str = _JSON,
        query: Sequence[tuple[str, str]] = (),
        limit: float = LIMIT,
    ) -> str:
        """Send a request with a JSON body, and return the body of the answer.

        :raises RequestError: no answer within `limit` seconds, or one with an error status; the text has its message
        """
        path, _, given = path.partition("?")
        request = self._client.param_serialize(
            method,
            path,
            query_params=[*query, *parse_qsl(given, keep_blank_values=True)],
            header_params={"Accept": accept, "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=limit)
            answer.read()
        except HTTPError as error:
            raise RequestError(0, f"{method} {path}: {error}") from error
        text = (answer.data or b"").decode(errors="replace")
        if not 200 <= answer.status < 300:
            raise RequestError(answer.status, f"{method} {path}: {answer.status} {_message(text)}")
        return text


def _without_managers(item: Object) -> Object:
    """Return the object without the managers of its fields, as kubectl shows it, and as it may be applied again."""
    return item | {"metadata": {name: value for name, value in item["metadata"].items() if name != "managedFields"}}


def _message(text: str) -> str:
    """Return the message of a Status of the API server, or the text of any other answer."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text


@cache
def of(kubeconfig: Path) -> Objects:
    """Return the objects of the API server of a kubeconfig, with one pool of connections in each process."""
    return Objects(kubeconfig)
