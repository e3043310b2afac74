"""The command line of the tests' Kubernetes, `python -m migratory_node
up|down|kubeconfig|images|prepare|during|volumes`."""

from __future__ import annotations

import contextlib
import os
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

from migratory_node import chart, docker_engine, monitoring, volumes
from migratory_node.binaries import DEBIAN, FOR_IMAGES, missing_packages, node_binary, pause_binary
from migratory_node.cluster import Node
from migratory_node.paths import ROOT, NodeError, NodePaths

STAGES = ("broker", "operator", "zookeeper", "spark")
T = TypeVar("T")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A Kubernetes for the tests: the cluster of MIGRATORY_KUBECONFIG, or a node on this machine."""


@main.command()
def up() -> None:
    """Start the cluster, wait until it is ready, print its kubeconfig's path."""
    print(start())


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def during(command: tuple[str, ...]) -> None:
    """Run COMMAND with helm and a cluster that has this tree's images. A running cluster is used and stays; otherwise
    one is started and stopped. Prints the time of each step at the end."""
    durations: list[str] = []
    was_running = running()
    try:
        # in parallel: one step mostly computes, another mostly waits for the network
        with ThreadPoolExecutor() as pool:
            cluster = pool.submit(timed, durations, "cluster", start)
            helm = pool.submit(timed, durations, "helm", chart.helm)
            built = pool.submit(timed, durations, "images", build_images)
            # after the node, whose build compiles most of their modules
            cluster.result()
            watch = pool.submit(timed, durations, "prometheus", build_monitoring)
        helm.result()
        host = built.result()
        timed(durations, "images into it", lambda: load_images(host))
        load_archive(watch.result())
        code = timed(durations, "command", lambda: subprocess.run(command, check=False).returncode)
    finally:
        if not was_running:
            timed(durations, "stop", stop)
        print("cluster:", ", ".join(durations), file=sys.stderr)
    sys.exit(code)


@main.command()
@click.option("--behind", is_flag=True, help="Lower the priority after the images; for a session of its own (setsid).")
def prepare(behind: bool) -> None:
    """Build what `during` needs minutes for, without starting a cluster: this tree's images, and the Go programs.
    Prints the time of each step at the end. A Docker engine that it started is stopped on failure and SIGTERM;
    otherwise `during` uses and stops it."""
    durations: list[str] = []
    paths = NodePaths.default()
    was_running = docker_engine.running(paths)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        # First the images, which write gigabytes, before the tests beside it are sensitive to that.
        timed(durations, "images", build_images)
        if behind:
            yield_cores()
        timed(durations, "programs", build_programs)
    except BaseException:
        if not was_running:
            docker_engine.stop(paths)
        raise
    finally:
        print("prepared:", ", ".join(durations), file=sys.stderr)


@main.command()
def missing() -> None:
    """Print the Debian packages that are missing for a node on this machine and for image builds."""
    if not given_kubeconfig():
        print(*missing_packages({**DEBIAN, **FOR_IMAGES}))


@main.command()
def kubeconfig() -> None:
    """Print the path of the cluster's kubeconfig."""
    print(given_kubeconfig() or NodePaths.default().kubeconfig)


@main.command()
def down() -> None:
    """Stop the cluster and delete its data."""
    stop()


def stop() -> None:
    paths = NodePaths.default()
    if given_kubeconfig():
        print("MIGRATORY_KUBECONFIG names a cluster that was not started here; stop it yourself", file=sys.stderr)
        return
    Node(paths).down()
    docker_engine.stop(paths)


@main.command()
def images() -> None:
    """Build all images and those of the tests' Prometheus, and load them into the cluster."""
    load_images(build_images())
    load_archive(build_monitoring())


def timed(durations: list[str], name: str, what: Callable[[], T]) -> T:
    """Call `what` and return its value. Add the time that it took to `durations`, also when it fails."""
    began = time.monotonic()
    try:
        return what()
    finally:
        durations.append(f"{name} {time.monotonic() - began:.0f} s")


def _exit_on_signal(number: int, _: object) -> None:
    """Exit on the first signal. Ignore later ones: `make` forwards what its whole process group received."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def yield_cores() -> None:
    """Lower the priority of this process and its session: the kernel shares cores among sessions before processes."""
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    group = Path("/proc/self/autogroup")
    # some kernels lack it or refuse: then the build only competes more
    with contextlib.suppress(OSError):
        group.write_text("19")


def build_programs() -> None:
    """Build all Go programs, the node first: its build compiles most of the others' modules."""
    paths = NodePaths.default()
    if not given_kubeconfig():
        node_binary(paths)
        pause_binary(paths)
    build_monitoring()
    chart.helm()


def build_images() -> str:
    """Build images. Return the host of the Docker engine that has them. Raise NodeError when the build fails."""
    paths = NodePaths.default()
    host = docker_engine.ensure_running(paths)
    environment = {**os.environ, "DOCKER_HOST": host}
    command = [str(ROOT / "docker" / "build"), "--base", docker_engine.ensure_base_image(paths, host), *STAGES]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise NodeError("the images were not built; see the output above")
    return host


def load_images(host: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    loaded = [f"migratory-{stage}:{version}" for stage in STAGES]
    if given_kubeconfig():
        print("load these images into your cluster yourself:", *loaded, file=sys.stderr)
    else:
        Node(NodePaths.default()).import_from_engine(loaded, host)


def build_monitoring() -> bytes:
    """Build the programs of a Prometheus. Return the images of those that run in the cluster."""
    paths = NodePaths.default()
    monitoring.build_operator(paths)
    return monitoring.build_archive(paths)


def load_archive(archive: bytes) -> None:
    """Load images as `docker save` writes them into the node. For a given cluster only write the file and say where it
    is."""
    paths = NodePaths.default()
    if given_kubeconfig():
        path = paths.cache / "images.tar"
        path.write_bytes(archive)
        print(f"load the images of {path} into your cluster yourself", file=sys.stderr)
    else:
        Node(paths).import_archive(archive)


@main.command("volumes", hidden=True)
def serve_volumes() -> None:
    volumes.serve(NodePaths.default())


def given_kubeconfig() -> Path | None:
    """Return the kubeconfig of a cluster that was not started here, which MIGRATORY_KUBECONFIG names, or None."""
    given = os.environ.get("MIGRATORY_KUBECONFIG")
    return Path(given) if given else None


def running() -> bool:
    """Return whether there is a running cluster, which must then stay."""
    return given_kubeconfig() is not None or Node(NodePaths.default()).running


def start() -> Path:
    """Start the cluster unless it runs. Return its kubeconfig once it is ready."""
    return given_kubeconfig() or Node(NodePaths.default()).up()


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except NodeError as error:
        print(f"cluster: {error}", file=sys.stderr)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
