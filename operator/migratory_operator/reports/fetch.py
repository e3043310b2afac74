"""A finished report from the cluster: what `migratory sla fetch` gives."""

from __future__ import annotations

import base64
import gzip
import zlib
from dataclasses import dataclass

from migratory_resources.report.status import FINAL_PHASES

from migratory_operator.api import BY_NAME, REPORT, Api
from migratory_operator.names import Object


class NotThere(Exception):
    """No such report, or it has not ended, or has no such file; the text says which."""


@dataclass(frozen=True)
class Fetched:
    """`verdict` is None when the report failed; `message` says why then, and otherwise what came of it."""

    verdict: str | None
    message: str
    files: dict[str, bytes]


async def fetch(api: Api, namespace: str, name: str) -> Fetched | None:
    """None while it is being made.

    :raises NotThere: there is no such report, or what it names is gone.
    :raises ApiError:
    """
    report = await api.get(REPORT, namespace, name)
    if report is None:
        raise NotThere(f"there is no SLAReport {name} in namespace {namespace}")
    status = report.get("status", {})
    if status.get("phase") not in FINAL_PHASES:
        return None
    complete: Object = next((one for one in status.get("conditions", ()) if one["type"] == "Complete"), {})
    message = complete.get("message", "")
    if status["phase"] == "Failed":
        return Fetched(None, f"{complete.get('reason', '?')}: {message}", {})
    config_map = await api.get(BY_NAME["ConfigMap"], namespace, status["result"]["configMap"])
    if config_map is None:
        raise NotThere(f"ConfigMap {status['result']['configMap']}, in which the report was, is gone")
    try:
        files = {
            kept.removesuffix(".gz"): gzip.decompress(base64.b64decode(data))
            for kept, data in config_map.get("binaryData", {}).items()
        }
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise NotThere(
            f"ConfigMap {config_map['metadata']['name']}: what it holds can't be unpacked: {error}"
        ) from error
    return Fetched(status["verdict"], message, files)
