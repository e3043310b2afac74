"""The command line, `python -m migratory_supply licences|audit FILE`."""

from __future__ import annotations

import json
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import click

from migratory_supply.checks import licences, vulnerabilities
from migratory_supply.locks import DOCKER, IMAGES, TOOLS, read_versions

POLICY = DOCKER / "supply.toml"


@click.group()
def main() -> None:
    """Check what the images consist of."""


@main.command("licences")
@click.option("--policy", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=POLICY)
def check_licences(policy: Path) -> None:
    """Check the licences of the images' libraries, as the installed ones state them. Exit code 1 if one is not
    allowed."""
    allowed = tomllib.loads(policy.read_text("utf-8"))["licences"]
    names = {name for image in IMAGES for name in read_versions(image)} - allowed["exceptions"].keys()
    problems = []
    for name in sorted(names):
        try:
            stated = licences(metadata(name))
        except PackageNotFoundError:
            problems.append(f"{name} is not installed: run `make install`")
            continue
        if not stated or stated - set(allowed["allowed"]):
            problems.append(f"{name}: {', '.join(sorted(stated)) or 'no licence'} is not allowed by {policy.name}")
    _end(problems, f"{len(names)} libraries have allowed licences")


@main.command()
@click.argument("advisories", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--policy", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=POLICY)
def audit(advisories: Path, policy: Path) -> None:
    """Check the versions in the lock files against ADVISORIES, a JSON list of advisories in OSV's format. Exit code 1
    if one applies."""
    try:
        known = json.loads(advisories.read_text("utf-8"))
    except ValueError as error:
        raise click.UsageError(f"{advisories} is no JSON: {error}") from None
    if not isinstance(known, list):
        raise click.UsageError(f"{advisories} must be a list of advisories, as https://osv.dev has them")
    accepted = tomllib.loads(policy.read_text("utf-8"))["advisories"]["accepted"]
    problems = []
    for lock in (*IMAGES, *TOOLS):
        versions = read_versions(lock)
        for name, identifier in vulnerabilities(versions, known):
            if identifier not in accepted:
                problems.append(f"docker/locks/{lock}.txt: {name} {versions[name]} has {identifier}")
    _end(problems, f"none of {len(known)} advisories applies")


def _end(problems: list[str], text: str) -> None:
    click.echo("\n".join(problems) or text)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
