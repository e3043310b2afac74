"""The ZooKeeper client of the logic, and the only file that imports kazoo.

kazoo calls back on its own threads; every callback here only posts to the loop. Nothing waits in a listener, and no
kazoo call blocks except `stop`, which has a thread and a timeout of its own. Until `stop`, every request is answered
exactly once: `unknown` when the connection was lost meanwhile or no answer arrives in time, and `unknown` after a delay
when there is no connection, so that a logic that retries at once does not spin.

A server that is ending a session may leave a request unanswered and answer the next one. kazoo then gives up for good
with nothing but a log line, so another client with another session replaces it. A server may also resume a session just
before it learns that the session has ended. It then answers pings, refuses each request because the session expired,
and leaves the connection open, and kazoo stays connected. Such a client is replaced as well.

With credentials, every node has the ACL that they ask for: all permissions for their user and none for others, or all
for everybody. Nodes with another ACL get it in each new session. Where ZooKeeper denies access, because of wrong
credentials or another ACL, the logic gets no session, or its request is refused; `denied` names the node.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import selector_select
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_digest_acl

from migratory_broker.core.logic import events
from migratory_broker.runtime.config import CredentialsSection
from migratory_broker.runtime.errors import ZooKeeperError
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.tls import Certificate

_UNKNOWN = (AuthFailedError, ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError)

OFFLINE_DELAY = 0.1
"""Seconds until a request that was made without a connection is answered with `unknown`."""
ENSURE_RETRY = 1.0
"""Seconds until a step of the session's start, such as the creation of a node of the root path, is tried again after it
got no answer or a refusal."""
REPLACE_DELAY = 0.5
"""Seconds until a new client replaces one that gave up."""
UNANSWERED_TIMEOUTS = 2
"""Multiple of the session timeout after which a request on an open connection is answered with `unknown`. A server that
is merely slow loses its sessions long before."""
REQUESTS_AT_ONCE = 100
"""Requests of the logic that are with ZooKeeper at the same time; others wait. kazoo takes 0.1 ms of the loop for each,
and a broker with thousands of groups makes thousands of requests in one turn."""
TLS_LOG_INTERVAL = 10.0
"""Seconds between two log lines about TLS handshakes that failed."""
MAX_PASSWORD = 255
"""Characters of the longest password."""
DENIED_SECONDS = 10.0
"""Seconds for which `denied` names a node after access to it was denied, and between two log lines about this. Longer
than the pauses of the logic between two attempts."""

_POLL = SimpleNamespace(
    EVENT_READ=selectors.EVENT_READ, EVENT_WRITE=selectors.EVENT_WRITE, DefaultSelector=selectors.PollSelector
)


class _PollHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, changed to wait with `poll`. The default opens a descriptor for each wait, so that a connection
    would end when the process has none left. With `tls`, connections use TLS.

    :param tls: the certificate of the broker, None for no TLS.
    :param on_tls_failure: called with the error of a TLS handshake that failed, on a thread of kazoo.
    """

    def __init__(self, tls: Certificate | None, on_tls_failure: Callable[[OSError], None]) -> None:
        super().__init__()
        self._tls = tls
        self._on_tls_failure = on_tls_failure

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Return a connection to a server of ZooKeeper, after the TLS handshake where there is TLS. Raises OSError,
        after a report to `on_tls_failure` if the TLS handshake failed. Blocks a thread of kazoo."""
        if self._tls is None:
            return super().create_connection(*args, **kwargs)
        connection = socket.create_connection(kwargs["address"], kwargs["timeout"])
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.client.wrap_socket(connection, server_hostname=kwargs["hostname"])
        except OSError as error:
            connection.close()
            self._on_tls_failure(error)
            raise

    def select(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for sockets as `select.select` does, with `poll`."""
        return selector_select(*args, selectors_module=_POLL, **kwargs)


@dataclass(frozen=True, slots=True)
class ZooKeeperCredentials:
    """User and password of the brokers in ZooKeeper. `protect`: whether the cluster's nodes get an ACL for this user
    alone. Otherwise they get one for everybody, which brokers without credentials need."""

    user: str
    password: str = field(repr=False)
    protect: bool = True

    @classmethod
    def load(cls, section: CredentialsSection) -> ZooKeeperCredentials:
        """Return the credentials of the configuration. One line end after the password does not belong to the password.

        :raises ZooKeeperError: the file cannot be read, or its content is not one line of 1 to 255 printable ASCII
            characters.
        """
        where = f"zookeeper.credentials.passwordFile: {section.password_file}"
        try:
            password = Path(section.password_file).read_text("ascii").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise ZooKeeperError(f"{where} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            password = ""
        if not password.isprintable() or not 0 < len(password) <= MAX_PASSWORD:
            raise ZooKeeperError(
                f"{where} has no password; allowed is one line of 1 to {MAX_PASSWORD} ASCII characters"
            )
        return cls(section.user, password, section.protect)

    @property
    def acl(self) -> list[ACL]:
        """The ACL of each node of the cluster: all permissions for this user alone, or for everybody without
        `protect`."""
        return [make_digest_acl(self.user, self.password, all=True)] if self.protect else list(OPEN_ACL_UNSAFE)


_Step = tuple[Literal["create", "exists", "get"], str]
"""A request at the start of a session, and its path."""


class ZooKeeper:
    """The connection to ZooKeeper: it carries out the logic's requests and posts the replies. All methods are for the
    loop's thread. `connected` is True while there is a session in which requests are carried out, and the event
    `first_connected` is set at the first one. `denials` is the number of requests so far to which access was denied.

    :param servers: in the syntax of ZooKeeper's clients.
    :param root: the path below which all paths of the logic are; created when missing.
    :param session_timeout: in seconds.
    :param post: called with the events for the logic.
    :param credentials: the user and the password to authenticate with; None: no authentication, and created nodes are
        open to everybody.
    :param tls: the certificate of the broker, and the authority of ZooKeeper's members; None for no TLS.
    """

    def __init__(
        self,
        servers: str,
        root: str,
        session_timeout: float,
        post: Callable[[events.Event], None],
        log: Log,
        credentials: ZooKeeperCredentials | None = None,
        tls: Certificate | None = None,
    ) -> None:
        self._servers = servers
        self._root = root
        self._credentials = credentials
        self._tls = tls
        self._tls_logged_at = float("-inf")
        self._post = post
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._session_timeout = session_timeout
        self._client = self._new_client()
        self._connected = False
        self._session = 0
        self._ensuring: list[_Step] | None = None  # steps of the session's start that are still to do
        self._protection: asyncio.Task[None] | None = None
        self._protected_session = 0  # in which all nodes were given the ACL
        self.denials = 0  # requests to which access was denied
        self._denied = ""
        self._denied_at = self._denial_logged_at = float("-inf")
        self._generation = 0  # counts state changes, to recognise late answers about older ones
        self._outstanding: dict[int, asyncio.TimerHandle] = {}  # request -> its timeout
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # those of them that are not sent yet
        self._sent: set[int] = set()  # the others
        self._watches: dict[tuple[str, str], Callable[[WatchedEvent], None]] = {}
        self._lost_watches: dict[str, None] = {}
        self._closed = False
        self.first_connected = asyncio.Event()

    def set_servers(self, servers: str) -> None:
        """Use these servers, in the syntax of ZooKeeper's clients, for the next connection. A present one stays."""
        self._servers = servers
        self._client.set_hosts(servers)

    def _new_client(self) -> KazooClient:
        """Return a new client that is not started, with the servers, credentials and certificate of this object."""
        library = logging.getLogger("migratory.kazoo")
        library.setLevel(logging.ERROR)  # state changes are logged here
        options: dict[str, Any] = {}
        if self._credentials is not None:
            pair = f"{self._credentials.user}:{self._credentials.password}"
            options = {"auth_data": [("digest", pair)], "default_acl": self._credentials.acl}
        client = KazooClient(
            hosts=self._servers,
            timeout=self._session_timeout,
            handler=_PollHandler(self._tls, partial(self._to_loop, self._on_tls_failure)),
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0),
            logger=library,
            **options,
        )
        client.add_listener(partial(self._on_state, client))
        return client

    @property
    def connected(self) -> bool:
        """True while there is a session whose first steps are done, so that requests are sent."""
        return self._connected

    @property
    def denied(self) -> str:
        """The full path of the node to which access was denied last, within the last DENIED_SECONDS and since the last
        start of a session; "" if there is none."""
        return self._denied if self._loop.time() - self._denied_at < DENIED_SECONDS else ""

    def start(self) -> None:
        """Begin to connect. `ZkSession` is posted once there is a session and the root node exists."""
        self._client.start_async()

    async def stop(self, limit: float) -> bool:
        """Close the client, which ends the session, so that its ephemeral nodes are deleted at once, and post no more
        events. Return whether closing ended within `limit` seconds. If it failed, or without a connection, the session
        ends at its timeout."""
        self._closed = True
        if self._protection is not None:
            self._protection.cancel()
        done = asyncio.Event()

        def stop() -> None:
            try:
                _stop_client(self._client)
            finally:
                self._to_loop(done.set)

        threading.Thread(target=stop, name="zookeeper-stop", daemon=True).start()
        try:
            async with asyncio.timeout(limit):
                await done.wait()
        except TimeoutError:
            return False
        return True

    # ---- the logic's effects ---------------------------------------------------------------------------------------

    def get(self, effect: events.ZkGet) -> None:
        """Read a node as the effect says, and post a `ZkReply`."""
        self._request(effect.request, partial(self._get, effect))

    def children(self, effect: events.ZkChildren) -> None:
        """List the children of a node as the effect says, and post a `ZkReply`."""
        self._request(effect.request, partial(self._children, effect))

    def commit(self, effect: events.ZkCommit) -> None:
        """Carry out a transaction as the effect says, and post a `ZkReply`."""
        self._request(effect.request, partial(self._commit, effect))

    def _get(self, effect: events.ZkGet) -> None:
        """Send the read of a node, with a watch if the effect wants one."""
        watch = self._watch("data", effect.path) if effect.watch else None
        result = self._client.get_async(self._full_path(effect.path), watch=watch)
        result.rawlink(partial(self._post_result, self._got, effect))

    def _children(self, effect: events.ZkChildren) -> None:
        """Send the listing of a node's children, with a watch if the effect wants one."""
        watch = self._watch("children", effect.path) if effect.watch else None
        result = self._client.get_children_async(self._full_path(effect.path), watch=watch)
        result.rawlink(partial(self._post_result, self._listed, effect))

    def _commit(self, effect: events.ZkCommit) -> None:
        """Send the operations of a transaction."""
        transaction = self._client.transaction()
        for operation in effect.operations:
            path = self._full_path(operation.path)
            if isinstance(operation, events.ZkCreate):
                transaction.create(path, operation.data, ephemeral=operation.ephemeral)
            elif isinstance(operation, events.ZkWrite):
                transaction.set_data(path, operation.data, operation.version)
            elif isinstance(operation, events.ZkDelete):
                transaction.delete(path, operation.version)
            else:
                transaction.check(path, operation.version)
        transaction.commit_async().rawlink(partial(self._post_result, self._committed, effect))

    def _request(self, request: int, send: Callable[[], None]) -> None:
        """Send the request with the number `request` by `send()`, after the earlier ones and at most REQUESTS_AT_ONCE
        at the same time. Answer it with `unknown` if no answer comes within UNANSWERED_TIMEOUTS session timeouts, or,
        without a connection, after OFFLINE_DELAY."""
        call_later = self._loop.call_later
        if not self._connected:
            self._outstanding[request] = call_later(OFFLINE_DELAY, self._unknown, request, "no connection")
            return
        limit = UNANSWERED_TIMEOUTS * self._session_timeout
        self._outstanding[request] = call_later(limit, self._on_request_timeout, request)
        self._waiting.append((request, send))
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send waiting requests until REQUESTS_AT_ONCE are with ZooKeeper."""
        while self._waiting and len(self._sent) < REQUESTS_AT_ONCE:
            request, send = self._waiting.popleft()
            if request in self._outstanding:
                self._sent.add(request)
                send()

    def _full_path(self, path: str) -> str:
        """Return the path in ZooKeeper of a path of the logic, which is below the root."""
        return self._root + path if path != "/" else self._root

    def _watch(self, kind: str, path: str) -> Callable[[WatchedEvent], None]:
        """Return the function that kazoo calls when a watch of this kind on this path fires."""
        # the same object for the same watch, so that kazoo stores it once
        return self._watches.setdefault((kind, path), partial(self._on_watch, path))

    # ---- on kazoo's threads: only post -----------------------------------------------------------------------------

    def _to_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """Schedule a call on the loop's thread. Drop it if the loop has ended after `stop`."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            # the loop has ended, so the result is not needed
            if not self._closed:
                raise

    def _post_result(self, call: Callable[..., None], effect: object, result: Any) -> None:
        """Schedule `call(effect, result)` on the loop's thread, for the result of a request."""
        self._to_loop(call, effect, result)

    def _on_state(self, client: KazooClient, state: str) -> None:
        """Report a change of a client's state to the loop, and that the client has closed itself."""
        client_id = client.client_id if state == KazooState.CONNECTED else None
        self._to_loop(self._changed_state, client, state, client_id[0] if client_id else 0)
        if client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):  # it was stopped, or gave up
            self._to_loop(self._on_client_closed, client)

    def _on_watch(self, path: str, event: WatchedEvent) -> None:
        self._to_loop(self._watched, path, event.type == EventType.NONE)

    # ---- on the loop -----------------------------------------------------------------------------------------------

    def _changed_state(self, client: KazooClient, state: str, session: int) -> None:
        """Handle a changed state of the present client; ignore one of a replaced client, and all after `stop`. With a
        new connection, begin the first steps of the session. Without one, answer all requests with `unknown`, post that
        the session is suspended or lost, and after a session timeout forget the seen transactions."""
        if self._closed or client is not self._client:
            return
        self._generation += 1
        if self._protection is not None:
            self._protection.cancel()
        self._log("info", "zookeeper_state", state=state.lower(), session=f"{session:x}")
        if state == KazooState.CONNECTED:
            self._session = session
            self._ensure(self._generation, self._first_steps())
            return
        self._connected = False
        self._waiting.clear()
        self._loop.call_later(self._session_timeout, self._forget_transactions, self._generation)
        for request in sorted(self._outstanding):
            self._unknown(request, "connection lost")
        self._post(events.ZkSession("suspended" if state == KazooState.SUSPENDED else "lost"))

    def _forget_transactions(self, generation: int) -> None:
        """Let the client connect to servers that have fewer transactions than it has seen. Called a session timeout
        after the connection was lost; does nothing if the state of the connection has changed since `generation`.

        A server refuses a client that has seen more transactions than the server, as the server may merely lag. But one
        that lost its data, or was rolled back, would refuse for ever. The logic verifies the data, and writes before it
        reads, in each session.
        """
        if generation == self._generation and not self._closed:
            self._client.last_zxid = 0

    def _on_tls_failure(self, error: OSError) -> None:
        """Count a TLS handshake that failed. Log at most one line in TLS_LOG_INTERVAL: connecting is tried again for
        ever."""
        assert self._tls is not None
        self._tls.refused += 1
        if self._loop.time() - self._tls_logged_at >= TLS_LOG_INTERVAL:
            self._tls_logged_at = self._loop.time()
            reason = getattr(error, "verify_message", "") or str(error) or type(error).__name__
            self._log("error", "zookeeper_tls_failed", reason=reason)

    def _on_client_closed(self, client: KazooClient) -> None:
        """Replace the present client, which has closed itself: it gave up, or the server refused its way of
        authentication."""
        if self._closed or client is not self._client:
            return
        if client.client_state == KeeperState.AUTH_FAILED:  # the server does not know the scheme of the credentials
            self._deny(self._root)
        else:
            self._log("error", "zookeeper_client_closed")
        self._replace_client()

    def _on_expired_reply(self) -> None:
        """Replace the client: its session has ended although its connection stays open. All requests are answered with
        `unknown`, and the session is reported as lost."""
        self._log("warning", "zookeeper_session_ended", session=f"{self._session:x}")
        self._changed_state(self._client, KazooState.LOST, 0)
        self._replace_client()

    def _replace_client(self) -> None:
        """Create a new client in the place of the present one, and start it after REPLACE_DELAY. Its first session
        reports every node with a watch as changed."""
        # kazoo may end the threads that report lost watches before they do.
        self._lost_watches |= dict.fromkeys(path for _, path in self._watches)
        ended, self._client = self._client, self._new_client()
        self._loop.call_later(REPLACE_DELAY, self._start_replacement, ended)

    def _start_replacement(self, ended: KazooClient) -> None:
        """Stop the client `ended` on a thread of its own, and start the new one."""
        threading.Thread(target=_stop_client, args=(ended,), name="zookeeper-close", daemon=True).start()
        if not self._closed:
            self._client.start_async()

    def _parents(self) -> list[str]:
        """Return the paths of the nodes that lead to the root, the root included, from the top."""
        parts = self._root.strip("/").split("/")
        return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]

    def _first_steps(self) -> list[_Step]:
        """Return the requests with which each session begins: create the nodes of the root path, and read the root."""
        return [*(("create", path) for path in self._parents()), ("get", self._root)]

    def _ensure(self, generation: int, steps: list[_Step]) -> None:
        """Carry out the first of `steps`, whose answer leads to the next one; tried again after ENSURE_RETRY without an
        answer. When none is left, post that there is a session, report every node as changed whose watch was lost with
        the connection, and with credentials begin to protect the nodes. Nothing happens if the state of the connection
        has changed since `generation`."""
        if generation != self._generation or self._closed:
            return
        if steps:
            self._ensuring = steps
            verb, path = steps[0]
            if verb == "create":
                result = self._client.create_async(path, b"")
            else:
                result = (self._client.get_async if verb == "get" else self._client.exists_async)(path)
            result.rawlink(partial(self._post_result, self._ensured, (generation, steps)))
            # A server that resumes a session while it ends may answer without a path, which kazoo takes for no answer.
            self._loop.call_later(ENSURE_RETRY, self._retry_ensure, generation, steps)
            return
        self._connected = True
        self.first_connected.set()
        self._denied_at = float("-inf")
        self._post(events.ZkSession("connected", self._session))
        lost, self._lost_watches = self._lost_watches, {}
        for path in lost:
            self._post(events.ZkChanged(path))
        if self._credentials is not None and self._session != self._protected_session:
            self._protection = self._loop.create_task(self._protect(self._session, self._credentials.acl))

    def _retry_ensure(self, generation: int, steps: list[_Step]) -> None:
        """Try the first of `steps` again if it got no answer."""
        if self._ensuring is steps:
            self._ensure(generation, steps)

    def _ensured(self, step: tuple[int, list[_Step]], result: Any) -> None:
        """Handle the answer to a step of the session's start: go on with the next step, or try again later after a
        refusal."""
        generation, steps = step
        if self._ensuring is not steps:
            return  # an earlier attempt for the same step was answered
        self._ensuring = None
        (verb, path), error = steps[0], result.exception
        if isinstance(error, NoAuthError) and verb == "create":
            # It may exist all the same: ZooKeeper checks the permission on the parent first.
            self._ensure(generation, [("exists", path), *steps[1:]])
        elif isinstance(error, NoAuthError) or (verb == "exists" and error is None and result.value is None):
            self._deny(path)
            self._loop.call_later(ENSURE_RETRY, self._ensure, generation, self._first_steps())
        elif error is None or isinstance(error, NodeExistsError):
            self._ensure(generation, steps[1:])
        elif isinstance(error, SessionExpiredError) and generation == self._generation:
            self._on_expired_reply()
        elif not isinstance(error, _UNKNOWN):
            self._log("error", "zookeeper_refused", path=path, reason=repr(error))
            self._loop.call_later(ENSURE_RETRY, self._ensure, generation, steps)

    async def _protect(self, session: int, acl: list[ACL]) -> None:
        """Give `acl` to the root and all nodes below it that have another one, with one request at a time, so that
        requests of the logic do not wait. The nodes above the root are left alone, because other programs may use them.
        After an error of the connection this ends, and the next session does it again."""
        paths, changed = [self._root], 0
        try:
            while paths:
                path = paths.pop()
                try:
                    if (await self._result(self._client.get_acls_async(path)))[0] != acl:
                        await self._result(self._client.set_acls_async(path, acl))
                        changed += 1
                    names = await self._result(self._client.get_children_async(path))
                    paths += [f"{path}/{name}" for name in names]
                except NoNodeError:
                    continue  # deleted meanwhile
                except NoAuthError:
                    self._deny(path)
        except KazooException as error:
            self._log("warning", "zookeeper_protection_interrupted", reason=repr(error))
            return
        self._protected_session = session
        if changed:
            self._log("info", "zookeeper_acls_changed", nodes=changed, protected=acl != OPEN_ACL_UNSAFE)

    async def _result(self, result: Any) -> Any:
        """Wait for the result of a request, and return its value or raise its exception."""
        done = asyncio.Event()
        result.rawlink(partial(self._post_result, lambda *_: done.set(), None))
        await done.wait()
        if result.exception is not None:
            raise result.exception
        return result.value

    def _deny(self, path: str) -> None:
        """Count and report that ZooKeeper denied access to the node at `path`, a full path. Log at most one line in
        DENIED_SECONDS."""
        now = self._loop.time()
        self.denials += 1
        self._denied, self._denied_at = path, now
        if now - self._denial_logged_at >= DENIED_SECONDS:
            self._denial_logged_at = now
            user = self._credentials.user if self._credentials is not None else ""
            self._log("error", "zookeeper_access_denied", path=path, user=user)

    def _watched(self, path: str, lost: bool) -> None:
        """Post that a node has changed. `lost`: the watch ended with the connection; then it is posted once there is a
        connection."""
        if self._closed:
            return
        if not lost:
            self._post(events.ZkChanged(path))
        elif self._connected:
            # the connection returned before this event
            self._post(events.ZkChanged(path))
        else:
            self._lost_watches[path] = None

    def _got(self, effect: events.ZkGet, result: Any) -> None:
        """Answer a read of a node with its result."""
        error = result.exception
        if error is None:
            data, stat = result.value
            self._reply(events.ZkReply(effect.request, "ok", events.ZkNode(data, stat.version, stat.ephemeralOwner)))
        elif isinstance(error, NoNodeError):
            self._missing(effect)
        else:
            self._failed(effect.request, error, effect.path)

    def _listed(self, effect: events.ZkChildren, result: Any) -> None:
        """Answer a listing of children with its result: the names, sorted."""
        error = result.exception
        if error is None:
            self._reply(events.ZkReply(effect.request, "ok", children=tuple(sorted(result.value))))
        elif isinstance(error, NoNodeError):
            self._missing(effect)
        else:
            self._failed(effect.request, error, effect.path)

    def _missing(self, effect: events.ZkGet | events.ZkChildren) -> None:
        """Answer a read or listing of a node that does not exist. If a watch was wanted, first set one with `exists`,
        because the read left none; if the node exists by then, read again."""
        if not effect.watch:
            self._reply(events.ZkReply(effect.request, "ok"))
        elif effect.request in self._outstanding:
            result = self._client.exists_async(self._full_path(effect.path), watch=self._watch("data", effect.path))
            result.rawlink(partial(self._post_result, self._checked_existence, effect))

    def _checked_existence(self, effect: events.ZkGet | events.ZkChildren, result: Any) -> None:
        """Answer a read or listing of a missing node, on which the watch is set now. If the node was created in
        between, read again."""
        if result.exception is not None:
            self._failed(effect.request, result.exception, effect.path)
        elif result.value is None:
            self._reply(events.ZkReply(effect.request, "ok"))
        elif effect.request in self._outstanding:  # it was created in between
            self._outstanding.pop(effect.request).cancel()
            self._sent.remove(effect.request)
            (self.get if isinstance(effect, events.ZkGet) else self.children)(effect)  # type: ignore[arg-type]

    def _committed(self, effect: events.ZkCommit, result: Any) -> None:
        """Answer a transaction with its result: the versions of its nodes, or the errors of its operations if it was
        refused. Report the nodes to which access was denied."""
        if result.exception is not None:
            self._failed(effect.request, result.exception, "")
            return
        # kazoo returns exceptions as results of single operations
        errors = [type(outcome).__name__ for outcome in result.value if isinstance(outcome, Exception)]
        for operation, outcome in zip(effect.operations, result.value, strict=False):
            if isinstance(outcome, NoAuthError):
                self._deny(self._full_path(operation.path))
        if errors or len(result.value) != len(effect.operations):
            self._reply(events.ZkReply(effect.request, "refused", error=", ".join(errors) or "incomplete answer"))
            return
        versions = []
        for operation, outcome in zip(effect.operations, result.value, strict=True):
            if isinstance(operation, events.ZkCreate):
                versions.append(0)
            else:
                versions.append(outcome.version if isinstance(operation, events.ZkWrite) else -1)
        self._reply(events.ZkReply(effect.request, "ok", versions=tuple(versions)))

    def _failed(self, request: int, error: BaseException, path: str) -> None:
        """Answer a request that failed: with `unknown` if it may have been carried out, else with `refused`. `path` is
        that of the logic. Replace a client whose session has ended."""
        if isinstance(error, _UNKNOWN):
            expired = isinstance(error, SessionExpiredError) and request in self._outstanding
            self._unknown(request, type(error).__name__)
            if expired:  # otherwise kazoo reported the end of the session, and the request was answered then
                self._on_expired_reply()
        else:
            if isinstance(error, NoAuthError):
                self._deny(self._full_path(path))
            else:
                self._log("error", "zookeeper_refused", request=request, path=path, reason=repr(error))
            self._reply(events.ZkReply(request, "refused", error=type(error).__name__))

    def _on_request_timeout(self, request: int) -> None:
        """Log that a request got no answer in time, and answer it with `unknown`."""
        self._log("warning", "zookeeper_request_timeout", request=request)
        self._unknown(request, "no answer in time")

    def _unknown(self, request: int, reason: str) -> None:
        """Answer a request with `unknown` and this reason."""
        self._reply(events.ZkReply(request, "unknown", error=reason))

    def _reply(self, reply: events.ZkReply) -> None:
        """Post the reply to a request, and send a request that waits. Nothing happens if the request was answered
        before, or after `stop`."""
        timer = self._outstanding.pop(reply.request, None)
        self._sent.discard(reply.request)
        if timer is not None and not self._closed:
            timer.cancel()
            self._post(reply)
            self._send_waiting()


def _stop_client(client: KazooClient) -> None:
    """Stop and close a client. This blocks, so it is called in a thread of its own."""
    try:
        client.stop()
        client.close()
    except (KazooException, OSError) as error:
        logging.getLogger("migratory.kazoo").error("stopping: %r", error)
