"""No secret leaves the place it was given in.

`migratory up` runs a broker with an I/O process, tokens and TLS, clients are accepted and refused, keys are replaced by
wrong ones. Then no log, page, process list or environment has a secret.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from migratory_client import Client, ConnectError, MigratoryError
from migratory_local.cluster.state import ClusterState, running_clusters
from migratory_testing.processes import descendants
from migratory_testing.tokens import SECRET, digest, key_set, sign
from migratory_testing.waiting import poll, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]

ADMIN = "administration-token-92d6c07be4"
STATIC = "static-token-7f3b1c9e5d2a4860"
SHARED = "shared-key-of-a-set-of-at-least-thirty-two-bytes"
BROKEN = "broken-key-0c41e6a9b75d2f83"

FILE = """\
apiVersion: migratory.dev/v1alpha1
kind: MigratoryCluster
metadata: {{name: secrets}}
spec:
  brokers: {{replicas: 1, ioProcesses: 1}}
  delivery: {{minCopies: 1}}
  topics: {{groups: 1}}
  zookeeper: {{replicas: 1}}
  security:
    administration: {{tokens: [{admin}]}}
    tokens:
      leeway: 0s
      keys:
        - {{algorithms: [HS256], file: {folder}/secret}}
        - {{algorithms: [HS256], file: {folder}/set.json}}
      static: [{{subject: meter, sha256: {digest}}}]
      revokedFile: {folder}/revoked.json
    rules: [{{topics: ["quotes/*"], allow: [subscribe, publish, history]}}]
"""


class Secrets:
    """Texts that must appear nowhere, by what they are. A key counts in hexadecimal digits and Base64 as well."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def add(self, name: str, secret: str) -> str:
        data = secret.encode()
        self._texts[name] = [secret, data.hex(), b64encode(data).decode()[:-4], urlsafe_b64encode(data).decode()[:-4]]
        return secret

    def add_token(self, name: str, **claims: Any) -> str:
        """Add a token. Its signature alone is secret as well: the rest can be guessed."""
        credential = sign({"sub": "ann", "exp": time.time() + 300.0, **claims})
        self._texts[name] = [credential, credential.rpartition(".")[2]]
        return credential

    def add_private_key(self, name: str, pem: str) -> None:
        self._texts[name] = [line for line in pem.splitlines() if line and not line.startswith("-----")]

    def inside(self, places: dict[str, str]) -> set[tuple[str, str]]:
        """Return the secrets that a place has, and the place."""
        return {
            (name, place)
            for name, texts in self._texts.items()
            for place, content in places.items()
            if any(text in content for text in texts)
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    key = urlsafe_b64encode(SHARED.encode()).decode().rstrip("=")
    (tmp_path / "set.json").write_bytes(key_set({"kty": "oct", "kid": "set", "k": key}))
    (tmp_path / "revoked.json").write_text('{"tokens": ["revoked"]}')
    (tmp_path / "cluster.yaml").write_text(FILE.format(folder=tmp_path, digest=digest(STATIC), admin=digest(ADMIN)))
    return tmp_path


@pytest.fixture
def up(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "migratory_cli.main", "up", "-f", str(folder / "cluster.yaml"), "--dev-tls"]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--workdir", str(folder / "work")], stdout=output, stderr=output, env=environment
        )
    yield process
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()


def replace(path: Path, content: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(content)
    new.rename(path)


def page(url: str, token: str, trust: ssl.SSLContext) -> str:
    """Return the body of the answer to a GET request with a token, whatever the answer's status is."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def processes_of(pid: int) -> dict[str, str]:
    """Return command line and environment of a process and of all that it started."""
    places = {}
    for process in (psutil.Process(pid), *descendants(pid)):
        with suppress(psutil.NoSuchProcess):
            places[f"process {process.name()} {process.pid}"] = f"{process.cmdline()} {process.environ()}"
    return places


async def test_secrets_are_in_no_log_page_or_process_list(folder: Path, up: subprocess.Popen[bytes]) -> None:
    def clusters() -> list[ClusterState]:
        assert up.poll() is None, (folder / "output").read_text()
        return running_clusters(folder / "state" / "migratory")

    poll(clusters, limit=90)
    (broker,) = clusters()[0].brokers
    tls = folder / "work" / "tls"
    trust = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    secrets = Secrets()
    secrets.add("HS256 key", SECRET)
    secrets.add("key of a set", SHARED)
    secrets.add("static token", STATIC)
    secrets.add("wrong key", BROKEN)
    secrets.add("token of the administration", ADMIN)
    secrets.add("token that `up` made", (folder / "work" / "administration.token").read_text().strip())
    secrets.add("password of ZooKeeper", (folder / "work" / "zookeeper.password").read_text().strip())
    keys = sorted(tls.glob("*.key"))
    assert keys
    for path in keys:
        secrets.add_private_key(path.name, path.read_text())
    good = secrets.add_token("good token")
    ending = secrets.add_token("token that expires", exp=time.time() + 4.0)
    refused = [
        secrets.add("wrong token", secrets.add_token("token before it is wrong", sub="bob") + "x"),
        secrets.add_token("expired token", exp=1.0),
        secrets.add_token("revoked token", jti="revoked"),
        secrets.add("text", "not-a-token-51b0c2d4"),
    ]

    for credential in (good, STATIC, ending):
        async with Client([broker.url], token=credential, ssl_context=trust) as client:
            await client.publish("quotes/eur", b"1")
            with pytest.raises(MigratoryError, match="not"):
                await client.publish("orders/1", b"1")
    for credential in refused:
        with pytest.raises(ConnectError):
            await Client([broker.url], token=credential, ssl_context=trust, open_timeout=2.0).open()
        http = broker.url.replace("wss://", "https://")
        page(http, credential, trust)
        page(f"{http}?token={credential}&access_token={credential}", credential, trust)
        for name in ("v1/status", f"v1/{credential}", f"v1/status?token={credential}"):
            page(f"{broker.admin}/{name}", credential, trust)
    token_file = folder / "token"
    token_file.write_text(good)
    command = ("-m", "migratory_cli.main", "sub", "quotes/eur", "-s", broker.url, "--token-file", str(token_file))
    reader = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "SSL_CERT_FILE": str(tls / "ca.crt")},
    )  # fmt: skip
    assert reader.stderr is not None
    said = (await asyncio.wait_for(reader.stderr.readline(), 30)).decode()
    places = processes_of(up.pid) | processes_of(reader.pid)
    reader.terminate()
    said += str(await reader.communicate())

    # Files that cannot be used: their errors must not quote them.
    log = next(path for path in (folder / "work").rglob("*.log") if broker.name in path.name)
    replace(folder / "set.json", json.dumps({"keys": [{"kty": "oct", "k": BROKEN + "!"}]})[:-1])
    replace(folder / "revoked.json", f'{{"tokens": "{BROKEN}"}}')
    (key,) = [path for path in keys if broker.name in path.name][:1]
    replace(key, f"-----BEGIN PRIVATE KEY-----\n{BROKEN}\n-----END PRIVATE KEY-----\n")
    for event, source in (
        ("credentials_rejected", "set.json"),
        ("credentials_rejected", "revoked.json"),
        ("certificate_rejected", ""),
    ):
        await until(
            lambda: any(event in line and source in line for line in log.read_text().splitlines()),  # noqa: B023
            f"{event} {source}",
        )

    places |= {str(path): path.read_text("utf-8", "replace") for path in (folder / "work").rglob("*.log")}
    places |= {str(path): path.read_text() for path in (folder / "state").rglob("*") if path.is_file()}
    places |= {name: page(f"{broker.admin}/{name}", ADMIN, trust) for name in ("v1/status", "metrics")}
    places |= {"output of up": (folder / "output").read_text(), "output of sub": said}
    assert {"client_not_authenticated", "client_not_allowed", "administration_refused"} <= {
        json.loads(line)["event"] for line in log.read_text().splitlines()
    }
    assert "migratory_not_allowed_total" in places["metrics"]
    assert '"incarnation"' in places["v1/status"]
    assert len([name for name in places if name.startswith("process ")]) >= 5  # up, ZooKeeper, broker, I/O, sub
    assert secrets.inside(places) == set()


def test_search_finds_every_form_of_a_secret() -> None:
    secrets = Secrets()
    secrets.add("key", SECRET)
    credential = secrets.add_token("token")
    secrets.add_private_key("pem", "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQ\n-----END PRIVATE KEY-----\n")
    places = {
        "plain": f"reason: {SECRET}",
        "hex": SECRET.encode().hex(),
        "base64": b64encode(SECRET.encode()).decode(),
        "signature": credential.split(".")[2],
        "pem": "MC4CAQAwBQ",
        "nothing": digest(SECRET),
    }
    assert secrets.inside(places) == {
        ("key", "plain"), ("key", "hex"), ("key", "base64"), ("token", "signature"), ("pem", "pem")
    }  # fmt: skip
