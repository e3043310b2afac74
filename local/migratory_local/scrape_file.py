"""Targets that others keep in a file, in the JSON of Prometheus's file_sd: `migratory bench run --metrics-targets FILE`
writes it, `migratory up --scrape FILE` follows it. The file may appear later, change, and go away.

    [{"targets": ["127.0.0.1:23017"], "labels": {"job": "migratory-bench"}}]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from migratory_local.errors import LocalError

DEFAULT_JOB = "scrape"
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_LABEL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Target:
    """One `host:port` that serves /metrics, and the labels that each of its series gets; `job` is always among them."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


class BadTargets(ValueError):
    """What is wrong with the file's content, without its name."""


def parse_targets(text: str) -> list[Target]:
    """:raises BadTargets: naming the group and the value."""
    try:
        groups = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTargets(f"is not JSON: {error}") from None
    if not isinstance(groups, list):
        raise BadTargets("is not a list of target groups")
    return [target for number, group in enumerate(groups) for target in _group(f"[{number}]", group)]


def _group(where: str, group: Any) -> list[Target]:
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise BadTargets(f'{where} is not {{"targets": ["HOST:PORT", ...], "labels": {{...}}}}')
    labels = group.get("labels") or {}
    if not isinstance(labels, dict):
        raise BadTargets(f"{where}.labels is not an object")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or not isinstance(value, str):
            raise BadTargets(f"{where}.labels: {name!r}: {value!r} is not a label that can be recorded")
    for address in group["targets"]:
        found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if found is None or not 0 < int(found[1]) < 65_536:
            raise BadTargets(f"{where}.targets: {address!r} is not HOST:PORT")
    return [Target(address, {"job": DEFAULT_JOB, **labels}) for address in group["targets"]]


class ScrapeFile:
    """Look at it every second or so. Bad content is warned of once and changes nothing, as with Prometheus.

    :raises LocalError: when Prometheus would not take a file of that name.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        if path.suffix != ".json":
            raise LocalError(f"--scrape {path}: its name must end with .json (Prometheus reads no other)")
        self.path = path.absolute()
        self.targets: list[Target] = []
        self._warn = warn
        self._suspect = self._warned = ""

    def look(self) -> bool:
        """Reads the file; True when `targets` is another than before."""
        try:
            with self.path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                raise BadTargets(f"is larger than {_MAX_BYTES:,} bytes")
            # The bench makes sure that it can write the file long before it knows what to write.
            found = parse_targets(content.decode()) if content.strip() else []
        except FileNotFoundError:
            found = []
        except (OSError, UnicodeDecodeError) as error:
            return self._bad(f"cannot be read: {getattr(error, 'strerror', None) or error}")
        except BadTargets as error:
            return self._bad(str(error))
        self._suspect = self._warned = ""
        changed = found != self.targets
        self.targets = found
        return changed

    def _bad(self, problem: str) -> bool:
        """At the second look: at the first one its writer may be in the middle of it."""
        if problem == self._suspect and problem != self._warned:
            self._warned = problem
            self._warn(f"warning: --scrape {self.path} {problem}; its targets stay as they were")
        self._suspect = problem
        return False
