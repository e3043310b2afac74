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
    """Raised when a report does not exist, or its files are missing or can't be read; the message says which."""


@dataclass(frozen=True)
class FetchedReport:
    """A finished report, with its files by name. `verdict` is `met`, `missed` or `insufficient`, and `message`
    summarizes the result. If the report failed, `verdict` is None, there are no files, and `message` says why."""

    verdict: str | None
    message: str
    files: dict[str, bytes]


async def fetch(api: KubernetesApi, namespace: str, name: str) -> FetchedReport | None:
    """Return a finished report with its files unpacked; a failed one has no verdict and no files. Return None while the
    report is not finished.

    :raises ReportUnavailable: there is no such report, or its files are missing or can't be unpacked.
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
