"""The cluster under test on a Kubernetes, as the API server and the brokers' metrics show it. Reads only."""

from __future__ import annotations

from typing import Any

from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.pods import is_ready

from migratory_chaos.brokers import Metrics, ObservedCluster, parse_metrics

ADMIN_PORT = 8082
BROKER, ZOOKEEPER = "broker", "zookeeper"
METRICS_SECONDS = 5.0
_SPEC = {BROKER: "brokers", ZOOKEEPER: "zookeeper"}


class Target(ObservedCluster):
    """The cluster called `name` in the namespace of `kube`."""

    def __init__(self, kube: Kubectl, name: str) -> None:
        self.kube = kube
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
        """Return the pods of a component by name, including those that are being deleted."""
        labels = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        return {pod["metadata"]["name"]: pod for pod in self.kube.list("pods", labels)}

    def uids(self, component: str) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(component).items()}

    def replicas(self, component: str) -> int:
        wanted = self.spec(_SPEC[component], "replicas")
        return 3 if wanted is None else int(wanted)

    # ---- pods' own pages --------------------------------------------------------------------------------------------

    def broker_names(self) -> list[str]:
        return sorted(self.pods(BROKER))

    async def metrics(self, broker: str) -> Metrics | None:
        try:
            return parse_metrics(broker, self.kube.request_pod(broker, ADMIN_PORT, "/metrics", limit=METRICS_SECONDS))
        except KubectlError:
            return None

    def modes(self) -> dict[str, str]:
        """Return leader, follower or standalone of each ZooKeeper member; empty for one that does not serve."""
        return {name: self._mode(name) for name in sorted(self.pods(ZOOKEEPER))}

    def _mode(self, member: str) -> str:
        command = "exec 3<>/dev/tcp/127.0.0.1/2181 && echo srvr >&3 && cat <&3"
        try:
            answer = self.kube("exec", member, "--", "bash", "-c", command, limit=20)
        except KubectlError:
            return ""
        return next((line.split()[1] for line in answer.splitlines() if line.startswith("Mode: ")), "")

    # ---- health -----------------------------------------------------------------------------------------------------

    async def find_unhealthy(self) -> list[str]:
        """Return how the cluster differs from its resource; empty when it is healthy. Cheap requests come first."""
        try:
            if found := self._unhealthy_status() or self._unhealthy_pods():
                return found
            groups = self.spec("topics", "groups")
            return await self.find_unhealthy_brokers(100 if groups is None else int(groups))
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
