"""Finding and installing peers, their environment, and reports of missing peers and failed installers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import peers


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a cache folder and a PATH in which nothing is installed. Return the folder."""
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def program(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_missing_peers_are_named(nowhere: Path) -> None:
    assert peers.missing() == ["mosquitto", "nats", "centrifugo"]
    program(nowhere / "bin" / "nats-server")
    assert peers.missing() == ["mosquitto", "centrifugo"]
    assert peers.find("nats") == str(nowhere / "bin" / "nats-server")


def test_program_of_another_pinned_version_is_ignored(nowhere: Path) -> None:
    program(nowhere / "v0.0.1" / "nats-server")
    assert peers.find("nats") is None
    nats = next(peer for peer in peers.PEERS if peer.name == "nats")
    program(nats.folder / "nats-server")
    assert peers.find("nats") == str(nats.folder / "nats-server")
    assert peers.version("nats") == nats.module.rsplit("@v", 1)[1]


def test_environment_has_the_unpacked_libraries(nowhere: Path) -> None:
    program(nowhere / "debian" / "usr" / "sbin" / "mosquitto")
    libraries = nowhere / "debian" / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    assert peers.environment("mosquitto")["LD_LIBRARY_PATH"] == str(libraries)
    assert peers.environment("nats").get("LD_LIBRARY_PATH") != str(libraries)


def test_missing_go_or_debian_is_reported(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main() == 1
    output = capsys.readouterr().out
    assert "nats: not installed: github.com/nats-io/nats-server/v2@" in output
    assert "mosquitto: not installed: mosquitto is a Debian package" in output


def test_failed_installer_is_quoted(nowhere: Path) -> None:
    program(nowhere / "bin" / "go", "#!/bin/sh\necho 'no such module' >&2\nexit 3\n")
    nats = next(peer for peer in peers.PEERS if peer.name == "nats")
    with pytest.raises(peers.InstallFailed, match="ended with 3: no such module"):
        peers.install(nats)
    program(nowhere / "bin" / "go")
    with pytest.raises(peers.InstallFailed, match="was not installed in"):
        peers.install(nats)
