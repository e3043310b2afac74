"""Asking a server: one pool per process and way of access, bounded retries, every failure an error that says what
happened.

Blocking, for Spark runs readers in processes of their own. urllib3 waits and tries again after failed connections and
after 429, 502, 503 and 504; what an answer's body needs is begun again by the caller.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import urllib3
from urllib3.exceptions import HTTPError, IncompleteRead, MaxRetryError, ReadTimeoutError, SSLError

from migratory_spark.errors import BrokenAnswer, ServerError, TooMuch, Unsupported
from migratory_spark.prometheus.options import Access

_PIECE = 1 << 18
_BUSY = frozenset({429, 502, 503, 504})
_LONGEST_ERROR = 300
_LIMITS = ("limit", "too many", "too large", "timed out", "timeout", "exceed")


class Answer:
    """An answer with status 200 whose body is still to be read, within the limits of time."""

    def __init__(self, server: str, response: urllib3.BaseHTTPResponse, deadline: float, access: Access) -> None:
        self.server = server
        self.content_type = response.headers.get("Content-Type", "")
        self._response = response
        self._deadline = deadline
        self._access = access

    def pieces(self) -> Iterator[bytes]:
        """The body as it comes. Raises ServerError, BrokenAnswer where it ends early."""
        with _explained(self.server, self._access):
            for piece in self._response.stream(_PIECE):
                if time.monotonic() > self._deadline:
                    raise ServerError(
                        self.server,
                        f"the answer took longer than {self._access.answer_limit:g} s: shorten option partition, or "
                        "raise answerLimit",
                    )
                yield piece

    def body(self) -> bytes:
        return b"".join(self.pieces())


@contextmanager
def ask(
    server: str, path: str, access: Access, body: bytes, headers: Mapping[str, str], method: str = "POST"
) -> Iterator[Answer]:
    """Raises Unsupported, TooMuch or ServerError by what the server says."""
    deadline = time.monotonic() + access.answer_limit
    with _explained(server, access):
        response = _pool(access).request(
            method,
            server + path,
            body=body or None,
            headers={**dict(access.headers), **headers},
            preload_content=False,
            # To another host it would carry the credentials along.
            redirect=False,
        )
    try:
        if response.status != 200:
            with _explained(server, access):
                if 300 <= response.status < 400:
                    elsewhere = response.headers.get("Location", "nowhere")
                    raise ServerError(server, f"points elsewhere, to {elsewhere}: is that the option url?")
                raise _refusal(server, response.status, response.read(4096, decode_content=True))
        yield Answer(server, response, deadline, access)
        response.release_conn()
    finally:
        # What was not read to its end can't be used again.
        response.close()


@lru_cache(maxsize=8)
def _pool(access: Access) -> urllib3.PoolManager:
    retries = urllib3.Retry(
        total=access.retries,
        connect=access.retries,
        read=access.retries,
        status=access.retries,
        status_forcelist=_BUSY,
        allowed_methods=None,  # reads, all of them, though by POST
        backoff_factor=0.2,
        backoff_max=10,
        backoff_jitter=0.2,
        raise_on_status=False,
        # A server that names an hour would hold a task for an hour.
        respect_retry_after_header=False,
    )
    return urllib3.PoolManager(
        retries=retries,
        timeout=urllib3.Timeout(connect=min(10.0, access.timeout), read=access.timeout),
        ca_certs=access.ca_file,
        cert_file=access.cert_file,
        key_file=access.key_file,
        cert_reqs="CERT_REQUIRED",
    )


@contextmanager
def _explained(server: str, access: Access) -> Iterator[None]:
    try:
        yield
    except MaxRetryError as error:
        reason = error.reason
        if isinstance(reason, SSLError):
            raise ServerError(server, f"no TLS: {reason}; see options caFile, certFile and keyFile") from error
        if isinstance(reason, ReadTimeoutError):
            raise _silent(server, access) from error
        tries = f" ({access.retries + 1} tries)" if access.retries else ""
        raise ServerError(server, f"can't be reached{tries}: {reason}; is option url right?") from error
    except ReadTimeoutError as error:
        raise _silent(server, access) from error
    except IncompleteRead as error:
        raise BrokenAnswer(server, f"the answer ended early: {error}") from error
    except HTTPError as error:
        raise BrokenAnswer(server, f"the answer broke off: {error}") from error
    except OSError as error:
        raise ServerError(server, f"can't be asked: {error}") from error


def _silent(server: str, access: Access) -> ServerError:
    return ServerError(
        server,
        f"did not answer for {access.timeout:g} s ({access.retries + 1} tries): raise option timeout, or shorten "
        "partition so that less is asked for at once",
    )


def _refusal(server: str, status: int, body: bytes) -> ServerError:
    text = " ".join(body.decode(errors="replace").split())[:_LONGEST_ERROR] or "without a word"
    match status:
        case 401 | 403:
            return ServerError(server, f"refuses access (HTTP {status}): {text}; see options tokenFile and user")
        case 404 | 405 | 501:
            return Unsupported(server, f"has no such interface (HTTP {status}): {text}; is option url right?")
        case 413 | 422:
            return TooMuch(server, f"refuses (HTTP {status}): {text}")
        case 400 | 500 | 503 if any(word in text.lower() for word in _LIMITS):
            return TooMuch(server, f"refuses (HTTP {status}): {text}")
        case _:
            return ServerError(server, f"answers HTTP {status}: {text}")
