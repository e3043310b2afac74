"""What a Prometheus in the cluster is made of: the Prometheus operator of its Go module, and Debian's Prometheus.

The operator's two programs are built as the node is. Prometheus is the machine's own (`make debian`), in an image of
nothing but it and the C library: no engine and no registry is needed. The definitions are those of the module.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from functools import cache
from pathlib import Path

from migratory_node.binaries import OPERATOR_MODULE, image_archive, monitoring_binary
from migratory_node.places import MONITORING_SOURCES, NodeError, Places
from migratory_node.processes import run

KINDS = ("prometheuses", "prometheusrules", "servicemonitors", "podmonitors", "probes")
"""The definitions that the operator needs to run a Prometheus; it does without those of Alertmanager and Thanos."""
RELOADER = "prometheus-config-reloader"


def prometheus() -> Path:
    """:raises NodeError:"""
    found = shutil.which("prometheus")
    if found is None:
        raise NodeError("no prometheus on PATH: install Debian's package (make debian)")
    return Path(found).resolve()


@cache
def version() -> str:
    """Of the machine's Prometheus, as the operator takes it: it decides which options there are."""
    found = re.search(r"version (\d+\.\d+\.\d+)", run([str(prometheus()), "--version"]))
    if found is None:
        raise NodeError(f"{prometheus()} does not tell its version")
    return f"v{found[1]}"


def operator(places: Places) -> Path:
    return monitoring_binary(places, "operator")


@cache
def images() -> tuple[str, str]:
    """The tags of the images of Prometheus and of the config reloader: other contents have others."""
    digest = hashlib.sha256(version().encode())
    digest.update((MONITORING_SOURCES / "go.sum").read_bytes())
    tag = digest.hexdigest()[:12]
    return f"migratory-node/prometheus:{tag}", f"migratory-node/config-reloader:{tag}"


def archive(places: Places) -> bytes:
    """Both images, as `docker save` writes them."""
    program, reloader = prometheus(), monitoring_binary(places, RELOADER)
    libraries = [Path(path) for path in re.findall(r"(/\S+) \(0x", run(["ldd", str(program)]))]
    files = {"bin/prometheus": program, f"bin/{RELOADER}": reloader}
    files |= {str(path).lstrip("/"): path for path in libraries}
    of_prometheus, of_reloader = images()
    return image_archive(files, {of_prometheus: "/bin/prometheus", of_reloader: f"/bin/{RELOADER}"})


def definitions() -> dict[str, Path]:
    """Of the custom resources by kind, as the module has them."""
    run(["go", "mod", "download", OPERATOR_MODULE], cwd=MONITORING_SOURCES)
    folder = Path(run(["go", "list", "-m", "-f", "{{.Dir}}", OPERATOR_MODULE], cwd=MONITORING_SOURCES).strip())
    folder = folder / "example" / "prometheus-operator-crd"
    return {kind: folder / f"monitoring.coreos.com_{kind}.yaml" for kind in KINDS}
