"""`spark-submit … driver.py REQUEST.json`: the Spark driver of an SLAReport resource, which writes the report into a
ConfigMap.

Exit code: 0 if the result is in the ConfigMap, be it a verdict or the reason for which there is none; else 70, for
example because the request cannot be read.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import urllib3

from migratory_spark.jobs.command_line import INTERNAL, BadInput, ExitOnError, SamplesUnreadable
from migratory_spark.jobs.sla_report import add_to_history, make_report
from migratory_spark.pod import request, result
from migratory_spark.prometheus.options import DELAY_MS
from migratory_spark.session import submitted_session

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT = 10.0
"""Seconds for a request to the API server."""
_RETRIES = 8
"""Retries of a request, with waits of up to 15 s between: an API server that is being replaced is away for a minute."""


class ResultRejected(Exception):
    """Raised when the API server rejected the result, or was not available at any of the retries (for a minute or
    more). The message has its answer, or the error of the connection."""


def main(path: Path) -> int:
    """Make the report that the file at `path` requests, and store it, or the reason for which there is none, in the
    ConfigMap. Return the exit code: 0 if one of them is stored, else INTERNAL. Raises an error if the request or the
    service account's files cannot be read."""
    pod_request = request.read(path)
    try:
        patch_config_map(pod_request.namespace, pod_request.config_map, _make_result(pod_request))
    except ResultRejected as error:
        print(f"sla report: the result is lost: {error}", file=sys.stderr)
        return INTERNAL
    return 0


def _make_result(pod_request: request.PodRequest) -> dict[str, Any]:
    """Make the report, add it to the history if the request names one, and return the fields of the ConfigMap. Return
    those of a failure for every error. Wait first until the window's samples have arrived, at most DELAY_MS."""
    try:
        report_options = request.report_options(pod_request, request.prometheus_settings())
        # Spark's start took longer, unless the window ends in the future: reports of a schedule are final.
        time.sleep(min(DELAY_MS / 1000, max(0.0, report_options.end + DELAY_MS / 1000 - time.time())))
        report = make_report(
            report_options, request.objectives(pod_request), partial(submitted_session, pod_request.run)
        )
        add_to_history(report_options, report)
        from migratory_spark.render.page import render_page

        return result.success(pod_request.run, report, render_page)
    # What a server sent stays in the log: not everybody who reads the report's status may read the server.
    except BadInput as error:
        print(f"sla report: {error.message}", file=sys.stderr)
        message = error.message if error.__cause__ is None else result.NO_SAMPLES
        return result.failure(pod_request.run, "InvalidInput", message)
    except SamplesUnreadable as error:
        print(f"sla report: {error.message}", file=sys.stderr)
        return result.failure(pod_request.run, "SamplesUnreadable", result.unreadable_message(error.message))
    except Exception as error:  # noqa: BLE001 - the operator waits for a result, and the log has the traceback
        traceback.print_exception(error)
        message = f"{type(error).__name__}; the log of the driver's pod has the traceback"
        return result.failure(pod_request.run, "InternalError", message)


def patch_config_map(
    namespace: str, name: str, data: Mapping[str, Any], account: Path = _SERVICE_ACCOUNT, url: str | None = None
) -> None:
    """Merge `data` into the fields of a ConfigMap. Retry for about a minute while the API server is not available.
    Raises ResultRejected, and OSError if a file of the service account cannot be read.

    :param data: top-level fields of the ConfigMap, such as `data` and `binaryData`.
    :param account: the folder of the service account's token (`token`) and certificate authority (`ca.crt`).
    :param url: the API server; None for the pod's own cluster.
    """
    retries = urllib3.Retry(
        total=_RETRIES,
        backoff_factor=0.5,
        backoff_max=15,
        status_forcelist=(429, 500, 502, 503, 504),
        allowed_methods=None,  # a merge patch is idempotent
        raise_on_status=False,
    )
    server = url or f"https://{_host()}"
    headers = {
        "Authorization": f"Bearer {(account / 'token').read_text().strip()}",
        "Content-Type": "application/merge-patch+json",
    }
    with urllib3.PoolManager(ca_certs=str(account / "ca.crt"), timeout=_TIMEOUT, retries=retries) as pool:
        try:
            response = pool.request(
                "PATCH", f"{server}/api/v1/namespaces/{namespace}/configmaps/{name}", json=dict(data), headers=headers
            )
        except urllib3.exceptions.HTTPError as error:
            raise ResultRejected(f"no answer from the API server: {error}") from error
    if response.status >= 300:
        raise ResultRejected(f"ConfigMap {name}: {response.status} {response.data.decode(errors='replace')[:300]}")


def _host() -> str:
    """Return host and port of the API server of the pod's cluster, from the environment."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    return f"{f'[{host}]' if ':' in host else host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"


if __name__ == "__main__":
    with ExitOnError():
        code = main(Path(sys.argv[1]))
    sys.exit(code)
