"""A real Prometheus in a test's namespace: it scrapes what ServiceMonitors and PodMonitors there say, and keeps the
rules of PrometheusRules.

The Prometheus operator that sees to it runs beside the tests and looks at that namespace alone, so that tests in
others are not in its way. What it needs of the cluster, its definitions, stays: as in a cluster whose administrator
installed them.
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

from migratory_node import monitoring, rendered
from migratory_node.kubectl import Kubectl, Object, Refused
from migratory_node.places import Places

NAME = "watch"
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
"""What the operator gives it, but for the last: of changes that follow one another within seconds its watch misses
some, and it looks by itself every three minutes."""
INTERVAL = "1s"
"""Of scrapes and of rules, where a monitor or a group of rules names none."""
OBJECTS = ("podmonitor", "prometheusrule")
"""Templates of the chart that a Prometheus goes by, but for the operator's own ServiceMonitor."""


class Prometheus:
    """`url` is for who is in the cluster, the queries are asked through the API server.

    :param service: its name, and that of its port.
    """

    def __init__(self, kube: Kubectl, service: tuple[str, str] = (_SERVICE, "web")) -> None:
        self._kube = kube
        self.url = f"http://{service[0]}.{kube.namespace}.svc:9090"
        self._path = f"/api/v1/namespaces/{kube.namespace}/services/{':'.join(service)}/proxy/api/v1"

    def ask(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series now; nothing while Prometheus does not answer."""
        values = urllib.parse.urlencode({"query": query})
        return [(one["metric"], float(one["value"][1])) for one in self._get(f"query?{values}")["result"]]

    def value(self, query: str) -> float | None:
        """Of the only series; None when there is none."""
        found = self.ask(query)
        assert len(found) < 2, f"{query}: {found}"
        return found[0][1] if found else None

    def up(self, **labels: str) -> list[str]:
        """Pods that answered the last scrape, of the jobs and namespaces that `labels` name."""
        return sorted(metric["pod"] for metric, value in self.ask(f"up{_chosen(labels)}") if value == 1)

    def firing(self, alert: str, **labels: str) -> list[dict[str, str]]:
        """The labels of each such alert that fires now."""
        asked = _chosen({"alertname": alert, "alertstate": "firing", **labels})
        return [metric for metric, _ in self.ask(f"ALERTS{asked}")]

    def firing_now(self) -> list[str]:
        """Names of all alerts that fire."""
        return sorted({metric["alertname"] for metric, _ in self.ask('ALERTS{alertstate="firing"}')})

    def names(self) -> list[str]:
        """Of everything that was ever scraped or recorded."""
        found: list[str] = self._answer("label/__name__/values")
        return found

    def alerts(self) -> list[Object]:
        """With their annotations."""
        found: list[Object] = self._get("alerts")["alerts"]
        return found

    def rules(self) -> list[Object]:
        """Everything that was loaded, each with its health and what the last evaluation said."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str) -> Object:
        found: Object = self._answer(path)
        return found

    def _answer(self, path: str) -> Any:
        return json.loads(self._kube("get", "--raw", f"{self._path}/{path}"))["data"]


@contextmanager
def watching(kube: Kubectl, *, objects: Sequence[str] = OBJECTS, settings: Sequence[str] = ()) -> Iterator[Prometheus]:
    """In `kube`'s namespace, until the end of the context.

    :param objects: templates of the chart that are applied as it renders them for this namespace.
    :param settings: the chart's values for them, as `--set` takes them.
    """
    places = Places.usual()
    _define(kube)
    with tempfile.TemporaryDirectory() as folder, _operator(kube, places, Path(folder) / "operator.log"):
        kube.apply(*_access(kube.namespace), _prometheus())
        if objects:
            kube("apply", "-f", "-", given=chart_objects(kube.namespace, objects, settings))
        pod = f"prometheus-{NAME}-0"
        kube.until(lambda: kube("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=1s"), "Prometheus", 120)
        yield Prometheus(kube)
        # while there is still who takes it away
        kube("delete", "prometheus", NAME, "--wait=false")
        kube.until(lambda: kube.get("statefulset", f"prometheus-{NAME}") is None, "no Prometheus", 60)


def chart_objects(namespace: str, templates: Sequence[str], settings: Sequence[str]) -> str:
    """What the chart makes of `templates`, one or more, for an operator that looks after this namespace alone."""
    assert templates, "helm takes none for all"
    enabled = "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true"
    sets = (f"operator.scope=namespace,{enabled}", *settings)
    shown = [f"--show-only=templates/{name}.yaml" for name in templates]
    return rendered.template(*shown, *(part for one in sets for part in ("--set", one)), namespace=namespace)


def _define(kube: Kubectl) -> None:
    there = {one["metadata"]["name"] for one in kube.list("crd")}
    for kind, path in monitoring.definitions().items():
        name = f"{kind}.monitoring.coreos.com"
        if name not in there:
            kube("apply", "--server-side", "-f", str(path), limit=120)
            kube.until(partial(kube, "get", "--raw", f"/apis/{_API}/{kind}"), f"{name} served", 60)


@contextmanager
def _operator(kube: Kubectl, places: Places, log: Path) -> Iterator[None]:
    reloader = monitoring.images()[1]
    command = [
        str(monitoring.operator(places)),
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
        except (AssertionError, Refused) as error:
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
    """What Prometheus may see: who there is to be scraped."""
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
    everything: Object = {}
    spec = {
        "image": f"docker.io/{monitoring.images()[0]}",
        "imagePullPolicy": "IfNotPresent",
        "version": f"v{monitoring.VERSION}",
        "serviceAccountName": _SERVICE_ACCOUNT,
        "serviceMonitorSelector": everything,
        "podMonitorSelector": everything,
        "ruleSelector": everything,
        "scrapeInterval": INTERVAL,
        "evaluationInterval": INTERVAL,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": {"runAsUser": 10001, "runAsNonRoot": True, "fsGroup": 10001},
        # its own pace, of seconds between two looks, is for a Prometheus that reads old data at its start
        "containers": [
            {"name": "prometheus", "startupProbe": _QUICK, "readinessProbe": _QUICK},
            {"name": "config-reloader", "args": _RELOADER},
        ],
    }
    return {"apiVersion": _API, "kind": "Prometheus", "metadata": {"name": NAME}, "spec": spec}


def _chosen(labels: dict[str, str]) -> str:
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items()) + "}"
