"""Fetches a finished report from Kubernetes, for `migratory sla fetch`."""

from __future__ import annotations

import base64
import gzip
import zlib
from dataclasses import dataclass

from migratory_resources.report.status import FINAL_PHASES

from migratory_operator.api.kubernetes import KINDS_BY_NAME, REPORT, KubernetesApi
from migratory_operator.names import Object


class ReportUnavailable(Exception):
    """A report that does not exist, or whose files can't be read; the message says which."""


@dataclass(frozen=True)
class FetchedReport:
    """A finished report. `verdict` is None if it failed; `message` says why, or summarizes the result."""

    verdict: str | None
    message: str
    files: dict[str, bytes]


async def fetch(api: KubernetesApi, namespace: str, name: str) -> FetchedReport | None:
    """Return a finished report, also a failed one (without files). Return None while it runs.

    :raises ReportUnavailable: there is no such report, or its files are gone.
    :raises ApiError: a request was rejected or not answered.
    """
    report = await api.get(REPORT, namespace, name)
    if report is None:
        raise ReportUnavailable(f"SLAReport {name} does not exist in namespace {namespace}")
    status = report.get("status", {})
    if status.get("phase") not in FINAL_PHASES:
        return None
    complete: Object = next(
        (condition for condition in status.get("conditions", ()) if condition["type"] == "Complete"), {}
    )
    message = complete.get("message", "")
    if status["phase"] == "Failed":
        return FetchedReport(None, f"{complete.get('reason', '?')}: {message}", {})
    config_map = await api.get(KINDS_BY_NAME["ConfigMap"], namespace, status["result"]["configMap"])
    if config_map is None:
        raise ReportUnavailable(f"ConfigMap {status['result']['configMap']} with the report's files does not exist")
    try:
        files = {
            file.removesuffix(".gz"): gzip.decompress(base64.b64decode(data))
            for file, data in config_map.get("binaryData", {}).items()
        }
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ReportUnavailable(
            f"ConfigMap {config_map['metadata']['name']} has files that can't be unpacked: {error}"
        ) from error
    return FetchedReport(status["verdict"], message, files)
