"""kubectl as a subprocess, for the plugin `kubectl migratory`: any command, with shortcuts for reading objects and for
forwarding a port to a pod.

The plugin's user has kubectl, with credentials of any kind that it supports. A forwarded port ends inside of the pod,
so that no NetworkPolicy is in its way, and a request through it may have a token of its own.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click

Object = dict[str, Any]

REQUEST_SECONDS = 60.0
"""Seconds for a request of kubectl. Logs of a large cluster take some."""
_FORWARD_SECONDS = 20.0
"""Seconds until a forwarded port must be there."""
_END_SECONDS = 5.0
"""Seconds from SIGTERM to SIGKILL of a kubectl that forwards a port."""


class KubectlFailed(click.ClickException):
    """Raised when kubectl is missing, fails or takes too long; the command exits with 2. The message is kubectl's."""

    exit_code = 2


class Kubectl:
    """The program kubectl.

    :param options: options for every call, such as `--context=NAME`.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._command = ["kubectl", *options]

    async def run(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl with these arguments, and return its output.

        :param given: its standard input; None for none.
        :raises KubectlFailed: kubectl is missing, failed, or took longer than REQUEST_SECONDS.
        """
        process = await self._start(*arguments)
        try:
            text = given.encode() if given is not None else None
            output, errors = await asyncio.wait_for(process.communicate(text), REQUEST_SECONDS)
        except TimeoutError:
            raise KubectlFailed(f"kubectl {arguments[0]} took longer than {REQUEST_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            message = errors.decode(errors="replace").strip() or output.decode(errors="replace").strip()
            raise KubectlFailed(message or f"kubectl {arguments[0]} failed with {process.returncode}")
        return output.decode(errors="replace")

    async def get(self, kind: str, name: str) -> Object:
        """Return an object. Raise KubectlFailed if there is none, or the call failed."""
        found: Object = json.loads(await self.run("get", kind, name, "--output=json"))
        return found

    async def list(self, kind: str, labels: str = "") -> list[Object]:
        """Return the objects of a kind in the namespace that have these labels (`a=b,c=d`), all for "". Raise
        KubectlFailed if the call failed."""
        found: Object = json.loads(await self.run("get", kind, f"--selector={labels}", "--output=json"))
        items: list[Object] = found["items"]
        return items

    @asynccontextmanager
    async def forward(self, pod: str, port: int) -> AsyncIterator[int]:
        """Return a context in which a free port of this machine's loopback address leads to `port` of a pod. The
        context yields the free port's number.

        :raises KubectlFailed: kubectl is missing, failed, or the port is not there within _FORWARD_SECONDS.
        """
        process = await self._start("port-forward", "--address=127.0.0.1", f"pod/{pod}", f":{port}")
        try:
            try:
                async with asyncio.timeout(_FORWARD_SECONDS):
                    forwarded = await _forwarded_port(process, pod)
            except TimeoutError:
                raise KubectlFailed(f"no port of {pod} within {_FORWARD_SECONDS:g} s") from None
            yield forwarded
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.communicate(), _END_SECONDS)
                except TimeoutError:
                    process.kill()
                    await process.wait()

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start kubectl with these arguments, and return the process. Raise KubectlFailed if it is not installed."""
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *self._command, *arguments, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except FileNotFoundError:
            raise KubectlFailed("kubectl is not on PATH; install it, and give it access to the cluster") from None


async def _forwarded_port(process: asyncio.subprocess.Process, pod: str) -> int:
    """Return the port of this machine that the output of `kubectl port-forward` names. Other lines before it, such as
    those of a wrapper, are passed over.

    :raises KubectlFailed: kubectl ended without naming a port, or wrote a line of more than 64 KiB.
    """
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            if found := re.search(rb"127\.0\.0\.1:([0-9]+) ->", line):
                return int(found[1])
    except ValueError as error:
        raise KubectlFailed(f"no port of {pod}: a line of kubectl is too long: {error}") from error
    _, errors = await process.communicate()
    raise KubectlFailed(errors.decode(errors="replace").strip() or f"kubectl ended without a port of {pod}")
