"""An engine that builds images, and a base for them, where none runs and no image registry is reached."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from migratory_node.places import NodeError, Places
from migratory_node.processes import Processes, run, succeeds, unmount_below

BASE = "migratory-base:trixie"
_MIRROR = "http://deb.debian.org/debian"


def engine(places: Places) -> str:
    """`DOCKER_HOST` of an engine that answers; one of our own if there is no other.

    Ours has no network of its own and touches no firewall: builds use the machine's network.
    """
    given = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if shutil.which("docker") is None:
        raise NodeError("no docker client: apt-get install --no-install-recommends docker.io")
    if _answers(given):
        return given
    folder = places.cache / "engine"
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


def running(places: Places) -> bool:
    """Whether ours is."""
    return Processes(places.cache / "engine").running("dockerd")


def stop(places: Places) -> None:
    """Ours, if it runs. Its images stay."""
    folder = places.cache / "engine"
    Processes(folder).stop("dockerd")
    unmount_below(folder)


def base(places: Places, host: str) -> str:
    """An image with Python on Debian, made of Debian's packages if the engine has none yet."""
    docker = ["docker", "--host", host]
    if succeeds([*docker, "image", "inspect", BASE]):
        return BASE
    if shutil.which("debootstrap") is None:
        raise NodeError("no debootstrap: apt-get install --no-install-recommends debootstrap")
    folder = places.cache / "base"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    packages = "--include=python3,python3-venv,ca-certificates"
    run(["debootstrap", "--variant=minbase", packages, "trixie", str(folder), _MIRROR])
    run(["chroot", str(folder), "apt-get", "clean"])
    for waste in ("var/lib/apt/lists", "usr/share/doc", "usr/share/man"):
        shutil.rmtree(folder / waste, ignore_errors=True)
        (folder / waste).mkdir()
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
