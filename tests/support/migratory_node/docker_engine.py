"""A Docker engine that builds images, and a base image, for machines without an engine or an image registry."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from migratory_node.paths import NodeError, NodePaths
from migratory_node.processes import Processes, run, succeeds, unmount_below

BASE = "migratory-base:trixie"
_MIRROR = "http://deb.debian.org/debian"


def ensure_running(paths: NodePaths) -> str:
    """Return the address of an engine: `DOCKER_HOST` or the usual socket if one answers there, else that of an engine
    started here. Raise NodeError when a program is missing or the started engine does not answer.

    The started one has no network and changes no firewall rules: builds use the machine's network.
    """
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if shutil.which("docker") is None:
        raise NodeError("no docker client: apt-get install --no-install-recommends docker.io")
    if _answers(host):
        return host
    folder = paths.cache / "engine"
    socket = folder / "engine.sock"
    folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(folder)
    if shutil.which("dockerd") is None:
        raise NodeError("no dockerd: apt-get install --no-install-recommends docker.io")
    processes.start(
        "dockerd",
        [
            "dockerd",
            f"--data-root={folder}/data",
            f"--exec-root={folder}/exec",
            f"--pidfile={folder}/dockerd.own-pid",
            f"--host=unix://{socket}",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
            "--bridge=none",
        ],
    )
    processes.wait("Docker engine", lambda: _answers(f"unix://{socket}"), 60, "dockerd")
    return f"unix://{socket}"


def running(paths: NodePaths) -> bool:
    """Return whether the engine that `ensure_running` started still runs."""
    return Processes(paths.cache / "engine").running("dockerd")


def stop(paths: NodePaths) -> None:
    """Stop the engine that `ensure_running` started. Its images stay."""
    folder = paths.cache / "engine"
    Processes(folder).stop("dockerd")
    unmount_below(folder)


def ensure_base_image(paths: NodePaths, host: str) -> str:
    """Return the tag of an image with Python on Debian, made of Debian's packages unless the engine has it. Raise
    NodeError without debootstrap."""
    docker = ["docker", "--host", host]
    if succeeds([*docker, "image", "inspect", BASE]):
        return BASE
    if shutil.which("debootstrap") is None:
        raise NodeError("no debootstrap: apt-get install --no-install-recommends debootstrap")
    folder = paths.cache / "base"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packages = "--include=python3,python3-venv,ca-certificates"
    run(["debootstrap", "--variant=minbase", packages, "trixie", str(folder), _MIRROR])
    run(["chroot", str(folder), "apt-get", "clean"])
    for unused in ("var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(folder / unused, ignore_errors=True)
        (folder / unused).mkdir()
    _import(folder, docker)
    shutil.rmtree(folder)
    return BASE


def _import(folder: Path, docker: list[str]) -> None:
    archive = folder.with_suffix(".tar")
    run(["tar", "-C", str(folder), "-cf", str(archive), "."])
    run([*docker, "import", str(archive), BASE])
    archive.unlink()


def _answers(host: str) -> bool:
    return succeeds(["docker", "--host", host, "version"])
