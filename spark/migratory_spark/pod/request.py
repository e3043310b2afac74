"""What a pod is asked: one JSON file, written by the operator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from migratory_resources.objectives import Objective, check_objectives
from pydantic import ValidationError

from migratory_spark.jobs.command_line import BadInput
from migratory_spark.jobs.sla_report import Question

FOLDER = Path("/etc/migratory/prometheus")
"""The same in the driver and in the executors, which ask the server themselves."""

_FILES = {
    "token": "tokenFile",
    "password": "passwordFile",
    "ca.crt": "caFile",
    "tls.crt": "certFile",
    "tls.key": "keyFile",
}
_USER = "username"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`config_map` takes the result of `run`; `history` is a folder, `zone` that of the report's hours and days."""

    run: str
    namespace: str
    config_map: str
    cluster: str
    prometheus: str
    start: datetime
    end: datetime
    objectives: list[dict[str, Any]]
    zone: str = "UTC"
    history: str | None = None


def read(path: Path) -> Request:
    """Raises OSError and msgspec.MsgspecError: there is nobody yet to whom it could be told."""
    return msgspec.json.decode(path.read_bytes(), type=Request)


def objectives(request: Request) -> Sequence[Objective]:
    """Raises BadInput."""
    try:
        found = [Objective.model_validate(one) for one in request.objectives]
        check_objectives(found)
    except (ValidationError, ValueError) as error:
        raise BadInput(f"objectives: {error}") from None
    return found


def question(request: Request, settings: Sequence[tuple[str, str]]) -> Question:
    """:param settings: of the Prometheus data source."""
    return Question(
        samples=None,
        prometheus=request.prometheus,
        settings=settings,
        start=request.start.timestamp(),
        end=request.end.timestamp(),
        objectives=None,
        cluster=request.cluster,
        window=None,
        zone=request.zone,
        replica_labels=(),
        json_file=None,
        html_file=None,
        history=None if request.history is None else Path(request.history),
    )


def settings(folder: Path = FOLDER) -> list[tuple[str, str]]:
    """Options of the data source; none where no Secret is mounted. Raises BadInput for one that holds nothing known."""
    if not folder.is_dir():
        return []
    found = [(option, str(folder / name)) for name, option in _FILES.items() if (folder / name).is_file()]
    if (folder / _USER).is_file():
        found.append(("user", (folder / _USER).read_text().strip()))
    if not found:
        allowed = ", ".join(sorted([*_FILES, _USER]))
        raise BadInput(f"the Secret for Prometheus has none of the keys {allowed}")
    return found
