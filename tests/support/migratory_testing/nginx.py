"""nginx as a proxy before brokers, with its default settings."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from migratory_local.processes.network import free_ports

CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream brokers {{ {servers} }}
    server {{
        listen 127.0.0.1:{port};
        location {path}/ {{ proxy_pass http://brokers/; {more} }}
    }}
}}
"""
"""nginx's settings: those that it needs to run anywhere, and none about streams. Buffering, timeouts and HTTP/1.0 to
the brokers are its defaults."""


class Nginx:
    """nginx, once it is started, at `url`, in a process group of its own: its workers would outlive its first process.
    It sends each request to the next server.

    :param servers: HOST:PORT of each server.
    :param path: the path below which the servers are, such as `/feeds`.
    :param more: further settings of this path.
    """

    def __init__(self, folder: Path, servers: Sequence[str], path: str = "", more: str = "") -> None:
        program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
        if program is None:
            pytest.skip("nginx is not installed (make debian)")
        folder.mkdir()
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}{path}"
        upstream = " ".join(f"server {server};" for server in servers)
        text = CONFIGURATION.format(folder=folder, servers=upstream, port=port, path=path, more=more)
        (folder / "nginx.conf").write_text(text)
        self._command = [program, "-e", f"{folder}/error.log", "-p", str(folder), "-c", f"{folder}/nginx.conf"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, start_new_session=True)

    def kill(self) -> None:
        """End all its processes at once, if it runs."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
