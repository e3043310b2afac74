"""Every operation by every identity, at the ports of real brokers with TLS, tokens and rules: tables have the expected
answers. And nothing is delivered after a token expired or was revoked. tests/unit/core/edge/test_identity.py has more
cases, without processes."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from migratory_broker.runtime.framing import length_prefix
from migratory_client import Client
from migratory_local.cluster.certificates import DevelopmentAuthority, write_certificates
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_protocol.peer import PEER_VERSION, PeerHello, encode_peer
from migratory_testing.eventstream import EventStream
from migratory_testing.processes import Broker, Brokers
from migratory_testing.tokens import digest, key_set, public_jwk, sign
from migratory_testing.waiting import poll, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

STATIC = "a static token with few rights"
ADMINISTRATOR = "a token for the administration"
LIMIT = 20.0


def token(**claims: Any) -> str:
    claims = {"sub": "ann", "role": "trader", "aud": "migratory", "exp": time.time() + 300.0, **claims}
    return sign(claims, "ES256", "a")


IDENTITIES: dict[str, Callable[[], str | None]] = {
    "none": lambda: None,
    "wrong": lambda: token() + "x",
    "expired": lambda: token(exp=time.time() - 1.0),
    "audience": lambda: token(aud="elsewhere"),
    "revoked": lambda: token(jti="revoked"),
    "no-rights": lambda: token(role="nothing"),
    "few": lambda: token(role="reader"),
    "static": lambda: STATIC,
    "right": token,
    "administrator": lambda: ADMINISTRATOR,
}
"""The token of each identity. A "silent" client sends no `connect`. "fewer" is one that had all rights, and has
connected again with few."""

CLIENTS = """
operation        silent  none  wrong  expired  audience  revoked  no-rights            few          static       right           fewer        administrator
connect          .       4001  4001   4002     4001      4001     welcome              welcome      welcome      welcome         .            4001
header           .       4001  4001   4002     4001      4001     welcome              welcome      welcome      welcome         .            4001
query            .       4001  4001   4001     4001      4001     4001                 4001         4001         4001            .            4001
refresh          .       4001  4001   4002     4001      4001     not_allowed,welcome  welcome,4    welcome,4    welcome,4       .            4001
subscribe        4000    4001  4001   4002     4001      4001     not_allowed          complete,4   complete,4   complete,4      complete,4   4001
resume           4000    4001  4001   4002     4001      4001     not_allowed          reset,4      reset,4      complete,2,3,4  reset,4      4001
snapshot         4000    4001  4001   4002     4001      4001     not_allowed          not_allowed  not_allowed  complete,3,4    not_allowed  4001
publish-0        4000    4001  4001   4002     4001      4001     not_allowed          not_allowed  not_allowed  stored          not_allowed  4001
publish-1        4000    4001  4001   4002     4001      4001     not_allowed          not_allowed  not_allowed  ack,stored      not_allowed  4001
http-stream      .       401   401    401      401       401      not_allowed          complete,4   complete,4   complete,4      .            401
http-query       .       401   401    401      401       401      401                  401          401          401             .            401
http-resume      .       401   401    401      401       401      not_allowed          reset,4      reset,4      complete,2,3,4  .            401
http-0           .       401   401    401      401       401      403                  403          403          202,stored      .            401
http-1           .       401   401    401      401       401      403                  403          403          200,stored      .            401
/v1/servers      .       .     200    200      200       200      200                  200          200          200             .            200
/v1/status       .       .     404    404      404       404      404                  404          404          404             .            404
/metrics         .       .     404    404      404       404      404                  404          404          404             .            404
/console         .       200   200    200      200       200      200                  200          200          200             .            200
/console/status  .       401   401    401      401       401      401                  401          401          401             .            200
"""  # noqa: E501
"""The answers at the clients' port: a close code, a status of HTTP, or in their order the kinds of answers, the
sequence numbers of delivered publications, and `stored` for a publication that others receive. A topic has three
publications before the operation, and one more after it. `http-0` and `http-1` publish with this QoS."""


class Cluster(NamedTuple):
    """Two running brokers; the first one has I/O processes or none."""

    brokers: Brokers
    folder: Path
    authority: DevelopmentAuthority
    trust: ssl.SSLContext

    @property
    def first(self) -> Broker:
        return self.brokers["b0"]


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "I/O processes"])
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("matrix")
    authority = DevelopmentAuthority()
    write_certificates(folder, authority, ["b0", "b1"], "127.0.0.1")
    (folder / "keys.json").write_bytes(key_set(public_jwk("ES256", "a")))
    revoke(folder, tokens=["revoked"])
    pair = {"cert": str(folder / "{broker}.crt"), "key": str(folder / "{broker}.key")}
    settings: dict[str, Any] = {
        "delivery": {"minCopies": 1},
        "ioProcesses": request.param,
        "tls": {"clients": pair, "peers": {**pair, "ca": str(folder / "ca.crt")}, "administration": pair},
        "administration": {"tokens": [digest("another"), digest(ADMINISTRATOR)]},
        "console": True,
        "security": {
            "tokens": {
                "keys": [{"algorithms": ["ES256"], "file": str(folder / "keys.json")}],
                "static": [{"subject": "static", "sha256": digest(STATIC)}],
                "audience": "migratory",
                "leeway": 0.0,
                "revoked": str(folder / "revoked.json"),
            },
            "rules": [
                {"claims": {"role": ["trader"]}, "topics": ["quotes/*"], "allow": ["subscribe", "publish", "history"]},
                {"claims": {"role": ["reader"]}, "topics": ["quotes/*"], "allow": ["subscribe"]},
                {"subjects": ["static"], "topics": ["quotes/*"], "allow": ["subscribe"]},
            ],
        },
    }
    with (
        ZooKeeperEnsemble(folder / "zookeeper", 1) as zookeeper,
        Brokers(folder / "brokers", zookeeper.servers, size=2, **settings) as brokers,
    ):
        for broker in brokers.all():
            broker.admin_token = ADMINISTRATOR
        brokers.start_all()
        poll(lambda: len(brokers["b0"].status()["servers"]) == 2, "no client hears of another server list")
        yield Cluster(brokers, folder, authority, ssl.create_default_context(cafile=str(folder / "ca.crt")))


def revoke(folder: Path, **revoked: Any) -> None:
    (folder / "revoked.new").write_text(json.dumps(revoked))
    (folder / "revoked.new").rename(folder / "revoked.json")


def table(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Return operation, identity and answers of each entry of a table. "." is an operation without a meaning."""
    (_, *identities), *lines = map(str.split, text.strip().splitlines())
    for operation, *cells in lines:
        for identity, cell in zip(identities, cells, strict=True):
            if cell != ".":
                yield operation, identity, cell.split(",")


# ---- the clients' port -------------------------------------------------------------------------------------------


class Socket:
    """A WebSocket to a broker, whose answers are words as in the table."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._words: list[str] = []

    async def send(self, op: str, **fields: Any) -> None:
        with suppress(aiohttp.ClientConnectionError):  # it may be closed already
            await self._socket.send_json({"op": op, **fields})

    async def answers(self, enough: int) -> list[str]:
        """Return the words of the answers so far, once there are `enough` and the broker has answered a `ping` after
        them, or has closed the connection."""
        async with asyncio.timeout(LIMIT):
            while len(self._words) < enough and not self._socket.closed:
                await self._receive()
            await self.send("ping")
            while not self._socket.closed and "pong" not in self._words:
                await self._receive()
        self._words = [word for word in self._words if word != "pong"]
        return self._words

    async def _receive(self) -> None:
        frame = await self._socket.receive()
        if frame.type != aiohttp.WSMsgType.TEXT:
            self._words.append(str(self._socket.close_code))
            return
        data = json.loads(frame.data)
        for message in data if isinstance(data, list) else [data]:
            match message["op"]:
                case "subscribed":
                    self._words += [topic.get("receipt") or topic["code"] for topic in message["topics"]]
                case "message":
                    self._words.append(message["position"].partition(":")[2])
                case "error" | "nack":
                    if not message.get("closes"):  # its close code is the word
                        self._words.append(message["code"])
                case op:
                    self._words.append(op)


async def operate(
    cluster: Cluster, session: aiohttp.ClientSession, writer: Client, operation: str, identity: str, expected: list[str]
) -> list[str]:
    """Do an operation on a topic of its own with three publications, and publish once more. Return all answers to the
    operation as words, once there are as many as expected."""
    topic = f"quotes/{operation}-{identity}"
    for _ in range(3):
        position = await writer.publish(topic, b"x")
    assert position is not None
    credential = IDENTITIES.get(identity, token)()
    if operation.startswith("http-"):
        words = await operate_http(cluster, session, writer, operation, topic, credential, f"{position.epoch}:1")
        return words + ["stored"] * await is_stored(writer, topic, f"{position.epoch}:3", "stored" in expected)
    subscribe: dict[str, Any] = {"op": "subscribe", "request": 1, "topics": [{"topic": topic}]}
    publish: dict[str, Any] = {"op": "publish", "topic": topic, "data": "y"}
    connect: dict[str, Any] = {"op": "connect"} | (
        {} if credential is None or operation in ("header", "query") else {"token": credential}
    )
    before: list[dict[str, Any]] = [connect]
    if operation == "refresh":
        before = [{"op": "connect", "token": token()}, subscribe]
    elif identity == "fewer":
        before = [connect, {"op": "connect", "token": token(role="reader")}]
    elif identity == "silent" or operation in ("connect", "header", "query"):
        before = []
    message = {
        "subscribe": subscribe,
        "resume": subscribe | {"topics": [{"topic": topic, "after": f"{position.epoch}:1"}]},
        "snapshot": subscribe | {"topics": [{"topic": topic, "snapshot": True}]},
        "publish-0": publish,
        "publish-1": publish | {"qos": 1, "publisher": "p", "id": 1, "mark": 1},
    }.get(operation, connect)
    async with session.ws_connect(
        cluster.first.url + (f"?access_token={credential}" if operation == "query" else ""),
        headers={"Authorization": f"Bearer {credential}"} if operation == "header" and credential else {},
        protocols=["migratory.v1.json"],
        ssl=cluster.trust,
    ) as connection:
        socket = Socket(connection)
        for each in before:
            await socket.send(**each)
        words = await socket.answers(len(before)) if before else []
        first = 0 if words and words[-1].isdigit() else len(words)  # a connection that was closed answers nothing more
        await socket.send(**message)
        answers = [word for word in expected if word != "stored"]
        await socket.answers(first + len(answers) - answers.count("4"))
        await writer.publish(topic, b"z")
        words = (await socket.answers(first + len(answers)))[first:]
    if operation.startswith("publish"):
        words += ["stored"] * await is_stored(writer, topic, f"{position.epoch}:3", "stored" in expected)
    return words


async def is_stored(writer: Client, topic: str, after: str, expected: bool) -> bool:
    """Return whether others receive `y`, once they have received `z`, and if it is expected also `y`."""
    stream = writer.subscribe(topic, after=after)
    payloads: set[bytes] = set()
    async with asyncio.timeout(LIMIT):
        while b"z" not in payloads or (expected and b"y" not in payloads):
            payloads.add((await anext(stream)).payload)
    return b"y" in payloads


async def operate_http(
    cluster: Cluster,
    session: aiohttp.ClientSession,
    writer: Client,
    operation: str,
    topic: str,
    credential: str | None,
    after: str,
) -> list[str]:
    """Do an operation over HTTP, publish `z`, and return the answers as words."""
    base = cluster.first.url.replace("wss://", "https://").removesuffix("/ws")
    parameters, headers = {"topic": topic}, {}
    if operation == "http-query":
        parameters["access_token"] = credential or ""
    elif credential is not None:
        headers["Authorization"] = f"Bearer {credential}"
    options: dict[str, Any] = {"headers": headers, "ssl": cluster.trust}
    if operation in ("http-0", "http-1"):
        parameters["qos"] = operation[-1]
        async with session.post(f"{base}/v1/publish", params=parameters, data=b"y", **options) as answer:
            words = [str(answer.status)]
        await writer.publish(topic, b"z")
        return words
    if operation == "http-resume":
        headers["Last-Event-ID"] = after
    async with session.get(f"{base}/v1/stream", params=parameters, **options) as answer:
        if answer.status != 200:
            await writer.publish(topic, b"z")
            return [str(answer.status)]
        words, events = [], EventStream().read(answer)
        async with asyncio.timeout(LIMIT):
            async for event in events:
                if event.name == "message":
                    words.append(event.data["position"].partition(":")[2])
                elif event.data["op"] == "subscribed":
                    words += [each.get("receipt") or each["code"] for each in event.data["topics"]]
                    await writer.publish(topic, b"z")
                if words and words[-1] in ("4", "not_allowed"):
                    break
    return words


async def page(session: aiohttp.ClientSession, url: str, credential: str | None, **options: Any) -> str:
    """Return the status of the answer to a GET request, or "refused" if there is none."""
    headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
    try:
        async with session.get(url, headers=headers, **options) as answer:
            return str(answer.status)
    except aiohttp.ClientConnectionError:
        return "refused"


async def test_clients(cluster: Cluster) -> None:
    wrong = {}
    base = cluster.first.url.replace("wss://", "https://").removesuffix("/ws")
    async with (
        aiohttp.ClientSession() as session,
        Client([cluster.first.url], token=token, ssl_context=cluster.trust) as writer,
    ):
        for operation, identity, expected in table(CLIENTS):
            if operation.startswith("/"):
                answers = [await page(session, base + operation, IDENTITIES[identity](), ssl=cluster.trust)]
            else:
                answers = await operate(cluster, session, writer, operation, identity, expected)
            if answers != expected:
                wrong[operation, identity] = answers
    assert wrong == {}
    log = cluster.first.log.read_text()
    assert "client_not_authenticated" in log
    await until(lambda: cluster.first.metric("migratory_not_allowed_total", 0) > 0, "refused operations are counted")
    written = log + json.dumps(cluster.first.status()) + cluster.first.get("/metrics")[1]
    assert [
        secret
        for secret in (STATIC, digest(STATIC), ADMINISTRATOR, token().rpartition(".")[0][:60])
        if secret in written
    ] == []


async def test_nothing_is_delivered_after_expiry_or_revocation(cluster: Cluster) -> None:
    """A publisher goes on, and another client with the same rights receives everything."""
    topic = "quotes/ended"
    expires_at = time.time() + 3.0
    credentials = {"expired": token(exp=expires_at), "revoked later": token(jti="later"), "right": token()}
    seen: dict[str, dict[str, float]] = {name: {} for name in credentials}  # the last time of each kind of message
    closed: dict[str, tuple[float, int | None]] = {}  # when, and the broker's code

    async def read(name: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            data = json.loads(frame.data)
            for message in data if isinstance(data, list) else [data]:
                seen[name][message["op"]] = time.time()
        closed[name] = time.time(), socket.close_code

    async with (
        aiohttp.ClientSession() as session,
        Client([cluster.first.url], token=token, ssl_context=cluster.trust) as writer,
        asyncio.TaskGroup() as readers,
    ):
        sockets = {}
        for name, credential in credentials.items():
            socket = await session.ws_connect(cluster.first.url, protocols=["migratory.v1.json"], ssl=cluster.trust)
            await socket.send_json({"op": "connect", "token": credential})
            await socket.send_json({"op": "subscribe", "request": 1, "topics": [{"topic": topic}]})
            sockets[name] = socket
            readers.create_task(read(name, socket))
        await until(lambda: all("subscribed" in kinds for kinds in seen.values()), "all are subscribed")
        revoke(cluster.folder, tokens=["revoked", "later"])
        for end in ("expired", "revoked later"):
            while end not in closed:
                await writer.publish(topic, b"x")
                await asyncio.sleep(0.01)
        for _ in range(20):
            await writer.publish(topic, b"x")
        await until(lambda: seen["right"]["message"] > max(at for at, _ in closed.values()), "the others go on")
        await sockets["right"].close()
    assert (closed["expired"][1], closed["revoked later"][1]) == (4002, 4001)
    assert expires_at - 1.0 < seen["expired"]["token_expiring"] < expires_at - 0.3
    assert seen["expired"]["message"] < expires_at + 0.5  # the timer's grain, and a busy machine


# ---- the peers' port ---------------------------------------------------------------------------------------------

PEERS = """
certificate  own-name  other-name  other-cluster  other-incarnation
plain        refused   .           .              .
none         refused   .           .              .
stranger     refused   .           .              .
expired      refused   .           .              .
other        refused   .           .              .
right        linked    refused     refused        refused
"""
"""Whether a link is made to somebody that knows names and incarnations, by its certificate and what its Hello says:
TLS without a certificate, with one of another authority, one that has expired, and that of another broker."""


async def test_peers(cluster: Cluster) -> None:
    target, name = cluster.brokers["b1"], "b0"  # of two brokers the one with the smaller name dials
    incarnation = target.status()["logic"]["peers"][name]
    hellos = {
        "own-name": PeerHello(PEER_VERSION, "test", name, incarnation, 8),
        "other-name": PeerHello(PEER_VERSION, "test", "b2", 1, 8),
        "other-cluster": PeerHello(PEER_VERSION, "other", name, incarnation, 8),
        "other-incarnation": PeerHello(PEER_VERSION, "test", name, incarnation + 1, 8),
    }
    issued = {
        "stranger": DevelopmentAuthority().issue([name]),
        "expired": cluster.authority.issue([name], validity=timedelta(seconds=-1)),
        "other": cluster.authority.issue(["b1"]),
        "right": cluster.authority.issue([name]),
    }

    def context(certificate: str) -> ssl.SSLContext | None:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.load_verify_locations(cluster.folder / "ca.crt")
        if certificate in issued:
            for number, part in enumerate(issued[certificate]):
                (cluster.folder / f"tried{number}").write_bytes(part)
            made.load_cert_chain(cluster.folder / "tried0", cluster.folder / "tried1")
        return made if certificate != "plain" else None

    tried = list(table(PEERS))
    before = target.metric("migratory_tls_refused_total"), target.metric("migratory_peer_messages_refused_total")

    async def answer(certificate: str, hello: str, expected: list[str]) -> tuple[str, str, list[str]]:
        tls = context(certificate)
        while True:
            answers = [await link(target, tls, hellos[hello])]
            # the real broker dials again, and may end the link before its answer has come
            if expected in (answers, ["refused"]) or asyncio.get_running_loop().time() > deadline:
                return certificate, hello, answers

    deadline = asyncio.get_running_loop().time() + LIMIT
    assert await asyncio.gather(*(answer(*each) for each in tried)) == tried
    # A certificate is refused in the handshake, what is said with the right one afterwards, as is a name of another.
    # The real broker, whose link is replaced, probes the port: that counts as nothing.
    assert target.metric("migratory_tls_refused_total") == before[0] + 4
    assert target.metric("migratory_peer_messages_refused_total") == before[1] + 4


async def link(broker: Broker, tls: ssl.SSLContext | None, hello: PeerHello) -> str:
    """Send `hello` to a broker's port for peers. Return "linked" if it answers with its own, and "refused" if the
    connection ends without an answer."""
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection(
            *broker.address("peers"), ssl=tls, server_hostname=broker.name if tls else None
        )
        try:
            data = encode_peer(hello)
            writer.write(length_prefix(data) + data)
            if await asyncio.wait_for(reader.read(100), LIMIT):
                return "linked"
        finally:
            writer.close()
            await writer.wait_closed()
    return "refused"


# ---- the administration's port -----------------------------------------------------------------------------------

ADMINISTRATION = """
page          plain    none  query  client  administrator
/healthz      refused  200   200    200     200
/readyz       refused  200   200    200     200
/metrics      refused  200   200    200     200
/v1/status    refused  401   401    401     200
/v1/servers   refused  401   401    401     200
/nothing      refused  404   404    404     404
"""
"""The answers at the administration's port: without TLS, without a token, with the right one in the query, with a
client's token that has all rights, and with the right one."""


async def test_administration(cluster: Cluster) -> None:
    wrong = {}
    host, port = cluster.first.address("admin")
    credentials = {"client": token(), "administrator": ADMINISTRATOR, "plain": ADMINISTRATOR}
    refused = 0
    before = cluster.first.metric("migratory_administration_refused_total")
    async with aiohttp.ClientSession() as session:
        for path, identity, (expected,) in table(ADMINISTRATION):
            url = f"{'http' if identity == 'plain' else 'https'}://{host}:{port}{path}"
            url += f"?access_token={ADMINISTRATOR}" if identity == "query" else ""
            answer = await page(session, url, credentials.get(identity), ssl=cluster.trust)
            refused += answer == "401"
            if answer != expected:
                wrong[path, identity] = answer
        assert wrong == {}
        base = f"https://{host}:{port}/v1/status"
        for method in ("POST", "PUT", "DELETE"):
            async with session.request(
                method, base, headers={"Authorization": f"Bearer {ADMINISTRATOR}"}, ssl=cluster.trust
            ) as response:
                assert response.status == 405
    assert cluster.first.metric("migratory_administration_refused_total") == before + refused
    assert "administration_refused" in cluster.first.log.read_text()
