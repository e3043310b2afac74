"""`spark-submit … sla_in_pod.py REQUEST.json`: the report of an SLAReport resource, from its pod into its ConfigMap.

Exit code: 0 when an answer is in the ConfigMap, be it a verdict or why there is none; else 70.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import urllib3

from migratory_spark.jobs.command_line import INTERNAL, BadInput, Unreadable
from migratory_spark.jobs.sla_report import add_to_history, answer
from migratory_spark.pod import request, result
from migratory_spark.session import submitted_session

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECONDS = 10.0
_TIMES = 8
"""With waits of up to 15 s between: an API server that is being replaced is away for a minute."""


class NotTaken(Exception):
    """The API server refused, or did not answer for minutes."""


def main(path: Path) -> int:
    asked = request.read(path)
    try:
        patch(asked.namespace, asked.config_map, _answer(asked))
    except NotTaken as error:
        print(f"sla_in_pod: the result is lost: {error}", file=sys.stderr)
        return INTERNAL
    return 0


def _answer(asked: request.Request) -> dict[str, Any]:
    try:
        question = request.question(asked, request.settings())
        report = answer(question, request.objectives(asked), partial(submitted_session, asked.run))
        add_to_history(question, report)
        from migratory_spark.render.page import render_page

        return result.answer(asked.run, report, render_page)
    except BadInput as error:
        return result.failure(asked.run, "BadQuestion", error.message)
    except Unreadable as error:
        return result.failure(asked.run, "SamplesUnreadable", error.message)
    except Exception as error:  # noqa: BLE001 - whoever waits for the result is told, and the log has all of it
        traceback.print_exception(error)
        return result.failure(asked.run, "InternalError", f"{type(error).__name__}: {error}")


def patch(namespace: str, name: str, data: Mapping[str, Any], account: Path = _ACCOUNT, url: str | None = None) -> None:
    """Raises NotTaken."""
    retries = urllib3.Retry(
        total=_TIMES,
        backoff_factor=0.5,
        backoff_max=15,
        status_forcelist=(429, 500, 502, 503, 504),
        allowed_methods=None,  # the same patch again changes nothing
        raise_on_status=False,
    )
    server = url or f"https://{_host()}"
    headers = {
        "Authorization": f"Bearer {(account / 'token').read_text().strip()}",
        "Content-Type": "application/merge-patch+json",
    }
    with urllib3.PoolManager(ca_certs=str(account / "ca.crt"), timeout=_SECONDS, retries=retries) as pool:
        try:
            answer = pool.request(
                "PATCH", f"{server}/api/v1/namespaces/{namespace}/configmaps/{name}", json=dict(data), headers=headers
            )
        except urllib3.exceptions.HTTPError as error:
            raise NotTaken(f"no answer from the API server: {error}") from error
    if answer.status >= 300:
        raise NotTaken(f"ConfigMap {name}: {answer.status} {answer.data.decode(errors='replace')[:300]}")


def _host() -> str:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    return f"{f'[{host}]' if ':' in host else host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
