"""The node's programs, and images that contain them.

Those of Go modules (the node, `pause`, the Prometheus operator, Helm) are built here, each once for its sources. Those
of Debian's packages are only looked up: an error names the packages to install.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from migratory_node.paths import MONITORING_SOURCES, SOURCES, NodeError, NodePaths
from migratory_node.processes import run

DEBIAN = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
    "openssl": "openssl",
}
"""Programs of the node, and the Debian packages that have them."""
FOR_IMAGES = {"docker": "docker.io", "dockerd": "docker.io", "debootstrap": "debootstrap"}
"""Programs that build images, and their base image where there is no registry."""
PLUGINS = Path("/usr/lib/cni")
PAUSE = "migratory-node/pause:1"
OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator"
_SYSTEM_PATH = "/usr/sbin:/sbin"


def missing_packages(programs: dict[str, str]) -> list[str]:
    """Add the system folders to PATH. Return the packages of those programs, and of the network plugins, that are
    missing.

    Programs are looked for, not packages: another package may have installed them.
    """
    os.environ["PATH"] = f"{os.environ['PATH']}:{_SYSTEM_PATH}"
    packages = {package for program, package in programs.items() if shutil.which(program) is None}
    if not (PLUGINS / "bridge").exists():
        packages.add("containernetworking-plugins")
    return sorted(packages)


def check_programs() -> None:
    """Check that the node's programs are installed and that this process is root.

    :raises NodeError: a program is missing (the text has the command that installs it), or this is not root.
    """
    if packages := missing_packages(DEBIAN):
        raise NodeError(
            f"missing programs; install them with: apt-get install --no-install-recommends {' '.join(packages)}"
        )
    if os.geteuid() != 0:
        raise NodeError("a node needs root: it makes network bridges, mounts and containers")


def kubectl() -> str:
    """Return kubectl from PATH or from beside this Python (dependency group `cluster`). :raises NodeError: neither"""
    beside = Path(sys.executable).with_name("kubectl")
    found = shutil.which("kubectl") or (str(beside) if beside.exists() else None)
    if found is None:
        raise NodeError("no kubectl on PATH: install the dependency group `cluster` (pip install --group cluster)")
    return found


def node_binary(paths: NodePaths) -> Path:
    """Return the node's binary, built unless it exists for these sources. A build takes minutes of all cores.

    :raises NodeError: no Go compiler, or the build fails.
    """
    version = re.search(r"k8s\.io/kubernetes v(1\.(\d+)\.\d+)", (SOURCES / "go.mod").read_text())
    if version is None:
        raise NodeError(f"{SOURCES / 'go.mod'} names no k8s.io/kubernetes")
    set_version = "-X k8s.io/component-base/version."
    flags = f"-s -w {set_version}gitVersion=v{version[1]} {set_version}gitMajor=1 {set_version}gitMinor={version[2]}"
    return build(paths, "kubenode", ".", flags)


def pause_binary(paths: NodePaths) -> Path:
    return build(paths, "pause", "./pause", "-s -w")


def monitoring_binary(paths: NodePaths, program: str) -> Path:
    """Return the binary of the Prometheus operator's `operator` or `prometheus-config-reloader`, built unless it
    exists. A build takes a minute on two cores after the node's build, which compiles most of their modules."""
    name = f"prometheus-{program.removeprefix('prometheus-')}"
    return build(paths, name, f"{OPERATOR_MODULE}/cmd/{program}", "-s -w", MONITORING_SOURCES)


class SourcePatch(NamedTuple):
    """A change of a module before its build. `identity` is the text of the change; `apply` makes it and returns the
    path of the changed go.mod."""

    identity: str
    apply: Callable[[], Path]


def build(
    paths: NodePaths, name: str, package: str, flags: str, sources: Path = SOURCES, patch: SourcePatch | None = None
) -> Path:
    digest = hashlib.sha256(flags.encode() + (patch.identity.encode() if patch is not None else b""))
    for source in [*sorted(sources.rglob("*.go")), sources / "go.mod", sources / "go.sum"]:
        digest.update(source.read_bytes())
    path = paths.binaries / f"{name}-{digest.hexdigest()[:12]}"
    if not path.exists():
        if shutil.which("go") is None:
            raise NodeError("no Go compiler: install Go 1.25 or newer; the node is built from Go modules")
        paths.binaries.mkdir(parents=True, exist_ok=True)
        print(f"Building {name} (the first time takes minutes)", file=sys.stderr)
        unfinished = path.with_suffix(".new")
        changed = [f"-modfile={patch.apply()}"] if patch is not None else []
        command = ["go", "build", *changed, "-trimpath", "-ldflags", flags, "-o", str(unfinished), package]
        result = subprocess.run(command, cwd=sources, env={**os.environ, "CGO_ENABLED": "0"}, check=False)
        if result.returncode:
            raise NodeError(f"go build of {name} failed; see its output above")
        unfinished.rename(path)
    return path


def pause_image(binary: Path) -> bytes:
    return image_archive({"pause": binary}, {PAUSE: "/pause"})


def image_archive(files: Mapping[str, Path], entrypoints: Mapping[str, str]) -> bytes:
    """Return images that contain only `files`, by their paths, as `docker save` writes them.

    :param entrypoints: by the image's tag.
    """
    layer = _tar({name: (path.read_bytes(), 0o755) for name, path in files.items()})
    parts = {"layer.tar": (layer, 0o644)}
    manifest = []
    for number, (tag, entrypoint) in enumerate(entrypoints.items()):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [entrypoint], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
        parts[f"{number}.json"] = (json.dumps(config).encode(), 0o644)
        manifest.append({"Config": f"{number}.json", "RepoTags": [f"docker.io/{tag}"], "Layers": ["layer.tar"]})
    return _tar({**parts, "manifest.json": (json.dumps(manifest).encode(), 0o644)})


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (data, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def build_go_tool(paths: NodePaths, module: str, name: str) -> Path:
    """Return a program of a Go module such as "helm.sh/helm/v3/cmd/helm@v3.19.0", built unless it exists."""
    path = paths.binaries / f"{name}-{hashlib.sha256(module.encode()).hexdigest()[:12]}"
    if not path.exists():
        paths.binaries.mkdir(parents=True, exist_ok=True)
        print(f"Building {module} (the first time takes minutes)", file=sys.stderr)
        folder = paths.binaries / "new"
        run(["go", "install", "-trimpath", "-ldflags=-s -w", module], env={**os.environ, "GOBIN": str(folder)})
        (folder / name).rename(path)
    return path
