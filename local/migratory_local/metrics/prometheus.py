"""Configures a Prometheus server for `migratory up`, if one is on PATH."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from migratory_local import LocalError
from migratory_local.metrics.scrape_file import DEFAULT_JOB
from migratory_local.processes.network import LOOPBACK
from migratory_local.processes.process import Process


def find_prometheus() -> Path | None:
    """Return the path of the `prometheus` on PATH, or None if there is none."""
    executable = shutil.which("prometheus")
    return Path(executable) if executable else None


def prometheus_process(
    executable: Path,
    folder: Path,
    port: int,
    targets: Sequence[int],
    logs: Path,
    interval: float = 1.0,
    scrape: Path | None = None,
    rules: str = "",
    tls: bool = False,
) -> Process:
    """Write Prometheus's configuration, and return its process, which is not started yet. The server listens on this
    machine's loopback address only.

    :param executable: the path of `prometheus`.
    :param folder: the folder for configuration and data.
    :param port: the port of the server.
    :param targets: ports of this machine whose /metrics are scraped.
    :param logs: the folder of the log file.
    :param interval: seconds between two scrapes.
    :param scrape: a file of additional targets (scrape_file.py), which Prometheus itself reads; None for no such file.
    :param rules: the text of a rule file, evaluated every five scrapes; empty for no rules.
    :param tls: True if `targets` have TLS. Certificates are not checked, because all is on this machine.
    :raises LocalError: the folder cannot be written.
    """
    scrape_interval = f"{round(interval * 1000)}ms"
    jobs: list[dict[str, object]] = [
        {"job_name": "broker", "static_configs": [{"targets": [f"{LOOPBACK}:{target}" for target in targets]}]}
    ]
    if tls:
        jobs[0] |= {"scheme": "https", "tls_config": {"insecure_skip_verify": True}}
    if scrape is not None:
        discovery = {"files": [str(scrape.absolute())], "refresh_interval": "2s"}
        jobs.append({"job_name": DEFAULT_JOB, "file_sd_configs": [discovery]})
    config: dict[str, object] = {
        "global": {
            "scrape_interval": scrape_interval,
            "scrape_timeout": scrape_interval,
            "evaluation_interval": f"{round(interval * 5000)}ms",
        },
        "scrape_configs": jobs,
    }
    path, rule_path = folder / "prometheus.yml", folder / "rules.yml"
    if rules:
        config["rule_files"] = [str(rule_path.absolute())]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if rules:
            rule_path.write_text(rules)
        # JSON is valid YAML.
        path.write_text(json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from error
    return Process(
        "prometheus",
        [
            str(executable),
            f"--config.file={path}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ],
        logs / "prometheus.log",
    )
