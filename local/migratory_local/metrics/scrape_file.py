"""Reads additional scrape targets from a file, in the JSON format of Prometheus's file-based service discovery
(file_sd).

`migratory bench run --metrics-targets FILE` writes such a file, and `migratory up --scrape FILE` reads it. The file may
appear later, change, and disappear.

    [{"targets": ["127.0.0.1:23017"], "labels": {"job": "migratory-bench"}}]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from migratory_local import LocalError

DEFAULT_JOB = "scrape"
"""The label `job` of targets that have none."""
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")
_LABEL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_MAX_BYTES = 1024 * 1024
"""Bytes of the largest scrape file that is read; thousands of targets fit."""


@dataclass(frozen=True)
class ScrapeTarget:
    """A `host:port` that serves /metrics, and the labels that are added to its series. `parse_targets` always gives it
    a label `job`."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


class InvalidTargets(ValueError):
    """Raised when the content of a scrape file is invalid. The message says why, without the file's name."""


def parse_targets(text: str) -> list[ScrapeTarget]:
    """Return the targets in a scrape file's content, in its order. A group without the label `job` gets `DEFAULT_JOB`.

    :raises InvalidTargets: the content is invalid; the message names the group and the value.
    """
    try:
        groups = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidTargets(f"is not JSON: {error}") from None
    if not isinstance(groups, list):
        raise InvalidTargets("is not a list of target groups")
    return [target for number, group in enumerate(groups) for target in _parse_group(f"[{number}]", group)]


def _parse_group(path: str, group: Any) -> list[ScrapeTarget]:
    """Return the targets of one group. `path` names the group in the text of an error.

    :raises InvalidTargets: the group, a label or an address is invalid.
    """
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise InvalidTargets(f'{path} is not {{"targets": ["HOST:PORT", ...], "labels": {{...}}}}')
    labels = group.get("labels") or {}
    if not isinstance(labels, dict):
        raise InvalidTargets(f"{path}.labels is not an object")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or not isinstance(value, str):
            raise InvalidTargets(f"{path}.labels: {name!r}: {value!r} is not a valid label")
    for address in group["targets"]:
        match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if match is None or not 0 < int(match[1]) < 65_536:
            raise InvalidTargets(f"{path}.targets: {address!r} is not HOST:PORT")
    return [ScrapeTarget(address, {"job": DEFAULT_JOB, **labels}) for address in group["targets"]]


class ScrapeFile:
    """A file of scrape targets, which the runner reads about every second. `targets` are those of the last valid
    content, none before the first `read`. Invalid content causes one warning and leaves `targets` as they were.

    :param warn: shows a warning to the user.
    :raises LocalError: the file's name does not end with .json, which Prometheus requires.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        if path.suffix != ".json":
            raise LocalError(f"--scrape {path}: the name must end with .json (Prometheus reads no other format here)")
        self.path = path.absolute()
        self.targets: list[ScrapeTarget] = []
        self._warn = warn
        self._last_problem = self._warned = ""

    def read(self) -> bool:
        """Read the file, set `targets`, and return whether they have changed.

        A missing or empty file has no targets. If the file cannot be read or is invalid, the targets stay and the
        result is False. If that happens for the same reason twice in a row, warn once.
        """
        try:
            with self.path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                raise InvalidTargets(f"is larger than {_MAX_BYTES:,} bytes")
            # The load generator creates the file, to check that it can, long before it knows the targets.
            targets = parse_targets(content.decode()) if content.strip() else []
        except FileNotFoundError:
            targets = []
        except (OSError, UnicodeDecodeError) as error:
            return self._on_problem(f"cannot be read: {getattr(error, 'strerror', None) or error}")
        except InvalidTargets as error:
            return self._on_problem(str(error))
        self._last_problem = self._warned = ""
        changed = targets != self.targets
        self.targets = targets
        return changed

    def _on_problem(self, problem: str) -> bool:
        """Record a problem and return False. Warn once when the same problem occurs twice in a row: the first time, the
        file may be incomplete because it is being written."""
        if problem == self._last_problem and problem != self._warned:
            self._warned = problem
            self._warn(f"warning: --scrape {self.path} {problem}; the targets stay as they were")
        self._last_problem = problem
        return False
