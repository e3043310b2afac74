"""The cluster under test, as the API server and the brokers' own pages show it. Reads only.

Requests to a pod go from the API server to the pod, so that a stopped kubelet or a cut pod network does not
matter.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from migratory_node.binaries import kubectl
from migratory_node.kubectl import Kubectl, KubectlError, Object

from migratory_chaos.metrics import Metrics, coordinated_groups, find_unhealthy_brokers, parse_metrics, sum_metric

ADMIN_PORT = 8082
BROKER, ZOOKEEPER = "broker", "zookeeper"
REQUEST_SECONDS = 10.0
_SPEC = {BROKER: "brokers", ZOOKEEPER: "zookeeper"}
_STOP_SECONDS = 5.0


class NoAnswer(Exception):
    """A request to the API server or a pod got no usable answer. The text says why."""


class Api:
    """Raw requests to the API server through one `kubectl proxy`, so that any kubeconfig works. A context manager."""

    def __init__(self, kubeconfig: Path) -> None:
        self._command = [kubectl(), f"--kubeconfig={kubeconfig}", "proxy", "--port=0"]
        self._process: subprocess.Popen[str] | None = None
        self._base = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        _, found, address = line.strip().rpartition(" on ")  # Starting to serve on 127.0.0.1:34567
        if not found:
            self.close()
            raise NoAnswer(f"kubectl proxy did not start: {line.strip()}")
        self._base = f"http://{address}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def get(self, path: str, timeout: float = REQUEST_SECONDS) -> tuple[int, bytes]:
        """Return status and body, also of an error. :raises NoAnswer:"""
        return self._request(urllib.request.Request(f"{self._base}{path}"), timeout)

    def post(self, path: str, body: object, timeout: float = REQUEST_SECONDS) -> tuple[int, bytes]:
        """Send JSON; return status and body, also of an error. :raises NoAnswer:"""
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        return self._request(urllib.request.Request(f"{self._base}{path}", data, headers, method="POST"), timeout)

    def _request(self, request: urllib.request.Request, timeout: float) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError as error:
            raise NoAnswer(f"{request.get_method()} {request.selector}: {error}") from error

    def json(self, path: str) -> Any:
        """Return the JSON at a path. :raises NoAnswer: also for a status other than 200."""
        status, body = self.get(path)
        if status != 200:
            raise NoAnswer(f"GET {path}: {status} {body[:200].decode(errors='replace')}")
        return json.loads(body)


def pod_path(namespace: str, pod: str, port: int, path: str) -> str:
    """Return the path of a request to a pod through the API server."""
    return f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}"


class Target:
    """The cluster called `name` in `kube`'s namespace."""

    def __init__(self, kube: Kubectl, api: Api, name: str) -> None:
        self.kube = kube
        self.api = api
        self.name = name

    # ---- objects ----------------------------------------------------------------------------------------------------

    def resource(self) -> Object:
        return self.kube.get("mgc", self.name) or {}

    def spec(self, *path: str) -> Any:
        """Return a value of the spec, or None where the spec does not set it."""
        found: Any = self.resource().get("spec")
        for key in path:
            found = (found or {}).get(key)
        return found

    def pods(self, component: str) -> dict[str, Object]:
        """Return pods by name, including those that are being deleted."""
        labels = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        return {pod["metadata"]["name"]: pod for pod in self.kube.list("pods", labels)}

    def uid(self, pod: str) -> str:
        """Return a pod's UID, empty when there is no such pod."""
        return str((self.kube.get("pod", pod) or {"metadata": {"uid": ""}})["metadata"]["uid"])

    def uids(self, component: str) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(component).items()}

    def replicas(self, component: str) -> int:
        wanted = self.spec(_SPEC[component], "replicas")
        return 3 if wanted is None else int(wanted)

    def urls(self) -> list[str]:
        return [server["url"] for server in self.resource().get("status", {}).get("servers", [])]

    # ---- pods' own pages --------------------------------------------------------------------------------------------

    def metrics(self, broker: str) -> Metrics | None:
        """Return a broker's metrics, or None when it does not answer."""
        try:
            status, body = self.api.get(pod_path(self.kube.namespace, broker, ADMIN_PORT, "/metrics"), 5.0)
        except NoAnswer:
            return None
        return parse_metrics(broker, body.decode()) if status == 200 else None

    def coordinated(self) -> dict[str, int]:
        """Return how many topic groups each answering broker coordinates."""
        return coordinated_groups({name: self.metrics(name) for name in sorted(self.pods(BROKER))})

    def takeovers(self, brokers: list[str]) -> float:
        """Return the number of epochs that those of the brokers activated that answer."""
        return sum_metric({name: self.metrics(name) for name in brokers}, "migratory_takeovers_total")

    def mode(self, member: str) -> str:
        """Return leader, follower or standalone; empty when the ZooKeeper member does not serve."""
        command = "exec 3<>/dev/tcp/127.0.0.1/2181 && echo srvr >&3 && cat <&3"
        try:
            answer = self.kube("exec", member, "--", "bash", "-c", command, limit=20)
        except KubectlError:
            return ""
        return next((line.split()[1] for line in answer.splitlines() if line.startswith("Mode: ")), "")

    def modes(self) -> dict[str, str]:
        return {name: self.mode(name) for name in sorted(self.pods(ZOOKEEPER))}

    # ---- health -----------------------------------------------------------------------------------------------------

    def find_unhealthy(self) -> list[str]:
        """Return what differs from the resource; empty when the cluster is healthy. Cheap requests come first."""
        try:
            if found := self._unhealthy_status() or self._unhealthy_pods():
                return found
            groups = self.spec("topics", "groups")
            answers = {name: self.metrics(name) for name in sorted(self.pods(BROKER))}
            return find_unhealthy_brokers(answers, 100 if groups is None else int(groups))
        except KubectlError as error:
            return [f"the API server: {error}"]

    def _unhealthy_status(self) -> list[str]:
        resource = self.resource()
        status = resource.get("status", {})
        if status.get("observedGeneration") != resource.get("metadata", {}).get("generation"):
            return ["the operator has not seen the newest spec"]
        wanted = {"Ready": "True", "CoordinationAvailable": "True", "Progressing": "False", "Degraded": "False"}
        return [
            f"{one['type']} is {one['status']}: {one['reason']}: {one['message'][:200]}"
            for one in status.get("conditions", [])
            if wanted.get(one["type"], one["status"]) != one["status"]
        ]

    def _unhealthy_pods(self) -> list[str]:
        found = []
        for component in (ZOOKEEPER, BROKER):
            pods = self.pods(component)
            if component == ZOOKEEPER and not pods:
                continue  # an ensemble that the operator does not run
            ready = sum(is_ready(pod) for pod in pods.values())
            if not ready == len(pods) == self.replicas(component):
                found.append(f"{ready} of {len(pods)} pods of {component} are ready, wanted {self.replicas(component)}")
        return found


def is_ready(pod: Object) -> bool:
    """Return whether a pod is ready and not being deleted."""
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
