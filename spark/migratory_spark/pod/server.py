"""The one call that a report's pod makes at the API server: a merge patch of its own ConfigMap."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECONDS = 10.0
_TIMES = 8
"""With waits of up to 15 s between: an API server that is being replaced is away for a minute."""


class NotTaken(Exception):
    """The API server refused, or did not answer for minutes."""


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
