"""Reads the request of a report: a JSON file that the operator writes, and a Secret with credentials for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from migratory_resources.objectives import Objective, check_objectives
from pydantic import ValidationError

from migratory_spark.jobs.command_line import BadInput
from migratory_spark.jobs.sla_report import ReportOptions

SECRET_FOLDER = Path("/etc/migratory/prometheus")
"""The folder in which the Secret is mounted, in the driver and in the executors, which access the server themselves."""

_OPTION_OF_FILE = {
    "token": "tokenFile",
    "password": "passwordFile",
    "ca.crt": "caFile",
    "tls.crt": "certFile",
    "tls.key": "keyFile",
}
_USER_FILE = "username"


class PodRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a report on `cluster` from `start` to `end`.

    `run` identifies the report's run, whose result goes into the ConfigMap `config_map` of `namespace`. `prometheus`
    has the servers' URLs, separated by commas. `objectives` are as in the resource and not validated yet. `zone` is the
    time zone of hours and days, `history` the folder of the history, None for none.
    """

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


def read(path: Path) -> PodRequest:
    """Return the request in a file.

    Raises OSError and msgspec.MsgspecError: without a request it is unknown where a failure should be reported.
    """
    return msgspec.json.decode(path.read_bytes(), type=PodRequest)


def objectives(request: PodRequest) -> Sequence[Objective]:
    """Return the validated objectives of a request. Raises BadInput if one is invalid, or two contradict each other."""
    try:
        objectives = [Objective.model_validate(objective) for objective in request.objectives]
        check_objectives(objectives)
    except (ValidationError, ValueError) as error:
        raise BadInput(f"objectives: {error}") from None
    return objectives


def report_options(request: PodRequest, settings: Sequence[tuple[str, str]]) -> ReportOptions:
    """Return the options of the report that the request asks for. They name no result file and no objectives.

    :param settings: options of the Prometheus data source, by name.
    """
    return ReportOptions(
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


def prometheus_settings(folder: Path = SECRET_FOLDER) -> list[tuple[str, str]]:
    """Return the data source's options, as pairs of name and value, from the mounted Secret: the paths of its known
    files, and the content of `username`.

    Return none if the folder does not exist, which means that there is no Secret. Raises BadInput for a Secret without
    any known key.
    """
    if not folder.is_dir():
        return []
    settings = [(option, str(folder / name)) for name, option in _OPTION_OF_FILE.items() if (folder / name).is_file()]
    if (folder / _USER_FILE).is_file():
        settings.append(("user", (folder / _USER_FILE).read_text().strip()))
    if not settings:
        allowed = ", ".join(sorted([*_OPTION_OF_FILE, _USER_FILE]))
        raise BadInput(f"the Secret for Prometheus has none of the keys {allowed}")
    return settings
