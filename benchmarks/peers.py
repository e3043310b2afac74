"""The peers that the product is measured beside: where they are, which versions, and how they get here.

`python -m benchmarks.peers` (`make bench-peers`) brings those that can be had into a folder of their own under the
user's cache: Go modules with `go install`, Debian's packages unpacked there, so that nothing is installed or started on
the machine and no rights are needed. What could not be had is named, with the reason. A program of the same name on the
PATH will do as well.
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
    """`module` is a Go module's command with its version; without one it is Debian's package of that name."""

    name: str
    program: str
    module: str = ""

    @property
    def folder(self) -> Path:
        """Of its own for each pinned version, so that a new pin is not met by an old program."""
        return FOLDER / self.module.rsplit("@", 1)[1] if self.module else FOLDER / "debian" / "usr" / "sbin"


# The one place where versions are pinned. Debian's is the release's own.
PEERS = (
    Peer("mosquitto", "mosquitto"),
    Peer("nats", "nats-server", "github.com/nats-io/nats-server/v2@v2.15.2"),
    Peer("centrifugo", "centrifugo", "github.com/centrifugal/centrifugo/v6@v6.9.1"),
)
MINUTES = 20.0  # for one of them, from sources


def find(name: str) -> str | None:
    """The program's path, or None when it is not here."""
    peer = _peer(name)
    own = peer.folder / peer.program
    return str(own) if own.is_file() else shutil.which(peer.program)


def _peer(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


def environment(name: str) -> dict[str, str]:
    """What the program needs in its environment: libraries that were unpacked beside it."""
    found = find(name)
    own = dict(os.environ)
    root = FOLDER / "debian"
    if found is not None and found.startswith(str(root)):
        own["LD_LIBRARY_PATH"] = ":".join(str(path) for path in sorted(root.glob("usr/lib/*-linux-gnu*")))
    return own


def missing() -> list[str]:
    return [peer.name for peer in PEERS if find(peer.name) is None]


class NotHad(Exception):
    """A peer could not be brought here. The text says why."""


def _run(command: list[str], cwd: Path | None = None, **variables: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, timeout=MINUTES * 60,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHad(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise NotHad(f"`{' '.join(command)}` ended with {done.returncode}: {' / '.join(last)}")
    return done.stdout


def _install_go(peer: Peer) -> None:
    if shutil.which("go") is None:
        raise NotHad(f"{peer.module} is built with Go, which is not here")
    peer.folder.mkdir(parents=True, exist_ok=True)
    _run(["go", "install", peer.module], GOBIN=str(peer.folder), CGO_ENABLED="0", GOFLAGS="-buildvcs=false")


def _install_debian(peer: Peer) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NotHad(f"{peer.program} is taken from Debian's packages, and this is no Debian")
    try:
        wanted = _wanted(peer.program)
    except NotHad:
        _run(["apt-get", "update", "-qq"])
        wanted = _wanted(peer.program)
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        _run(["apt-get", "download", "-qq", *wanted], cwd=folder)
        root = FOLDER / "debian"
        root.mkdir(parents=True, exist_ok=True)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(root)])


def _wanted(package: str) -> list[str]:
    """The package and those that it needs and this machine has not."""
    plan = _run(["apt-get", "install", "--print-uris", "-qq", "--no-install-recommends", package])
    return re.findall(r"^'[^']*' ([^_ ]+)_", plan, re.MULTILINE) or [package]


def install(peer: Peer) -> None:
    """Raises NotHad."""
    if peer.module:
        _install_go(peer)
    else:
        _install_debian(peer)
    if find(peer.name) is None:
        raise NotHad(f"{peer.program} is not where it should be, in {FOLDER}")


def main() -> int:
    """Ends 1 when one could not be had: the benchmarks run without it and say so."""
    failed = 0
    for peer in PEERS:
        where = find(peer.name)
        if where is None:
            print(f"{peer.name}: getting {peer.module or 'the Debian package ' + peer.program} ...", flush=True)
            try:
                install(peer)
            except NotHad as reason:
                print(f"{peer.name}: could not be had: {reason}", flush=True)
                failed += 1
                continue
            where = find(peer.name)
        print(f"{peer.name}: {where} ({version(peer.name)})", flush=True)
    return 1 if failed else 0


def version(name: str) -> str:
    """As the program says it; "" when it is not here."""
    program = find(name)
    if program is None:
        return ""
    peer = _peer(name)
    if peer.module and Path(program).parent == peer.folder:
        return peer.folder.name.removeprefix("v")  # a program that `go install` built may not know it
    option = {"mosquitto": "-h", "nats": "--version", "centrifugo": "version"}[name]
    done = subprocess.run(
        [program, option], env=environment(name), capture_output=True, text=True, timeout=30, check=False
    )
    found = re.search(r"v?(\d+\.\d+\.\d+)", done.stdout + done.stderr)
    return found[1] if found else "unknown"


if __name__ == "__main__":
    sys.exit(main())
