"""A real Prometheus in a test's namespace that scrapes a broker, a client and the operator by their names, and has the
alerts of what the operator knows: for tests that need figures and not the objects of the Prometheus operator.
"""

from __future__ import annotations

import json

import yaml

from migratory_node import monitoring
from migratory_node.kubectl import Kubectl, Object
from migratory_node.prometheus import Prometheus, chart_objects

CLIENTS = {"migratory.dev/metrics": "clients"}
"""Labels of the pod whose port 9100 is scraped."""
NAME = "figures"


def prometheus(kube: Kubectl, cluster: str) -> Prometheus:
    """Its jobs are broker, client and operator."""
    jobs = {
        "broker": f"{cluster}-broker-0.{cluster}-broker:8082",
        "client": f"{NAME}-client:9100",
        "operator": "migratory-metrics.migratory-system:8080",
    }
    config = {
        # of a busy machine: what is further than two and a half intervals from a scrape is not covered
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in jobs.items()
        ],
        "rule_files": ["/config/rules.yml"],
    }
    (rules,) = yaml.safe_load_all(chart_objects(kube.namespace, ("prometheusrule",), ()))
    groups = [group for group in rules["spec"]["groups"] if group["name"] == "migratory-operator"]
    kube.apply(
        _named("ConfigMap", data={"prometheus.yml": json.dumps(config), "rules.yml": json.dumps({"groups": groups})}),
        _service(NAME, {"app": NAME}, 9090),
        _service(f"{NAME}-client", CLIENTS, 9100),
        _pod(),
    )
    kube.until(lambda: kube("wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=1s"), "Prometheus", 120)
    return Prometheus(kube, (NAME, "9090"))


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
