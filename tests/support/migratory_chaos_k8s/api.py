"""Raw requests to the API server, and through it to pods: one `kubectl proxy`, so that any kubeconfig will do.

Requests to a pod go from the API server to the pod: neither a kubelet that is away nor the pods' network is in the way.
"""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from migratory_node.binaries import kubectl

LIMIT = 10.0
"""Seconds for an answer."""
_STOP = 5.0


class Silent(Exception):
    """No answer came; says why."""


class Api:
    """`with Api(kubeconfig) as api: api.get("/readyz")`."""

    def __init__(self, kubeconfig: Path) -> None:
        self._command = [kubectl(), f"--kubeconfig={kubeconfig}", "proxy", "--port=0"]
        self._process: subprocess.Popen[str] | None = None
        self._base = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        _, found, address = line.strip().rpartition(" on ")  # Starting to serve on 127.0.0.1:34567
        if not found:
            self.close()
            raise Silent(f"kubectl proxy did not start: {line.strip()}")
        self._base = f"http://{address}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def get(self, path: str, limit: float = LIMIT) -> tuple[int, bytes]:
        """Status and body, whatever the status is. :raises Silent:"""
        return self._ask(urllib.request.Request(f"{self._base}{path}"), limit)

    def post(self, path: str, body: object, limit: float = LIMIT) -> tuple[int, bytes]:
        """:raises Silent:"""
        request = urllib.request.Request(
            f"{self._base}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        return self._ask(request, limit)

    def _ask(self, request: urllib.request.Request, limit: float) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=limit) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError as error:
            raise Silent(f"{request.get_method()} {request.selector}: {error}") from error

    def json(self, path: str) -> Any:
        """:raises Silent: also when the answer is none to go by."""
        status, body = self.get(path)
        if status != 200:
            raise Silent(f"GET {path}: {status} {body[:200].decode(errors='replace')}")
        return json.loads(body)


def pod_path(namespace: str, pod: str, port: int, path: str) -> str:
    """Of a request to a pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}"
