"""Ctrl-C while a command imports its libraries: exit code 130 and "Interrupted", never a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

COMMANDS = {
    "up": ["up", "-f", "cluster.yaml", "--workdir", "work"],
    "demo": ["demo", "--workdir", "work"],
    "bench": ["bench", "run", "--servers", "ws://127.0.0.1:9/ws"],
}


def wait_until_imported(library: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the log of `python -X importtime` says that `library` was imported. Fail if the process ends
    before, or after a minute."""
    deadline = time.monotonic() + 60
    while not re.search(rf"\|\s+{re.escape(library)}$", log.read_text(), re.MULTILINE):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"no {library} within a minute:\n{log.read_text()}"
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("command", "library"),
    [
        ("up", "click.core"),
        ("up", "migratory_local.cluster.local_cluster"),
        ("demo", "click.core"),
        ("demo", "migratory_loadtest.api"),
        ("bench", "click.core"),
        ("bench", "migratory_loadtest.api"),
    ],
)
def test_interrupt_during_imports_ends_with_130_and_no_traceback(command: str, library: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "apiVersion: migratory.dev/v1alpha1\nkind: MigratoryCluster\nmetadata: {name: quotes}\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "migratory_cli.main", *COMMANDS[command]],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
            start_new_session=True,
        )
    try:
        wait_until_imported(library, process, log)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130, log.read_text()
    finally:
        process.kill()
        process.wait()
    output_lines = [line for line in log.read_text().splitlines() if not line.startswith("import time:")]
    assert "Traceback" not in "\n".join(output_lines)
    assert "Interrupted" in "\n".join(output_lines)
