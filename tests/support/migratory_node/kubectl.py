"""kubectl for tests: objects as dictionaries, and a time limit for every command and wait."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from migratory_node import objects
from migratory_node.binaries import kubectl

Object = objects.Object
T = TypeVar("T")
_POLL = 0.5


def condition_of(item: Object, type_: str) -> tuple[str, str]:
    """Return status and reason of an object's condition; ("", "") when there is none."""
    found = item.get("status", {}).get("conditions", [])
    return next(((one["status"], one["reason"]) for one in found if one["type"] == type_), ("", ""))


def is_current(item: Object) -> bool:
    """Return whether an object's status is about its current spec."""
    observed = item.get("status", {}).get("observedGeneration")
    return observed is not None and observed == item["metadata"]["generation"]


class KubectlError(Exception):
    """kubectl failed or took too long. The text is its error output, or the time limit that it exceeded."""


@contextmanager
def _as_kubectl() -> Iterator[None]:
    """Raise a failed request of the context as a KubectlError."""
    try:
        yield
    except objects.RequestError as error:
        raise KubectlError(str(error)) from error


class Kubectl:
    """kubectl in one namespace. `kubectl("get", "pods")` returns its output.

    What tests do often (`get`, `list`, `patch` and `request`) does without the program.
    """

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self._tool = kubectl()

    def __call__(self, *arguments: str, given: str | None = None, limit: float = 60.0) -> str:
        """Run kubectl with these arguments and `given` as its input, and return its output.

        :raises KubectlError: it failed, or took longer than `limit` seconds
        """
        command = [self._tool, f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}", *arguments]
        try:
            result = subprocess.run(command, input=given, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"kubectl {arguments[0]} took longer than {limit:g} s") from error
        if result.returncode:
            raise KubectlError(result.stderr.strip() or result.stdout.strip())
        return result.stdout

    def apply(self, *objects: Object) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self("apply", "-f", "-", given=text)

    def get(self, kind: str, name: str) -> Object | None:
        """Return an object, or None when it does not exist."""
        with _as_kubectl():
            return objects.of(self.kubeconfig).get(kind, name, self.namespace)

    def list_all(self, kind: str, labels: str = "") -> list[Object]:
        """Return the objects of a kind in all namespaces, those with the labels if there are labels."""
        with _as_kubectl():
            return objects.of(self.kubeconfig).list(kind, None, labels)

    def list(self, kinds: str, labels: str = "") -> list[Object]:
        """Return the objects of one kind, or of several ("pods,services"), in the namespace; those with the labels if
        there are labels."""
        with _as_kubectl():
            return [
                one
                for kind in kinds.split(",")
                for one in objects.of(self.kubeconfig).list(kind, self.namespace, labels)
            ]

    def request(self, path: str, body: Object | None = None, limit: float = 60.0) -> str:
        """Send a GET, or a POST of `body`, to the API server, and return the answer.

        :raises KubectlError: also for an error status, and after `limit` seconds
        """
        with _as_kubectl():
            return objects.of(self.kubeconfig).request("GET" if body is None else "POST", path, body, limit=limit)

    def request_pod(self, pod: str, port: int, path: str, body: Object | None = None, limit: float = 60.0) -> str:
        """Send a GET, or a POST of `body`, to a pod through the API server, and return the answer.

        The caller needs no route to the pod, and the kubelet takes no part.

        :raises KubectlError: also for an error status, and after `limit` seconds
        """
        return self.request(f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{port}/proxy{path}", body, limit)

    def patch(self, kind: str, name: str, change: Object) -> None:
        """Merge a change into an object."""
        with _as_kubectl():
            objects.of(self.kubeconfig).patch(kind, name, self.namespace, change)

    def until(self, condition: Callable[[], T], what: str, limit: float = 120.0) -> T:
        """Poll `condition`, and return its first true value. An error of kubectl counts as false.

        :raises AssertionError: it timed out; the text has the pods and Events.
        """
        deadline = time.monotonic() + limit
        while True:
            try:
                found = condition()
            except KubectlError:
                found = None
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {limit:g} s: {what}\n{self._state()}")
            time.sleep(_POLL)

    def condition(self, name: str, type_: str, kind: str = "mgc") -> tuple[str, str]:
        """Return status and reason of a condition of an object, by default a cluster; ("", "") when there is none."""
        return condition_of(self.get(kind, name) or {}, type_)

    def wait_ready(self, name: str, limit: float = 300.0) -> Object:
        """Wait until all brokers of the cluster accept clients with its current spec, and return the cluster. Fail
        after `limit` seconds."""

        def settled() -> Object | None:
            found = self.get("mgc", name) or {}
            return found if is_current(found) and condition_of(found, "Ready") == ("True", "AllReady") else None

        return self.until(settled, f"{name} ready", limit) or {}

    def _state(self) -> str:
        parts = []
        for what in (("get", "mgc,pods,statefulsets", "-o", "wide"), ("get", "events", "--sort-by=.lastTimestamp")):
            try:
                parts.append(self(*what)[-3000:])
            except KubectlError as error:
                parts.append(str(error))
        return "\n".join(parts)
