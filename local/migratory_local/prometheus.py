"""A real Prometheus for `migratory up`, where one is on PATH."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from migratory_local.errors import LocalError
from migratory_local.ports import HOST
from migratory_local.process import Process
from migratory_local.scrape_file import DEFAULT_JOB


def find_prometheus() -> Path | None:
    found = shutil.which("prometheus")
    return Path(found) if found else None


def prometheus_process(
    executable: Path,
    folder: Path,
    port: int,
    targets: Sequence[int],
    logs: Path,
    interval: float = 1.0,
    scrape: Path | None = None,
    rules: str = "",
) -> Process:
    """Writes its configuration and makes its process, not yet started.

    :param targets: ports of this machine whose /metrics are scraped, every `interval` seconds.
    :param scrape: a file of more targets (scrape_file.py), which Prometheus itself follows.
    :param rules: the text of a rule file; evaluated every five scrapes.
    :raises LocalError: when the folder can't be written.
    """
    every = f"{round(interval * 1000)}ms"
    jobs: list[dict[str, object]] = [
        {"job_name": "broker", "static_configs": [{"targets": [f"{HOST}:{target}" for target in targets]}]}
    ]
    if scrape is not None:
        found = {"files": [str(scrape.absolute())], "refresh_interval": "2s"}
        jobs.append({"job_name": DEFAULT_JOB, "file_sd_configs": [found]})
    config: dict[str, object] = {
        "global": {
            "scrape_interval": every,
            "scrape_timeout": every,
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
        # JSON is YAML.
        path.write_text(json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from error
    return Process(
        "prometheus",
        [
            str(executable),
            f"--config.file={path}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{port}",
        ],
        logs / "prometheus.log",
    )
