"""The programs of a Prometheus in the cluster: the Prometheus operator's and Prometheus itself, each built from its Go
module, in images without anything else, so that no engine and no registry is needed. The custom resource definitions
are those of the operator's module.

Debian's Prometheus lacks the discovery by Kubernetes, which the operator's configuration needs. The module has every
discovery, and with them the libraries of two dozen clouds. So it is built from a copy that registers one discovery.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import cache
from pathlib import Path

from migratory_node.binaries import OPERATOR_MODULE, SourcePatch, build, image_archive, monitoring_binary
from migratory_node.paths import MONITORING_SOURCES, NodePaths
from migratory_node.processes import run

KINDS = ("prometheuses", "prometheusrules", "servicemonitors", "podmonitors", "probes")
"""The definitions that the operator needs to run a Prometheus, without those of Alertmanager and Thanos."""
RELOADER = "prometheus-config-reloader"
VERSION = "3.5.0"
"""Prometheus's version, by which the operator chooses its options. The module's own version is v0.305.0."""
_SERVER_MODULE = "github.com/prometheus/prometheus"
_SERVER_SOURCES = MONITORING_SOURCES / "server"
_PLUGINS = f"""\
package plugins

import _ "{_SERVER_MODULE}/discovery/kubernetes"
"""
# The module uses the client library before the one that the node is built with.
_CHANGE = (
    "cache.DefaultWatchErrorHandler(r, err)",
    "cache.DefaultWatchErrorHandler(context.Background(), r, err)",
)


def build_server(paths: NodePaths) -> Path:
    """Return the binary of Prometheus, built unless it exists. A build takes a minute and a half of one core, after
    the node and the operator."""
    patch = SourcePatch(f"{_PLUGINS}{_CHANGE}", lambda: _patch_sources(paths))
    flags = f"-s -w -X github.com/prometheus/common/version.Version={VERSION}"
    return build(paths, "prometheus-server", f"{_SERVER_MODULE}/cmd/prometheus", flags, _SERVER_SOURCES, patch)


def _patch_sources(paths: NodePaths) -> Path:
    copy = paths.cache / "prometheus-source"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(_module_folder(_SERVER_MODULE, _SERVER_SOURCES), copy / "module", copy_function=shutil.copyfile)
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


def build_operator(paths: NodePaths) -> Path:
    return monitoring_binary(paths, "operator")


@cache
def images() -> tuple[str, str]:
    """Return the image tags of Prometheus and of the config reloader. Other contents have other tags."""
    digest = hashlib.sha256(f"{VERSION}{_PLUGINS}{_CHANGE}".encode())
    for sources in (MONITORING_SOURCES, _SERVER_SOURCES):
        digest.update((sources / "go.sum").read_bytes())
    tag = digest.hexdigest()[:12]
    return f"migratory-node/prometheus:{tag}", f"migratory-node/config-reloader:{tag}"


def build_archive(paths: NodePaths) -> bytes:
    """Return the images of Prometheus and of the config reloader as `docker save` writes them."""
    files = {"bin/prometheus": build_server(paths), f"bin/{RELOADER}": monitoring_binary(paths, RELOADER)}
    prometheus, reloader = images()
    return image_archive(files, {prometheus: "/bin/prometheus", reloader: f"/bin/{RELOADER}"})


def crd_files() -> dict[str, Path]:
    """Return the files of the custom resource definitions by kind."""
    folder = _module_folder(OPERATOR_MODULE, MONITORING_SOURCES)
    folder = folder / "example" / "prometheus-operator-crd"
    return {kind: folder / f"monitoring.coreos.com_{kind}.yaml" for kind in KINDS}


def _module_folder(module: str, sources: Path) -> Path:
    """Return the folder of a module's sources. Download it if necessary."""
    run(["go", "mod", "download", module], cwd=sources)
    return Path(run(["go", "list", "-m", "-f", "{{.Dir}}", module], cwd=sources).strip())
