"""Requests to a cluster's pods: the brokers' status pages, and the modes of ZooKeeper's members.

Pods are asked by IP address, because a DNS name resolves only after the pod's Service knows the pod. A pod that has no
address, does not answer in time or sends a malformed page is left out of the result; nothing is raised.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable, Sequence
from pathlib import Path

import aiohttp

from migratory_operator.api.broker_status import BrokerStatusPage, MalformedStatusPage
from migratory_operator.api.ensemble import EnsembleConfig, parse_config, parse_mode
from migratory_operator.names import ADMIN_PORT, TLS_VOLUME, ZOOKEEPER, ZOOKEEPER_PORT, Object, pod_host

_BROKER_TIMEOUT = 3.0
"""Seconds for a status page. A broker that hangs delays each reconciliation of its cluster by this time."""
_MAX_PAGE_BYTES = 64 * 2**20
"""The most bytes of a status page that are read. Ten thousand topic groups of a dozen brokers take some ten
million."""
_MEMBER_TIMEOUT = 2.0
"""Seconds for a ZooKeeper member's answer."""
_log = logging.getLogger(__name__)


class BrokerStatusClient:
    """An HTTP client that reads the brokers' status pages from their administration listeners.

    :param secret: the folder with the token and the authority of the brokers' certificates, "" for neither (see
        `OperatorSettings.broker_secret`). Its files are read for each round of requests.
    """

    def __init__(self, secret: str = "") -> None:
        self._secret = secret
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_BROKER_TIMEOUT), trust_env=False)

    async def pages(self, pods: Iterable[Object]) -> dict[str, BrokerStatusPage]:
        """Return the status pages by pod name, without those of pods that have no address, do not answer within 3 s,
        answer with an error, refuse the token, or send a malformed page. Return none if a file of the secret cannot be
        used."""
        pods = list(pods)
        addresses, schemes = _addresses(pods), {pod["metadata"]["name"]: _scheme(pod) for pod in pods}
        try:
            headers, tls = await asyncio.to_thread(self._read_secret)
        except (OSError, ValueError) as error:
            _log.warning("%s cannot be used: %s", self._secret, error)
            return {}
        answers = await asyncio.gather(
            *(self._page(name, address, schemes[name], headers, tls) for name, address in addresses.items())
        )
        return {name: page for name, page in zip(addresses, answers, strict=True) if page is not None}

    def _read_secret(self) -> tuple[dict[str, str], ssl.SSLContext | bool]:
        """Return the headers of a request, and the TLS context that checks the brokers' certificates; False, so that
        they are not checked, if the secret has no `ca.crt`.

        :raises OSError: a file cannot be used.
        :raises ValueError: the token cannot be sent. The message has no part of it.
        """
        file, authority = Path(self._secret, "token"), Path(self._secret, "ca.crt")
        headers = {}
        if self._secret and file.exists():
            token = file.read_text(errors="replace").strip()
            if not token.isprintable() or "\ufffd" in token:
                raise ValueError("token: a token is one line of printable text in UTF-8")
            headers["Authorization"] = f"Bearer {token}"
        checked = bool(self._secret) and authority.exists()
        return headers, ssl.create_default_context(cafile=str(authority)) if checked else False

    async def _page(
        self, name: str, address: str, scheme: str, headers: dict[str, str], tls: ssl.SSLContext | bool
    ) -> BrokerStatusPage | None:
        """Return the status page of one broker; None, and log why, if there is no answer, an error, or a malformed
        page.

        :param tls: as `_read_secret` returns it.
        """
        host = f"[{address}]" if ":" in address else address
        service = name.rpartition("-")[0]
        try:
            async with self._session.get(
                f"{scheme}://{host}:{ADMIN_PORT}/v1/status", headers=headers, ssl=tls, server_hostname=service
            ) as answer:
                if answer.status == 401:
                    _log.warning("%s: /v1/status needs a token: see operator.brokerSecret of the chart", name)
                    return None
                answer.raise_for_status()
                return await asyncio.to_thread(BrokerStatusPage.read, await _read_to_end(answer.content))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            _log.debug("%s does not answer: %r", name, error)
        except MalformedStatusPage as error:
            _log.warning("%s: /v1/status is malformed: %s", name, error)
        return None

    async def close(self) -> None:
        """Close the HTTP connections."""
        await self._session.close()


async def member_modes(pods: Sequence[Object], secret: str = "") -> dict[str, str]:
    """Return `leader`, `follower` or `standalone` by pod name, from ZooKeeper's command `srvr`. Members that do not
    answer within 2 s, or do not say their mode, are left out.

    The modes are only a hint, for a rollout to replace the leader last: a network policy may block the operator, or
    members may accept certificates of another authority, and the rollout goes on without them.

    :param pods: pods of ZooKeeper members.
    :param secret: as in `_ask_members`.
    """
    answers = await _ask_members(pods, "srvr", secret)
    return {name: mode for name, answer in answers.items() if (mode := parse_mode(answer))}


async def ensemble_configs(pods: Sequence[Object], secret: str = "") -> dict[str, EnsembleConfig]:
    """Return the ensemble's configuration by pod name, from ZooKeeper's command `conf`. Members that do not answer
    within 2 s, do not serve or do not allow the command are left out.

    :param pods: pods of ZooKeeper members.
    :param secret: as in `_ask_members`.
    """
    answers = await _ask_members(pods, "conf", secret)
    return {name: config for name, answer in answers.items() if (config := parse_config(answer))}


async def _ask_members(pods: Sequence[Object], command: str, secret: str) -> dict[str, str]:
    """Return the answers to one of ZooKeeper's four-letter commands by pod name, without those of members that do not
    answer within 2 s.

    :param pods: pods of ZooKeeper members.
    :param secret: the folder with `tls.crt`, `tls.key` and `ca.crt`, "" for none (see
        `OperatorSettings.broker_secret`). Without all three files, members with TLS are left out.
    """
    addresses, by_name = _addresses(pods), {str(pod["metadata"]["name"]): pod for pod in pods}
    try:
        tls = await asyncio.to_thread(_member_context, secret) if any(map(_has_tls, pods)) else None
    except OSError as error:
        _log.warning("%s cannot be used for ZooKeeper: %s", secret, error)
        tls = None
    answers = await asyncio.gather(
        *(_ask_member(by_name[name], command, address, tls) for name, address in addresses.items())
    )
    return {name: answer for name, answer in zip(addresses, answers, strict=True) if answer}


async def _ask_member(pod: Object, command: str, address: str, tls: ssl.SSLContext | None) -> str:
    """Return the answer of one member to a four-letter command; "" if it does not answer, or if it has TLS and `tls` is
    None."""
    name = str(pod["metadata"]["name"])
    host = pod_host(name, name.rpartition("-")[0], pod["metadata"]["namespace"])
    if not _has_tls(pod):
        tls, host = None, ""
    elif tls is None:
        return ""
    try:
        async with asyncio.timeout(_MEMBER_TIMEOUT):
            reader, writer = await asyncio.open_connection(
                address, _member_port(pod), ssl=tls, server_hostname=host or None
            )
            try:
                writer.write(command.encode())
                answer = await reader.read()  # a member closes the connection after its answer
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        _log.debug("%s does not answer %s: %r", name, command, error)
        return ""
    return answer.decode("ascii", "replace")


def _member_context(secret: str) -> ssl.SSLContext | None:
    """Return the TLS context of connections to members, or None if there is no secret or no `tls.crt` in it. Raise
    OSError if another file is missing, or if a file cannot be used."""
    certificate, key, authority = (Path(secret, name) for name in ("tls.crt", "tls.key", "ca.crt"))
    if not (secret and certificate.exists()):
        return None
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(certificate, key)
    return context


def _has_tls(member: Object) -> bool:
    return any(volume["name"] == TLS_VOLUME for volume in member.get("spec", {}).get("volumes", ()))


def _member_port(member: Object) -> int:
    """Return the port on which the member accepts clients: its container's port with the name `zookeeper`, or 2181 if
    there is none."""
    ports = (port for each in member.get("spec", {}).get("containers", ()) for port in each.get("ports", ()))
    return next((int(port["containerPort"]) for port in ports if port.get("name") == ZOOKEEPER), ZOOKEEPER_PORT)


def _scheme(pod: Object) -> str:
    """Return `https` for a broker's pod whose administration has TLS, and `http` for another one, as the HTTP readiness
    probe of the pod says. Pods of one cluster differ while they are replaced."""
    probes = (each.get("readinessProbe", {}) for each in pod.get("spec", {}).get("containers", ()))
    return next((str(probe["httpGet"]["scheme"]).lower() for probe in probes if "httpGet" in probe), "http")


def _addresses(pods: Iterable[Object]) -> dict[str, str]:
    """Return the IP addresses by pod name, without the pods that have none yet."""
    addresses = {str(pod["metadata"]["name"]): pod.get("status", {}).get("podIP") for pod in pods}
    return {name: str(address) for name, address in addresses.items() if address}


async def _read_to_end(content: aiohttp.StreamReader) -> bytes:
    """Return the whole body; a single read may return any part of it.

    :raises MalformedStatusPage: the body is longer than _MAX_PAGE_BYTES.
    """
    data = bytearray()
    async for part in content.iter_any():
        data += part
        if len(data) > _MAX_PAGE_BYTES:
            raise MalformedStatusPage(f"more than {_MAX_PAGE_BYTES} bytes")
    return bytes(data)
