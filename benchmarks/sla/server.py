"""A real Prometheus that serves a folder of backfilled data while a benchmark runs."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from migratory_local.processes.network import free_ports

START_LIMIT = 120.0


@contextmanager
def prometheus(folder: Path) -> Iterator[tuple[str, int]]:
    """Run Prometheus on a folder of data, and yield its URL and process id. It deletes no old data and compacts no
    blocks."""
    (port,) = free_ports(1)
    config = folder.with_suffix(".yml")
    config.write_text("{}\n")
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y",
        "--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"Prometheus ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"Prometheus was not ready within {START_LIMIT:g} s")
