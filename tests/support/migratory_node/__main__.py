"""`python -m migratory_node up|down|kubeconfig|images|prepare|during|volumes`: see `--help`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import click

from migratory_node import engine, monitoring, rendered, volumes
from migratory_node.binaries import DEBIAN, FOR_IMAGES, missing_packages, node_binary, pause_binary
from migratory_node.cluster import Node
from migratory_node.places import ROOT, NodeError, Places
from migratory_node.processes import run, succeeds

STAGES = ("broker", "operator", "zookeeper", "spark")
KIND = "migratory"
T = TypeVar("T")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A Kubernetes for the tests: the cluster of MIGRATORY_KUBECONFIG; or kind's, where kind is installed and Docker
    runs; or one node of our own."""


@main.command()
def up() -> None:
    """Start it, wait until it is ready, print its kubeconfig."""
    print(start())


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def during(command: tuple[str, ...]) -> None:
    """Run COMMAND with a cluster that has the images of this tree, and helm: one that runs is used and stays, else one
    is started and ended. What each part took is told at the end."""
    took: list[str] = []
    there = running()
    try:
        # side by side: one mostly computes, another mostly waits for the network
        with ThreadPoolExecutor() as pool:
            cluster = pool.submit(timed, took, "cluster", start)
            helm = pool.submit(timed, took, "helm", rendered.helm)
            built = pool.submit(timed, took, "images", build_images)
            # behind the node, whose build compiles most of what these are made of
            cluster.result()
            watch = pool.submit(timed, took, "prometheus", build_monitoring)
        helm.result()
        host = built.result()
        timed(took, "images into it", lambda: load_images(host))
        load_archive(watch.result())
        code = timed(took, "command", lambda: subprocess.run(command, check=False).returncode)
    finally:
        if not there:
            timed(took, "end", end)
        print("cluster:", ", ".join(took), file=sys.stderr)
    sys.exit(code)


@main.command()
@click.option(
    "--behind", is_flag=True, help="Leave the cores to others once there are images; for a session of its own (setsid)."
)
def prepare(behind: bool) -> None:
    """Make what `during` takes minutes for where nothing is kept, and start no cluster: this tree's images, and the
    programs that Go builds. What each part took is told at the end. Where it fails, or is ended by SIGTERM, an engine
    that it started ends as well; else `during` finds it, and ends it."""
    took: list[str] = []
    places = Places.usual()
    there = engine.running(places)
    signal.signal(signal.SIGTERM, _leave)
    try:
        # First what writes gigabytes, while those that it is run beside are not sensitive to that yet.
        timed(took, "images", build_images)
        if behind:
            yield_cores()
        timed(took, "programs", build_programs)
    except BaseException:
        if not there:
            engine.stop(places)
        raise
    finally:
        print("prepared:", ", ".join(took), file=sys.stderr)


@main.command()
def missing() -> None:
    """Print the Debian packages that are missing for a node of our own and for images."""
    if "MIGRATORY_KUBECONFIG" not in os.environ and not _kind():
        print(*missing_packages({**DEBIAN, **FOR_IMAGES}))


@main.command()
def kubeconfig() -> None:
    """Print the path of its kubeconfig."""
    print(kubeconfig_path())


@main.command()
def down() -> None:
    """End it, and its data."""
    end()


def end() -> None:
    places = Places.usual()
    if "MIGRATORY_KUBECONFIG" in os.environ:
        print("MIGRATORY_KUBECONFIG names a cluster that is not ours to end", file=sys.stderr)
        return
    if _kind():
        run(["kind", "delete", "cluster", "--name", KIND])
    else:
        Node(places).down()
        engine.stop(places)


@main.command()
@click.option("--base", help="The images' base; one made of Debian's packages where it can't be pulled.")
@click.argument("stages", nargs=-1)
def images(base: str | None, stages: tuple[str, ...]) -> None:
    """Build images, all of them unless some are named, and bring them into the node; without names also what the
    tests run a Prometheus of."""
    load_images(build_images(base, stages), stages)
    if not stages:
        load_archive(build_monitoring())


def timed(took: list[str], name: str, what: Callable[[], T]) -> T:
    """What it gives; how long that took is noted, also when it fails."""
    began = time.monotonic()
    try:
        return what()
    finally:
        took.append(f"{name} {time.monotonic() - began:.0f} s")


def _leave(number: int, _: object) -> None:
    """Once: `make` passes on what its whole group was sent."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def yield_cores() -> None:
    """The kernel shares cores among sessions before it looks at their processes' niceness."""
    os.nice(19)
    group = Path("/proc/self/autogroup")
    # a kernel without it, or one that refuses: what is made is the same, only less politely
    with contextlib.suppress(OSError):
        group.write_text("19")


def build_programs() -> None:
    """All that Go builds: the node, which most of the others' modules are compiled for, is first."""
    places = Places.usual()
    if "MIGRATORY_KUBECONFIG" not in os.environ and not _kind():
        node_binary(places)
        pause_binary(places)
    build_monitoring()
    rendered.helm()


def build_images(base: str | None = None, stages: tuple[str, ...] = ()) -> str:
    """The engine that has them then."""
    places = Places.usual()
    host = engine.engine(places)
    environment = {**os.environ, "DOCKER_HOST": host}
    names = stages or STAGES
    command = [str(ROOT / "docker" / "build"), "--base", base or engine.base(places, host), *names]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise NodeError("the images were not built")
    return host


def load_images(host: str, stages: tuple[str, ...] = ()) -> None:
    loaded = [f"migratory-{stage}:{_version()}" for stage in stages or STAGES]
    if "MIGRATORY_KUBECONFIG" in os.environ:
        print("load them into your cluster yourself:", *loaded, file=sys.stderr)
    elif _kind():
        run(["kind", "load", "docker-image", "--name", KIND, *loaded])
    else:
        Node(Places.usual()).load(loaded, host)


def build_monitoring() -> bytes:
    """All programs of a Prometheus in the cluster; the images of those that run there."""
    places = Places.usual()
    monitoring.operator(places)
    return monitoring.archive(places)


def load_archive(archive: bytes) -> None:
    """Images as `docker save` writes them."""
    if "MIGRATORY_KUBECONFIG" not in os.environ and not _kind():
        Node(Places.usual()).take(archive)
        return
    path = Places.usual().cache / "images.tar"
    path.write_bytes(archive)
    if "MIGRATORY_KUBECONFIG" in os.environ:
        print(f"load the images of {path} into your cluster yourself", file=sys.stderr)
    else:
        run(["kind", "load", "image-archive", "--name", KIND, str(path)])


@main.command("volumes", hidden=True)
def serve_volumes() -> None:
    volumes.serve(Places.usual())


def kubeconfig_path() -> Path:
    given = os.environ.get("MIGRATORY_KUBECONFIG")
    if given:
        return Path(given)
    places = Places.usual()
    return places.cache / "kind.kubeconfig" if _kind() else places.kubeconfig


def running() -> bool:
    """Whether there is a cluster already, which is somebody's who is not through with it."""
    if "MIGRATORY_KUBECONFIG" in os.environ:
        return True
    if _kind():
        return KIND in run(["kind", "get", "clusters"]).split()
    return Node(Places.usual()).running


def start() -> Path:
    """Its kubeconfig once it is ready; at once where it is already."""
    path = kubeconfig_path()
    if "MIGRATORY_KUBECONFIG" in os.environ:
        return path
    if not _kind():
        return Node(Places.usual()).up()
    if not succeeds(["kind", "export", "kubeconfig", "--name", KIND, "--kubeconfig", str(path)]):
        path.parent.mkdir(parents=True, exist_ok=True)
        run(["kind", "create", "cluster", "--name", KIND, "--kubeconfig", str(path), "--wait", "120s"])
    return path


def _version() -> str:
    """The images' tag: what the install manifests name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def _kind() -> bool:
    return shutil.which("kind") is not None and succeeds(["docker", "version"])


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except NodeError as error:
        print(f"cluster: {error}", file=sys.stderr)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
