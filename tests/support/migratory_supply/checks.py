"""Licences of libraries against a list of allowed ones, and versions against advisories in the format of OSV
(https://ossf.github.io/osv-schema/), from a file: nothing is asked of a network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageMetadata
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

OPERATORS = {"AND", "OR", "WITH"}


def licences(metadata: PackageMetadata) -> set[str]:
    """Return what a library states about its licence: the identifiers of its SPDX expression, else its classifiers,
    else its licence field. Empty if it states nothing."""
    if expressions := metadata.get_all("License-Expression"):
        return set(re.findall(r"[\w.+-]+", expressions[0])) - OPERATORS
    classifiers = [text for text in metadata.get_all("Classifier") or [] if text.startswith("License :: ")]
    return {text.rpartition(" :: ")[2] for text in classifiers} or set(metadata.get_all("License") or [])


def affects(affected: Mapping[str, Any], version: Version) -> bool:
    """Return whether an entry of an advisory's `affected` covers a version: it is listed, or within a range."""
    if version in {Version(text) for text in affected.get("versions", ())}:
        return True
    return any(
        _is_inside(events["events"], version)
        for events in affected.get("ranges", ())
        if events["type"] in {"ECOSYSTEM", "SEMVER"}
    )


def _is_inside(events: Iterable[Mapping[str, str]], version: Version) -> bool:
    """Return whether a version is within a range: after an `introduced`, before the next `fixed`, and not after the
    next `last_affected`."""
    ordered = sorted(((Version(text), kind) for event in events for kind, text in event.items() if kind != "limit"))
    inside = False
    for at, kind in ordered:
        if kind == "introduced":
            inside = inside or version >= at
        elif version >= at if kind == "fixed" else version > at:
            inside = False
    return inside


def vulnerabilities(versions: Mapping[str, str], advisories: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return library and identifier of each advisory that covers one of the versions. Withdrawn ones do not count."""
    found = set()
    for advisory in advisories:
        for affected in () if advisory.get("withdrawn") else advisory.get("affected", ()):
            package = affected.get("package", {})
            name = canonicalize_name(package.get("name", ""))
            if package.get("ecosystem") == "PyPI" and name in versions and affects(affected, Version(versions[name])):
                found.add((name, str(advisory["id"])))
    return sorted(found)
