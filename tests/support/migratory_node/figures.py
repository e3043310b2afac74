"""A real Prometheus in a test's namespace that scrapes a broker and a client by their names: for tests that need
figures and not the objects of the Prometheus operator.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from migratory_node import monitoring
from migratory_node.kubectl import Kubectl, Object, Refused

CLIENTS = {"migratory.dev/metrics": "clients"}
"""Labels of the pod whose port 9100 is scraped."""
NAME = "figures"


def prometheus(kube: Kubectl, cluster: str) -> tuple[str, Callable[[str], bool]]:
    """Its URL for who is in the cluster, and whether the target of a job (broker, client) answers."""
    jobs = {"broker": f"{cluster}-broker-0.{cluster}-broker:8082", "client": f"{NAME}-client:9100"}
    config = {
        # of a busy machine: what is further than two and a half intervals from a scrape is not covered
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in jobs.items()
        ],
    }
    kube.apply(
        _named("ConfigMap", data={"prometheus.yml": json.dumps(config)}),
        _service(NAME, {"app": NAME}, 9090),
        _service(f"{NAME}-client", CLIENTS, 9100),
        _pod(),
    )
    kube.until(lambda: kube("wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=1s"), "Prometheus", 120)

    def scraped(job: str) -> bool:
        path = (
            f"/api/v1/namespaces/{kube.namespace}/pods/{NAME}:9090/proxy/api/v1/query?query=up%7Bjob%3D%22{job}%22%7D"
        )
        try:
            found = json.loads(kube("get", "--raw", path))["data"]["result"]
        except Refused:
            return False
        return [one["value"][1] for one in found] == ["1"]

    return f"http://{NAME}.{kube.namespace}.svc:9090", scraped


def _named(kind: str, name: str = NAME, **fields: object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": {"app": NAME}}, **fields}


def _service(name: str, selector: dict[str, str], port: int) -> Object:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector, "ports": [{"port": port}]}
    return _named("Service", name, spec=spec)


def _pod() -> Object:
    container = {
        "name": "prometheus",
        "image": f"docker.io/{monitoring.images()[0]}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/prometheus"],
        "args": ["--config.file=/config/prometheus.yml", "--storage.tsdb.path=/data", "--log.level=warn"],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": 9090}, "periodSeconds": 1, "failureThreshold": 120},
        "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}],
    }
    return _named(
        "Pod",
        spec={
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsUser": 10001, "runAsNonRoot": True, "fsGroup": 10001},
            "containers": [container],
            "volumes": [{"name": "config", "configMap": {"name": NAME}}, {"name": "data", "emptyDir": {}}],
        },
    )
