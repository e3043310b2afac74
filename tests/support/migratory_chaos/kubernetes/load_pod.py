"""The load pod as the run uses it: started, queried, marked, ended, and its results fetched (see `load_program.py`)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from migratory_node.kubectl import Kubectl, Object

from migratory_chaos.engine import LoadError
from migratory_chaos.kubernetes import load_program
from migratory_chaos.kubernetes.target import Api, NoAnswer, pod_path

NAME = "chaos-load"
METRICS_PORT = 9100
SCRAPE_SECONDS = 15.0
"""The longest scrape interval of a Prometheus that still gets the final counts: the pages stay up for two intervals."""
MAX_SECONDS = 24 * 3600.0
"""Duration of a load whose run was killed and can't end it."""
_POLL = 0.5
_END_SECONDS = 150.0


class LoadPod:
    """The pod with the load generator. `marks` is the number of marks so far."""

    def __init__(self, kube: Kubectl, api: Api, image: str, cluster: str) -> None:
        self._kube = kube
        self._api = api
        self._image = image
        self._cluster = cluster
        self.marks = 0

    def start(self, servers: Sequence[str], options: Object, limit: float = 120.0) -> None:
        """Return once all clients are connected and publications are acknowledged. :raises LoadError:"""
        scenario = {
            "servers": list(servers),
            "duration": MAX_SECONDS,
            "warmup": 2.0,
            "workers": 1,
            "cluster": self._cluster,
            **options,
        }
        self._kube.apply(*objects(self._image, self._cluster, scenario))
        deadline = time.monotonic() + limit
        while True:
            status = self.status()
            if status.get("failure"):
                raise LoadError(f"the load did not begin: {status['failure']}")
            if status.get("phase") == "measuring" and status["acknowledged"]:
                return
            if time.monotonic() > deadline:
                raise LoadError(f"the load did not begin within {limit:g} s: {status or self._pod()}")
            time.sleep(_POLL)

    def status(self) -> Object:
        """Return the load's progress, or {} while the pod does not answer."""
        try:
            found: Object = self._api.json(self._path("/status"))
        except NoAnswer:
            return {}
        return found

    def mark(self, name: str, broker: str | None = None) -> float:
        """Note that a fault follows. Return the time by the load's clock. :raises LoadError:"""
        answer = self._post("/mark", {"name": name, "broker": broker}, 40.0)
        self.marks += 1
        return float(answer["elapsed"])

    def end(self) -> Object:
        """Stop publishing. Return the result once all is answered and delivered, or given up. :raises LoadError:"""
        self._post("/cease", {}, 10.0)
        deadline = time.monotonic() + _END_SECONDS
        while True:
            status = self.status()
            if status.get("failure"):
                raise LoadError(f"the load ended: {status['failure']}")
            if status.get("done"):
                found: Object = json.loads(self._fetch("/result"))
                return found
            if time.monotonic() > deadline:
                raise LoadError(f"the load did not end within {_END_SECONDS:g} s: {status}")
            time.sleep(_POLL)

    def account(self) -> bytes:
        return self._fetch("/account")

    def timeline(self) -> list[list[float]]:
        found: list[list[float]] = json.loads(self._fetch("/timeline"))
        return found

    def began(self) -> datetime:
        """Return when the load's process began: a report from there on counts from zero."""
        (container,) = (self._kube.get("pod", NAME) or {})["status"]["containerStatuses"]
        return datetime.fromisoformat(container["state"]["running"]["startedAt"].replace("Z", "+00:00"))

    def remove(self) -> None:
        self._kube("delete", "pod,configmap", NAME, "--ignore-not-found", "--wait=true", limit=90)

    def _path(self, path: str) -> str:
        return pod_path(self._kube.namespace, NAME, load_program.PORT, path)

    def _fetch(self, path: str) -> bytes:
        try:
            status, body = self._api.get(self._path(path), 120.0)
        except NoAnswer as error:
            raise LoadError(str(error)) from error
        if status != 200:
            raise LoadError(f"GET {path} of the load: {status} {body[:300]!r}")
        return body

    def _post(self, path: str, body: object, limit: float) -> Any:
        try:
            status, answer = self._api.post(self._path(path), body, limit)
        except NoAnswer as error:
            raise LoadError(str(error)) from error
        if status != 200:
            raise LoadError(f"POST {path} to the load: {status} {answer[:300]!r}")
        return json.loads(answer)

    def _pod(self) -> object:
        return (self._kube.get("pod", NAME) or {}).get("status")


def objects(image: str, cluster: str, scenario: Object) -> list[Object]:
    """Return the pod, and the ConfigMap with its program and scenario. One worker process: one page has the metrics."""
    listen = f"0.0.0.0:{METRICS_PORT}"
    scenario = {**scenario, "metrics": True, "metrics_listen": listen, "scrape_interval": SCRAPE_SECONDS}
    labels = {
        "app.kubernetes.io/name": "migratory-load",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": "load",
        "migratory.dev/metrics": "clients",
    }
    container: Object = {
        "name": "load",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "/run/load/load_program.py", "/run/load/scenario.json"],
        "ports": [
            {"name": "control", "containerPort": load_program.PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "load", "mountPath": "/run/load"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "labels": labels},
            "data": {
                "load_program.py": Path(load_program.__file__).read_text(),
                "scenario.json": json.dumps(scenario),
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": NAME, "labels": labels},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                "volumes": [
                    {"name": "load", "configMap": {"name": NAME}},
                    {"name": "tmp", "emptyDir": {}},
                ],
            },
        },
    ]
