"""`python -m migratory_node.chart`: writes manifests/install from the chart, with helm, and the chart's README and the
schema of its values.

Tests render and install the chart with the functions here. helm is on PATH, or is built from its Go module.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from migratory_resources.crd.definitions import whole_cluster_schema

from migratory_node.binaries import build_go_tool
from migratory_node.kubectl import Kubectl
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


def install_operator(kube: Kubectl) -> None:
    """Install an operator of kubectl's namespace alone, as the release and deployment "own"."""
    options = "operator.scope=namespace,operator.resyncSeconds=2,crds.upgrade=false"
    run_helm(kube.kubeconfig, kube.namespace, "install", "own", str(CHART), "--skip-crds", "--set", options)


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
    spec = _closed(whole_cluster_schema())
    counted = Counter(json.dumps(part) for part in _parts(spec))
    repeated = [text for text, count in counted.items() if count > 1 and len(text) > _SHARED_CHARACTERS]
    definitions: dict[str, Any] = {}
    shared = _shared(spec, {text: f"part-{number}" for number, text in enumerate(repeated)}, definitions)
    schema["properties"]["cluster"]["properties"]["spec"] = {"description": "Desired state", **shared}
    own = {name: part for name, part in schema["definitions"].items() if not name.startswith("part-")}
    schema["definitions"] = own | definitions
    return json.dumps(schema, indent=2) + "\n"


_SHARED_CHARACTERS = 400
"""Characters of a schema from which on one that occurs several times is written once."""


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every schema inside of a schema, without its description."""
    for inner in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
        if isinstance(inner, dict):
            yield _undescribed(inner)
            yield from _parts(inner)


def _shared(schema: dict[str, Any], names: dict[str, str], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which the parts that `names` has, by their text, are references to `definitions`."""

    def reference(inner: dict[str, Any]) -> dict[str, Any]:
        part = _undescribed(inner)
        name = names.get(json.dumps(part))
        if name is None:
            return _shared(inner, names, definitions)
        if name not in definitions:
            definitions[name] = _shared(part, names, definitions)
        return {"$ref": f"#/definitions/{name}"}

    made = dict(schema)
    if "properties" in made:
        made["properties"] = {name: reference(inner) for name, inner in made["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = reference(made[key])
    return made


def _undescribed(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "description"}


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
