"""Sends HTTP requests to Prometheus servers: connection pools, bounded retries, and errors that name server and cause.

Calls block, because Spark runs readers in processes of their own. urllib3 retries after failed connections and after
429, 502, 503 and 504. The caller retries if the body of a response breaks or stalls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import urllib3
from urllib3.exceptions import HTTPError, IncompleteRead, MaxRetryError, ReadTimeoutError, SSLError

from migratory_spark.prometheus.errors import BrokenResponse, InterfaceUnsupported, QueryTooLarge, ServerError, excerpt
from migratory_spark.prometheus.options import Access

_CHUNK_BYTES = 1 << 18
_RETRIED = frozenset({429, 502, 503, 504})
_LIMIT_WORDS = ("limit", "too many", "too large", "timed out", "timeout", "exceed")
_TIMEOUT_HINT = "raise option timeout, or shorten partition so that each request is smaller"


class Response:
    """A response with status 200, whose body is still to be read within the time limits."""

    def __init__(self, server: str, response: urllib3.BaseHTTPResponse, deadline: float, access: Access) -> None:
        self.server = server
        self.content_type = response.headers.get("Content-Type", "")
        self._response = response
        self._deadline = deadline
        self._access = access

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives. Raises BrokenResponse if it ends early or no byte arrives within `timeout`,
        ServerError if the whole response takes longer than `answer_limit`; both limits are settings of the request."""
        with _translate_errors(self.server, self._access):
            for chunk in self._response.stream(_CHUNK_BYTES):
                if time.monotonic() > self._deadline:
                    raise ServerError(
                        self.server,
                        f"the response took longer than {self._access.answer_limit:g} s: shorten option partition, or "
                        "raise answerLimit",
                    )
                yield chunk

    def body(self) -> bytes:
        """Return the whole body. Raises the errors of `chunks`."""
        return b"".join(self.chunks())


@contextmanager
def send_request(
    server: str, path: str, access: Access, body: bytes, headers: Mapping[str, str], method: str = "POST"
) -> Iterator[Response]:
    """Send a request, yield the response to the caller's `with` block, and close the response after it. Failed
    connections and the status codes 429, 502, 503 and 504 are retried.

    :param server: the server's URL, to which `path` is appended.
    :param access: time limits, number of retries, TLS files, and headers, which are sent beside `headers`.
    :raises InterfaceUnsupported, QueryTooLarge: by the status and text of a response that is not 200.
    :raises ServerError: for any other status but 200, also a redirect, and if there is no response.
    """
    deadline = time.monotonic() + access.answer_limit
    with _translate_errors(server, access):
        response = _pool(access).request(
            method,
            server + path,
            body=body or None,
            headers={**dict(access.headers), **headers},
            preload_content=False,
            # A redirect to another host would carry the credentials along.
            redirect=False,
        )
    try:
        if response.status != 200:
            with _translate_errors(server, access):
                if 300 <= response.status < 400:
                    location = response.headers.get("Location", "nowhere")
                    raise ServerError(server, f"redirects to {location}: is that the right option url?")
                raise _status_error(server, response.status, response.read(4096, decode_content=True))
        yield Response(server, response, deadline, access)
        response.release_conn()
    finally:
        # A connection whose response was not read to the end cannot be reused.
        response.close()


@lru_cache(maxsize=8)
def _pool(access: Access) -> urllib3.PoolManager:
    """Return the connection pool for requests with these settings. Pools are shared within this process."""
    retries = urllib3.Retry(
        total=access.retries,
        connect=access.retries,
        read=access.retries,
        status=access.retries,
        status_forcelist=_RETRIED,
        allowed_methods=None,  # all requests only read, even by POST
        backoff_factor=0.2,
        backoff_max=10,
        backoff_jitter=0.2,
        raise_on_status=False,
        # A server that asks to wait an hour would hold a task for an hour.
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
def _translate_errors(server: str, access: Access) -> Iterator[None]:
    """A context that raises ServerError or BrokenResponse, which name server and cause, for errors of a request."""
    try:
        yield
    except MaxRetryError as error:
        reason = error.reason
        if isinstance(reason, SSLError):
            raise ServerError(server, f"TLS failed: {reason}; see options caFile, certFile and keyFile") from error
        if isinstance(reason, ReadTimeoutError):
            raise ServerError(
                server, f"did not answer for {access.timeout:g} s ({access.retries + 1} tries): {_TIMEOUT_HINT}"
            ) from error
        tries = f" ({access.retries + 1} tries)" if access.retries else ""
        raise ServerError(server, f"cannot be reached{tries}: {reason}; is option url right?") from error
    except ReadTimeoutError as error:  # of a body: urllib3 retries a request, which ends as MaxRetryError
        raise BrokenResponse(
            server, f"the response stalled, with no byte for {access.timeout:g} s: {_TIMEOUT_HINT}"
        ) from error
    except IncompleteRead as error:
        raise BrokenResponse(server, f"the response ended early: {error}") from error
    except HTTPError as error:
        reason = error.args[0] if error.args else error
        raise BrokenResponse(server, f"the response broke off: {reason}") from error
    except OSError as error:
        raise ServerError(server, f"the request failed: {error}") from error


def _status_error(server: str, status: int, body: bytes) -> ServerError:
    """Return the error for a response whose status is not 200, by the status and the text of the body."""
    text = excerpt(body)
    match status:
        case 401 | 403:
            return ServerError(server, f"refuses access (HTTP {status}): {text}; see options tokenFile and user")
        case 404 | 405 | 501:
            return InterfaceUnsupported(server, f"has no such interface (HTTP {status}): {text}; is option url right?")
        case 400 if "unsupported path" in text:  # VictoriaMetrics
            return InterfaceUnsupported(server, f"has no such interface (HTTP {status}): {text}; is option url right?")
        case 413 | 422:
            return QueryTooLarge(server, f"refuses (HTTP {status}): {text}")
        case 400 | 500 | 503 if any(word in text.lower() for word in _LIMIT_WORDS):
            return QueryTooLarge(server, f"refuses (HTTP {status}): {text}")
        case _:
            return ServerError(server, f"answers HTTP {status}: {text}")
