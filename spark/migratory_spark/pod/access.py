"""How a Prometheus is asked, from a Secret that is mounted as a folder: a file that is there is an option."""

from __future__ import annotations

from pathlib import Path

from migratory_spark.jobs.exits import BadInput

FOLDER = Path("/etc/migratory/prometheus")
"""The same in the driver and in the executors, which ask the server themselves."""

_FILES = {
    "token": "tokenFile",
    "password": "passwordFile",
    "ca.crt": "caFile",
    "tls.crt": "certFile",
    "tls.key": "keyFile",
}
_USER = "username"


def settings(folder: Path = FOLDER) -> list[tuple[str, str]]:
    """Options of the data source; none where no Secret is mounted. Raises BadInput for one that holds nothing known."""
    if not folder.is_dir():
        return []
    found = [(option, str(folder / name)) for name, option in _FILES.items() if (folder / name).is_file()]
    if (folder / _USER).is_file():
        found.append(("user", (folder / _USER).read_text().strip()))
    if not found:
        allowed = ", ".join(sorted([*_FILES, _USER]))
        raise BadInput(f"the Secret for Prometheus has none of the keys {allowed}")
    return found
