"""The certificates of `--dev-tls`: nobody but their user reads the keys."""

from __future__ import annotations

from pathlib import Path

from migratory_local.cluster.certificates import DevelopmentAuthority, write_certificates


def test_keys_are_private_also_in_place_of_files_that_everybody_could_read(tmp_path: Path) -> None:
    keys = [tmp_path / "b-0.key", tmp_path / "zookeeper.pem"]
    for key in keys:
        key.write_text("before")
        key.chmod(0o644)
    write_certificates(tmp_path, DevelopmentAuthority(), ["b-0"], "127.0.0.1", ["127.0.0.1"])
    for key in keys:
        assert key.stat().st_mode & 0o777 == 0o600
        assert b"BEGIN PRIVATE KEY" in key.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "b-0.crt", "b-0.key", "zookeeper.pem"}
