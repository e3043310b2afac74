"""What a Prometheus in the cluster is made of: the Prometheus operator's programs and Prometheus itself, each built of
its Go module as the node is, in images of nothing else: no engine and no registry is needed. The definitions are those
of the operator's module.

Debian's Prometheus would not do: it has no discovery by Kubernetes, which all that the operator writes goes by. The
module's has every discovery that there is, and with it the libraries of two dozen clouds; so it is built of a copy that
registers one.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import cache
from pathlib import Path

from migratory_node.binaries import OPERATOR_MODULE, Prepare, built, image_archive, monitoring_binary
from migratory_node.places import MONITORING_SOURCES, Places
from migratory_node.processes import run

KINDS = ("prometheuses", "prometheusrules", "servicemonitors", "podmonitors", "probes")
"""The definitions that the operator needs to run a Prometheus; it does without those of Alertmanager and Thanos."""
RELOADER = "prometheus-config-reloader"
VERSION = "3.5.0"
"""Of Prometheus: it decides which options the operator gives it. Its module counts otherwise, v0.305.0."""
_SERVER_MODULE = "github.com/prometheus/prometheus"
_SERVER_SOURCES = MONITORING_SOURCES / "server"
_PLUGINS = f"""\
package plugins

import _ "{_SERVER_MODULE}/discovery/kubernetes"
"""
# It was written for the client library before the one that the node is built with.
_CHANGE = (
    "cache.DefaultWatchErrorHandler(r, err)",
    "cache.DefaultWatchErrorHandler(context.Background(), r, err)",
)


def server(places: Places) -> Path:
    """Prometheus: a minute and a half of one core, behind the node and the operator."""
    prepare = Prepare(f"{_PLUGINS}{_CHANGE}", lambda: _with_one_discovery(places))
    flags = f"-s -w -X github.com/prometheus/common/version.Version={VERSION}"
    return built(places, "prometheus-server", f"{_SERVER_MODULE}/cmd/prometheus", flags, _SERVER_SOURCES, prepare)


def _with_one_discovery(places: Places) -> Path:
    copy = places.cache / "prometheus-source"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(_module(_SERVER_MODULE, _SERVER_SOURCES), copy / "module", copy_function=shutil.copyfile)
    for folder in (copy / "module").rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)
    (copy / "module").chmod(0o755)
    for path in (copy / "module" / "plugins").glob("*.go"):
        path.unlink()
    (copy / "module" / "plugins" / "plugins.go").write_text(_PLUGINS)
    changed = copy / "module" / "discovery" / "kubernetes" / "kubernetes.go"
    text = changed.read_text()
    assert text.count(_CHANGE[0]) == 1, changed
    changed.write_text(text.replace(*_CHANGE))
    for name in ("go.mod", "go.sum"):
        shutil.copyfile(_SERVER_SOURCES / name, copy / name)
    run(["go", "mod", "edit", f"-replace={_SERVER_MODULE}={copy / 'module'}", str(copy / "go.mod")])
    return copy / "go.mod"


def operator(places: Places) -> Path:
    return monitoring_binary(places, "operator")


@cache
def images() -> tuple[str, str]:
    """The tags of the images of Prometheus and of the config reloader: other contents have others."""
    digest = hashlib.sha256(f"{VERSION}{_PLUGINS}{_CHANGE}".encode())
    for sources in (MONITORING_SOURCES, _SERVER_SOURCES):
        digest.update((sources / "go.sum").read_bytes())
    tag = digest.hexdigest()[:12]
    return f"migratory-node/prometheus:{tag}", f"migratory-node/config-reloader:{tag}"


def archive(places: Places) -> bytes:
    """Both images, as `docker save` writes them."""
    files = {"bin/prometheus": server(places), f"bin/{RELOADER}": monitoring_binary(places, RELOADER)}
    of_prometheus, of_reloader = images()
    return image_archive(files, {of_prometheus: "/bin/prometheus", of_reloader: f"/bin/{RELOADER}"})


def definitions() -> dict[str, Path]:
    """Of the custom resources by kind, as the module has them."""
    folder = _module(OPERATOR_MODULE, MONITORING_SOURCES)
    folder = folder / "example" / "prometheus-operator-crd"
    return {kind: folder / f"monitoring.coreos.com_{kind}.yaml" for kind in KINDS}


def _module(module: str, sources: Path) -> Path:
    """Where Go keeps it, downloaded if need be."""
    run(["go", "mod", "download", module], cwd=sources)
    return Path(run(["go", "list", "-m", "-f", "{{.Dir}}", module], cwd=sources).strip())
