"""A real Prometheus in a test's namespace, configured by the ServiceMonitors, PodMonitors and PrometheusRules there, or
statically.

Its Prometheus operator runs beside the tests and watches that namespace alone, so that tests in other namespaces do not
interfere. The operator's definitions stay in the cluster, as an administrator would install them.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from migratory_node import chart, monitoring
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.paths import NodePaths

NAME = "watch"
STATIC_NAME = "figures"
CLIENT_LABELS = {"migratory.dev/metrics": "clients"}
"""Labels of the pod whose port 9100 the static Prometheus scrapes."""
_SERVICE = "prometheus-operated"
_SERVICE_ACCOUNT = "prometheus"
_API = "monitoring.coreos.com/v1"
_QUICK = {"periodSeconds": 1, "failureThreshold": 120}
_RELOADER = [
    "--listen-address=:8080",
    "--reload-url=http://localhost:9090/-/reload",
    "--config-file=/etc/prometheus/config/prometheus.yaml.gz",
    "--config-envsubst-file=/etc/prometheus/config_out/prometheus.env.yaml",
    f"--watched-dir=/etc/prometheus/rules/prometheus-{NAME}-rulefiles-0",
    "--watch-interval=2s",
]
"""The arguments of the config reloader: those that the Prometheus operator sets, and a watch interval. The
reloader's watch misses some changes within seconds of each other, and by default it polls every three minutes."""
INTERVAL = "1s"
"""Interval of scrapes and of rules whose monitor or group names none."""
OBJECTS = ("podmonitor", "prometheusrule")
"""The chart's templates for a Prometheus, without the operator's own ServiceMonitor."""


class Prometheus:
    """A Prometheus in the cluster. `url` is for pods; queries go through the API server.

    :param service: the names of its Service and port.
    """

    def __init__(self, kube: Kubectl, service: tuple[str, str] = (_SERVICE, "web")) -> None:
        self._kube = kube
        self.url = f"http://{service[0]}.{kube.namespace}.svc:9090"
        self._path = f"/api/v1/namespaces/{kube.namespace}/services/{':'.join(service)}/proxy/api/v1"

    def ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Return (labels, current value) of each series that the query returns."""
        values = urllib.parse.urlencode({"query": query})
        return [(one["metric"], float(one["value"][1])) for one in self._get(f"query?{values}")["result"]]

    def value(self, query: str) -> float | None:
        """Return the value of the only series, or None when there is none. Raise AssertionError when there are
        several."""
        found = self.ask(query)
        assert len(found) < 2, f"{query}: {found}"
        return found[0][1] if found else None

    def up(self, **labels: str) -> list[str]:
        """Return the pods with these labels whose last scrape succeeded."""
        return sorted(metric["pod"] for metric, value in self.ask(f"up{_selector(labels)}") if value == 1)

    def firing(self, alert: str, **labels: str) -> list[dict[str, str]]:
        """Return the labels of each firing alert of this name that has these labels."""
        selector = _selector({"alertname": alert, "alertstate": "firing", **labels})
        return [metric for metric, _ in self.ask(f"ALERTS{selector}")]

    def firing_now(self) -> list[str]:
        """Return the names of all firing alerts."""
        return sorted({metric["alertname"] for metric, _ in self.ask('ALERTS{alertstate="firing"}')})

    def names(self) -> list[str]:
        """Return the names of all metrics."""
        found: list[str] = self._get("label/__name__/values")
        return found

    def alerts(self) -> list[Object]:
        """Return all pending and firing alerts with their annotations."""
        found: list[Object] = self._get("alerts")["alerts"]
        return found

    def rules(self) -> list[Object]:
        """Return all loaded rules, with their health and last error."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str) -> Any:
        return json.loads(self._kube.request(f"{self._path}/{path}"))["data"]


@contextmanager
def run_prometheus(
    kube: Kubectl, *, objects: Sequence[str] = OBJECTS, settings: Sequence[str] = ()
) -> Iterator[Prometheus]:
    """Run a Prometheus in `kube`'s namespace until the end of the context.

    :param objects: templates of the chart to render for this namespace and apply.
    :param settings: values of the chart for them, as `--set` takes them.
    """
    paths = NodePaths.default()
    _install_crds(kube)
    with tempfile.TemporaryDirectory() as folder, _operator(kube, paths, Path(folder) / "operator.log"):
        kube.apply(*_access(kube.namespace), _prometheus())
        if objects:
            kube("apply", "-f", "-", given=chart_objects(kube.namespace, objects, settings))
        pod = f"prometheus-{NAME}-0"
        kube.until(lambda: kube("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=1s"), "Prometheus", 120)
        yield Prometheus(kube)
        # while the operator runs, which deletes its pods
        kube("delete", "prometheus", NAME, "--wait=false")
        kube.until(lambda: kube.get("statefulset", f"prometheus-{NAME}") is None, "no Prometheus", 60)


def chart_objects(namespace: str, templates: Sequence[str], settings: Sequence[str]) -> str:
    """Return these templates of the chart, rendered for an operator that watches this namespace alone."""
    assert templates, "name a template: without one helm renders all"
    enabled = "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true"
    sets = (f"operator.scope=namespace,{enabled}", *settings)
    shown = [f"--show-only=templates/{name}.yaml" for name in templates]
    return chart.render_chart(*shown, *(part for one in sets for part in ("--set", one)), namespace=namespace)


def _install_crds(kube: Kubectl) -> None:
    existing = {one["metadata"]["name"] for one in kube.list("crd")}
    for kind, path in monitoring.crd_files().items():
        name = f"{kind}.monitoring.coreos.com"
        if name not in existing:
            kube("apply", "--server-side", "-f", str(path), limit=120)
            kube.until(partial(kube, "get", "--raw", f"/apis/{_API}/{kind}"), f"{name} served", 60)


@contextmanager
def _operator(kube: Kubectl, paths: NodePaths, log: Path) -> Iterator[None]:
    reloader = monitoring.images()[1]
    command = [
        str(monitoring.build_operator(paths)),
        f"--namespaces={kube.namespace}",
        f"--prometheus-config-reloader=docker.io/{reloader}",
        "--kubelet-endpoints=false",
        "--web.listen-address=127.0.0.1:0",
        "--log-level=warn",
        *(f"--config-reloader-{what}=0" for what in ("cpu-request", "cpu-limit", "memory-request", "memory-limit")),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "KUBECONFIG": str(kube.kubeconfig)}
        )
        try:
            yield
        except (AssertionError, KubectlError) as error:
            error.add_note(f"The Prometheus operator said:\n{log.read_text(errors='replace')[-3000:]}")
            raise
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _access(namespace: str) -> list[Object]:
    """Return the service account of Prometheus, with the role that lets it discover its targets."""
    rules = [
        {"apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": _SERVICE_ACCOUNT, "namespace": namespace}
    role = {"apiGroup": rbac, "kind": "Role", "name": _SERVICE_ACCOUNT}
    metadata = {"name": _SERVICE_ACCOUNT}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def _prometheus() -> Object:
    match_all: Object = {}
    spec = {
        "image": f"docker.io/{monitoring.images()[0]}",
        "imagePullPolicy": "IfNotPresent",
        "version": f"v{monitoring.VERSION}",
        "serviceAccountName": _SERVICE_ACCOUNT,
        "serviceMonitorSelector": match_all,
        "podMonitorSelector": match_all,
        "ruleSelector": match_all,
        "scrapeInterval": INTERVAL,
        "evaluationInterval": INTERVAL,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": {"runAsUser": 10001, "runAsNonRoot": True, "fsGroup": 10001},
        # the default probes are too slow for tests: they suit a Prometheus that reads old data at its start
        "containers": [
            {"name": "prometheus", "startupProbe": _QUICK, "readinessProbe": _QUICK},
            {"name": "config-reloader", "args": _RELOADER},
        ],
    }
    return {"apiVersion": _API, "kind": "Prometheus", "metadata": {"name": NAME}, "spec": spec}


def _selector(labels: dict[str, str]) -> str:
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"


# ---- without the Prometheus operator ---------------------------------------------------------------------------------


def start_static_prometheus(kube: Kubectl, cluster: str) -> Prometheus:
    """Start a Prometheus that needs no operator: it scrapes a broker, a client and the operator by their DNS names,
    with the alerts about the operator. Its jobs are broker, client and operator."""
    jobs = {
        "broker": f"{cluster}-broker-0.{cluster}-broker:8082",
        "client": f"{STATIC_NAME}-client:9100",
        "operator": "migratory-metrics.migratory-system:8080",
    }
    config = {
        # on a busy machine: a time further than two and a half intervals from a scrape is not covered
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in jobs.items()
        ],
        "rule_files": ["/config/rules.yml"],
    }
    (rules,) = yaml.safe_load_all(chart_objects(kube.namespace, ("prometheusrule",), ()))
    groups = [group for group in rules["spec"]["groups"] if group["name"] == "migratory-operator"]
    kube.apply(
        _static_object(
            "ConfigMap", data={"prometheus.yml": json.dumps(config), "rules.yml": json.dumps({"groups": groups})}
        ),
        _headless_service(STATIC_NAME, {"app": STATIC_NAME}, 9090),
        _headless_service(f"{STATIC_NAME}-client", CLIENT_LABELS, 9100),
        _static_pod(),
    )
    kube.until(lambda: kube("wait", "--for=condition=Ready", f"pod/{STATIC_NAME}", "--timeout=1s"), "Prometheus", 120)
    return Prometheus(kube, (STATIC_NAME, "9090"))


def _static_object(kind: str, name: str = STATIC_NAME, **fields: object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": {"app": STATIC_NAME}}, **fields}


def _headless_service(name: str, selector: dict[str, str], port: int) -> Object:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector, "ports": [{"port": port}]}
    return _static_object("Service", name, spec=spec)


def _static_pod() -> Object:
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
    return _static_object(
        "Pod",
        spec={
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsUser": 10001, "runAsNonRoot": True, "fsGroup": 10001},
            "containers": [container],
            "volumes": [{"name": "config", "configMap": {"name": STATIC_NAME}}, {"name": "data", "emptyDir": {}}],
        },
    )
