"""`python -m migratory_node up|down|kubeconfig|images|load|volumes`: see `--help`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click

from migratory_node import engine, volumes
from migratory_node.cluster import Node
from migratory_node.places import ROOT, NodeError, Places
from migratory_node.processes import run, succeeds

STAGES = ("broker", "operator", "zookeeper")
KIND = "migratory"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A Kubernetes for the tests: the cluster of MIGRATORY_KUBECONFIG; or kind's, where kind is installed and Docker
    runs; or one node of our own."""


@main.command()
def up() -> None:
    """Start it, wait until it is ready, print its kubeconfig."""
    print(_kubeconfig_of(start=True))


@main.command()
def kubeconfig() -> None:
    """Print the path of its kubeconfig."""
    print(_kubeconfig_of(start=False))


@main.command()
def down() -> None:
    """End it, and its data."""
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
    """Build images (broker, operator, zookeeper unless named) and bring them into the node."""
    places = Places.usual()
    host = engine.engine(places)
    environment = {**os.environ, "DOCKER_HOST": host}
    names = stages or STAGES
    command = [str(ROOT / "docker" / "build"), "--base", base or engine.base(places, host), *names]
    if subprocess.run(command, env=environment, check=False).returncode:
        raise NodeError("the images were not built")
    os.environ["DOCKER_HOST"] = host
    loaded = [f"migratory-{stage}:{_version()}" for stage in names]
    if "MIGRATORY_KUBECONFIG" in os.environ:
        print("load them into your cluster yourself:", *loaded, file=sys.stderr)
    elif _kind():
        run(["kind", "load", "docker-image", "--name", KIND, *loaded])
    else:
        Node(places).load(loaded)


@main.command("volumes", hidden=True)
def serve_volumes() -> None:
    volumes.serve(Places.usual())


def _kubeconfig_of(*, start: bool) -> Path:
    given = os.environ.get("MIGRATORY_KUBECONFIG")
    if given:
        return Path(given)
    places = Places.usual()
    if _kind():
        path = places.cache / "kind.kubeconfig"
        if start and not succeeds(["kind", "export", "kubeconfig", "--name", KIND, "--kubeconfig", str(path)]):
            path.parent.mkdir(parents=True, exist_ok=True)
            run(["kind", "create", "cluster", "--name", KIND, "--kubeconfig", str(path), "--wait", "120s"])
        return path
    if start:
        return Node(places).up()
    return places.kubeconfig


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
