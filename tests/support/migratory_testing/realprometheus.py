"""Real Prometheus servers for tests, on ports of this machine. They end with the test."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from migratory_local.processes.network import free_ports

from migratory_testing.waiting import poll

NEEDED = ("prometheus", "promtool")


def missing() -> str | None:
    """Return the first needed program that is not installed, or None. Tests are skipped when one is missing."""
    return next((name for name in NEEDED if shutil.which(name) is None), None)


class Prometheus:
    """A Prometheus server whose data are in `folder`; creating it starts it, `with` waits for it and ends it. It
    scrapes `targets` every `interval` ms as the job "load", with the settings `scrape` of a scrape configuration.
    `program` is the one on PATH, or the path of another one."""

    def __init__(
        self,
        folder: Path,
        targets: Sequence[str] = (),
        interval: int = 500,
        external_labels: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        scrape: Mapping[str, Any] | None = None,
        program: str = "prometheus",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "prometheus.log"
        config = {
            "global": {
                "scrape_interval": f"{interval}ms",
                "scrape_timeout": f"{interval}ms",
                "external_labels": dict(external_labels or {}),
            },
            "scrape_configs": [{"job_name": "load", "static_configs": [{"targets": list(targets)}], **(scrape or {})}]
            if targets
            else [],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        command = [
            program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y", "--log.level=warn",
            *options,
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def get(self, path: str) -> Any:
        """Return the JSON at a path, or None while the server does not answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return json.load(answer)
        except (OSError, urllib.error.HTTPError, json.JSONDecodeError):
            return None

    def value(self, query: str) -> float | None:
        """Return the value of an instant query with at most one result. Return None without a result or while the
        server does not answer."""
        answer = self.get("/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        result = answer["data"]["result"] if answer else []
        return float(result[0]["value"][1]) if result else None

    def ready(self) -> bool:
        """Return whether the server answers. Raise AssertionError with its log if it has ended."""
        assert self._process.poll() is None, self._log.read_text()
        return self.get("/api/v1/status/buildinfo") is not None

    def __enter__(self) -> Self:
        poll(self.ready, f"Prometheus at {self.url} answers", 60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(10)


def backfill(folder: Path, lines: Sequence[str]) -> Path:
    """Import these OpenMetrics lines into `folder` as the data of a server that starts there later, and return the
    folder. Raise AssertionError if promtool refuses them."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "samples.openmetrics"
    text.write_text("".join(f"{line}\n" for line in lines) + "# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder
