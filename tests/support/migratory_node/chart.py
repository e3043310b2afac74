"""`python -m migratory_node.chart`: writes manifests/install from the chart, with helm, and the chart's README and the
schema of its values.

Tests render and install the chart with the functions here. helm is on PATH, or is built from its Go module.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from migratory_resources.crd.definitions import cluster_crd

from migratory_node.binaries import build_go_tool
from migratory_node.paths import ROOT, NodePaths
from migratory_node.processes import run

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
CHART = ROOT / "charts" / "migratory"
INSTALL = ROOT / "manifests" / "install"
SYSTEM = "migratory-system"
KUBERNETES = "--kube-version=1.34.0"
"""The option of helm that sets the version of Kubernetes. A helm that was not built by its own makefile assumes
1.20."""
WHOLE = "operator.scope=cluster,reports.enabled=true"
"""The values of an operator for all namespaces that makes reports."""
_HEAD = "# Rendered from charts/migratory by `make manifests`; change it there.\n"


def helm() -> str:
    """Return the path of helm, built if it is not on PATH."""
    return shutil.which("helm") or str(build_go_tool(NodePaths.default(), HELM, "helm"))


def render_chart(*arguments: str, name: str = "migratory", namespace: str = SYSTEM) -> str:
    """Return the output of `helm template` for the chart."""
    return run([helm(), "template", name, str(CHART), f"--namespace={namespace}", KUBERNETES, *arguments])


def run_helm(kubeconfig: Path, namespace: str, *arguments: str) -> str:
    """Run helm in a namespace of a cluster, and return its output."""
    return run([helm(), f"--kubeconfig={kubeconfig}", f"--namespace={namespace}", *arguments], timeout=300)


def operator() -> str:
    """Return the content of manifests/install/operator.yaml: the rendered chart without what only Helm needs, for all
    namespaces and with reports."""
    return _HEAD + render_chart("--no-hooks", "--set", f"crds.upgrade=false,{WHOLE}")


def readme() -> str:
    """Return the chart's README: a table of all values of values.yaml, described by the comments above them."""
    rows: list[str] = []
    path: list[str] = []
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.removeprefix("#").strip())
            continue
        key, colon, value = text.partition(":")
        if not colon:
            comment = []
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        path = [*path[:depth], key]
        name, value = ".".join(path), value.strip()
        inner = _flow(value)
        if inner:
            rows += [
                f"| `{name}.{below}` | `{json.dumps(what)}` | {' '.join(comment)} |" for below, what in inner.items()
            ]
        elif value:
            rows.append(f"| `{name}` | `{value}` | {' '.join(comment)} |")
        elif comment:
            rows.append(f"| **{name}** | | {' '.join(comment)} |")
        comment = []
    return _README.replace("@VALUES@", "\n".join(rows))


def _flow(value: str) -> dict[str, object]:
    """Return the paths and values of a mapping such as `{a: 1, b: {c: 2}}`; empty for anything else."""
    found = yaml.safe_load(value) if value.startswith("{") else None
    return dict(_paths(found, "")) if found else {}


def _paths(node: dict[str, object], path: str) -> Iterator[tuple[str, object]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


_README = """\
# Helm chart of Migratory

The operator, and with `cluster.create` a cluster. See docs/start/kubernetes.md for the installation and
docs/reference/operator.md for `cluster.spec`. This file is generated from values.yaml by `make manifests`.

```sh
helm install migratory charts/migratory --namespace market --create-namespace --set cluster.create=true --wait
helm test migratory --namespace market
```

| value | default | |
| --- | --- | --- |
@VALUES@
"""


def values_schema() -> str:
    """Return the chart's values.schema.json: the present one, with the schema of the resource for `cluster.spec`, so
    that helm refuses what the API server would drop or refuse."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    spec = cluster_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["properties"]["cluster"]["properties"]["spec"] = _closed(spec)
    return json.dumps(schema, indent=2) + "\n"


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of a custom resource definition for helm: without what only an API server knows, and without
    other fields than those that it names."""
    kept = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    closed = {key: value for key, value in kept.items() if key not in ("default", "format")}
    if "properties" in closed:
        closed["properties"] = {name: _closed(inner) for name, inner in closed["properties"].items()}
        closed["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(closed.get(key), dict):
            closed[key] = _closed(closed[key])
    return closed


def write() -> None:
    """Write the values' schema, the README and manifests/install."""
    (CHART / "values.schema.json").write_text(values_schema())
    (CHART / "README.md").write_text(readme())
    (INSTALL / "operator.yaml").write_text(operator())


if __name__ == "__main__":
    write()
