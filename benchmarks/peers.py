"""The benchmark peers, which the product is compared with: where they are installed, their versions, how to install
them.

`python -m benchmarks.peers` (`make bench-peers`) installs them into a folder of the user's cache: Go modules with
`go install`, and Debian packages unpacked there, so that nothing is installed or started on the machine and no
privileges are needed. A peer that could not be installed is named with the reason. A program of the same name on the
PATH is used as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "migratory-bench"


@dataclass(frozen=True)
class Peer:
    """A peer. `module` is a Go module's command with its version; without one it is the Debian package `program`."""

    name: str
    program: str
    module: str = ""

    @property
    def folder(self) -> Path:
        """The folder of the program: another one for each pinned version, so that a new pin never finds an old
        program."""
        return FOLDER / self.module.rsplit("@", 1)[1] if self.module else FOLDER / "debian" / "usr" / "sbin"


# The only place where versions are pinned. The Debian package has the version of the release.
PEERS = (
    Peer("mosquitto", "mosquitto"),
    Peer("nats", "nats-server", "github.com/nats-io/nats-server/v2@v2.15.2"),
    Peer("centrifugo", "centrifugo", "github.com/centrifugal/centrifugo/v6@v6.9.1"),
)
INSTALL_MINUTES = 20.0
"""Minutes for the installation of one peer from sources."""


def find(name: str) -> str | None:
    """Return the program's path, or None when it is not installed."""
    peer = _peer(name)
    own = peer.folder / peer.program
    return str(own) if own.is_file() else shutil.which(peer.program)


def _peer(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


def environment(name: str) -> dict[str, str]:
    """Return the program's environment, with the libraries that were unpacked with it."""
    program = find(name)
    own = dict(os.environ)
    root = FOLDER / "debian"
    if program is not None and program.startswith(str(root)):
        own["LD_LIBRARY_PATH"] = ":".join(str(path) for path in sorted(root.glob("usr/lib/*-linux-gnu*")))
    return own


def missing() -> list[str]:
    """Return the names of the peers that are not installed."""
    return [peer.name for peer in PEERS if find(peer.name) is None]


class InstallFailed(Exception):
    """A peer could not be installed. The text says why."""


def _run(command: list[str], cwd: Path | None = None, **variables: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True,
            timeout=INSTALL_MINUTES * 60,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise InstallFailed(f"`{' '.join(command)}` ended with {done.returncode}: {' / '.join(last)}")
    return done.stdout


def _install_go(peer: Peer) -> None:
    if shutil.which("go") is None:
        raise InstallFailed(f"{peer.module} is built with Go, which is not installed")
    peer.folder.mkdir(parents=True, exist_ok=True)
    _run(["go", "install", peer.module], GOBIN=str(peer.folder), CGO_ENABLED="0", GOFLAGS="-buildvcs=false")


def _install_debian(peer: Peer) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise InstallFailed(f"{peer.program} is a Debian package, and this is not Debian")
    try:
        packages = _packages(peer.program)
    except InstallFailed:
        _run(["apt-get", "update", "-qq"])
        packages = _packages(peer.program)
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        _run(["apt-get", "download", "-qq", *packages], cwd=folder)
        root = FOLDER / "debian"
        root.mkdir(parents=True, exist_ok=True)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(root)])


def _packages(package: str) -> list[str]:
    """Return the package and its dependencies that are not installed on this machine."""
    plan = _run(["apt-get", "install", "--print-uris", "-qq", "--no-install-recommends", package])
    return re.findall(r"^'[^']*' ([^_ ]+)_", plan, re.MULTILINE) or [package]


def install(peer: Peer) -> None:
    """Install a peer. Raise InstallFailed."""
    if peer.module:
        _install_go(peer)
    else:
        _install_debian(peer)
    if find(peer.name) is None:
        raise InstallFailed(f"{peer.program} was not installed in {FOLDER}")


def main() -> int:
    """Install all peers. Return 1 when one could not be installed; the benchmarks then run without it."""
    failed = 0
    for peer in PEERS:
        where = find(peer.name)
        if where is None:
            print(f"{peer.name}: installing {peer.module or 'the Debian package ' + peer.program} ...", flush=True)
            try:
                install(peer)
            except InstallFailed as reason:
                print(f"{peer.name}: not installed: {reason}", flush=True)
                failed += 1
                continue
            where = find(peer.name)
        print(f"{peer.name}: {where} ({version(peer.name)})", flush=True)
    return 1 if failed else 0


def version(name: str) -> str:
    """Return the version that the program reports, or "" when it is not installed."""
    program = find(name)
    if program is None:
        return ""
    peer = _peer(name)
    if peer.module and Path(program).parent == peer.folder:
        return peer.folder.name.removeprefix("v")  # a program that `go install` built may not report it
    option = {"mosquitto": "-h", "nats": "--version", "centrifugo": "version"}[name]
    done = subprocess.run(
        [program, option], env=environment(name), capture_output=True, text=True, timeout=30, check=False
    )
    match = re.search(r"v?(\d+\.\d+\.\d+)", done.stdout + done.stderr)
    return match[1] if match else "unknown"


if __name__ == "__main__":
    sys.exit(main())
