"""The cluster that is struck, as the API server, its pods and their own pages tell of it. Looks; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from migratory_local.metrics.exposition import SeriesTable
from migratory_node.kubectl import Kubectl, Object, Refused

from migratory_chaos_k8s.api import Api, Silent, pod_path

ADMIN_PORT = 8082
BROKER, ZOOKEEPER = "broker", "zookeeper"
_SPEC = {BROKER: "brokers", ZOOKEEPER: "zookeeper"}
POLL = 0.5
T = TypeVar("T")
Metrics = dict[tuple[str, str], float]
"""(metric, role or "") to the sum of its values."""


class Target:
    """The cluster NAME in `kube`'s namespace."""

    def __init__(self, kube: Kubectl, api: Api, name: str) -> None:
        self.kube = kube
        self.api = api
        self.name = name

    # ---- what there is --------------------------------------------------------------------------------------------

    def resource(self) -> Object:
        return self.kube.get("mgc", self.name) or {}

    def pods(self, component: str) -> dict[str, Object]:
        """By name; also those on their way out."""
        labels = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        return {pod["metadata"]["name"]: pod for pod in self.kube.list("pods", labels)}

    def uid(self, pod: str) -> str:
        """Empty when there is no such pod."""
        return str((self.kube.get("pod", pod) or {"metadata": {"uid": ""}})["metadata"]["uid"])

    def replicas(self, component: str) -> int:
        part = self.resource().get("spec", {}).get(_SPEC[component]) or {}
        return int(part.get("replicas", 3))

    def groups(self) -> int:
        return int((self.resource()["spec"].get("topics") or {}).get("groups", 100))

    def urls(self) -> list[str]:
        return [server["url"] for server in self.resource().get("status", {}).get("servers", [])]

    # ---- what pods say of themselves ------------------------------------------------------------------------------

    def metrics(self, broker: str) -> Metrics | None:
        """None when it does not answer."""
        try:
            status, body = self.api.get(pod_path(self.kube.namespace, broker, ADMIN_PORT, "/metrics"), 5.0)
        except Silent:
            return None
        if status != 200:
            return None
        table = SeriesTable()
        found: Metrics = {}
        for number, value in zip(*table.read(broker, body.decode(), {}), strict=True):
            key = (table.metrics[number], table.labels[number].get("role", ""))
            found[key] = found.get(key, 0.0) + value
        return found

    def coordinated(self) -> dict[str, int]:
        """How many topic groups each broker that answers coordinates."""
        answers = {name: self.metrics(name) for name in sorted(self.pods(BROKER))}
        return {
            name: int(answer.get(("migratory_groups", "coordinator"), 0))
            for name, answer in answers.items()
            if answer is not None
        }

    def takeovers(self, brokers: list[str]) -> float:
        """Epochs that these brokers activated, as far as they answer."""
        answers = (self.metrics(name) for name in brokers)
        return sum(answer.get(("migratory_takeovers_total", ""), 0.0) for answer in answers if answer is not None)

    def mode(self, member: str) -> str:
        """leader, follower or standalone; empty when it serves nobody."""
        ask = "exec 3<>/dev/tcp/127.0.0.1/2181 && echo srvr >&3 && cat <&3"
        try:
            told = self.kube("exec", member, "--", "bash", "-c", ask, limit=20)
        except Refused:
            return ""
        return next((line.split()[1] for line in told.splitlines() if line.startswith("Mode: ")), "")

    def modes(self) -> dict[str, str]:
        return {name: self.mode(name) for name in sorted(self.pods(ZOOKEEPER))}

    # ---- whether it is whole --------------------------------------------------------------------------------------

    def unwell(self) -> list[str]:
        """What is not as the resource asks for; empty when the cluster is whole. What costs most is asked last."""
        try:
            return self._told() or self._pods_unwell() or self._brokers_unwell()
        except Refused as error:
            return [f"the API server: {error}"]

    def _told(self) -> list[str]:
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

    def _pods_unwell(self) -> list[str]:
        found = []
        for component in (ZOOKEEPER, BROKER):
            pods = self.pods(component)
            if component == ZOOKEEPER and not pods:
                continue  # an ensemble that is not the operator's
            ready = sum(ready_now(pod) for pod in pods.values())
            if not ready == len(pods) == self.replicas(component):
                found.append(f"{ready} of {len(pods)} pods of {component} are ready, wanted {self.replicas(component)}")
        return found

    def _brokers_unwell(self) -> list[str]:
        found = []
        owned = 0
        for name in sorted(self.pods(BROKER)):
            told = self.metrics(name)
            if told is None:
                found.append(f"{name} does not answer")
                continue
            owned += int(told.get(("migratory_groups", "coordinator"), 0))
            if told.get(("migratory_member", "")) != 1 or told.get(("migratory_fenced", "")) != 0:
                found.append(f"{name} is no member of every group, or fenced")
            if waiting := told.get(("migratory_waiting_groups", ""), 0):
                found.append(f"{name}: {waiting:g} groups wait")
        if not found and owned != self.groups():
            found.append(f"{owned} coordinators of {self.groups()} groups")
        return found


def ready_now(pod: Object) -> bool:
    """Ready, and not on its way out."""
    conditions = pod.get("status", {}).get("conditions") or ()
    is_so = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return is_so and "deletionTimestamp" not in pod["metadata"]


def until(look: Callable[[], T], limit: float, poll: float = POLL) -> T:
    """The first true value, or the last one when the time is up. What is refused meanwhile counts as nothing seen, and
    is raised when it is so to the end."""
    deadline = time.monotonic() + limit
    while True:
        late = time.monotonic() > deadline
        try:
            found = look()
        except Refused:
            if late:
                raise
        else:
            if found or late:
                return found
        time.sleep(poll)
