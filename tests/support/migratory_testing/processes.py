"""Real broker processes for tests, on ports that they choose themselves. They end with the test, whatever its
outcome.

`with Brokers(folder, zookeeper.servers) as brokers: brokers.start_all(); brokers["b0"].wait_ready()`.
"""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from migratory_testing.waiting import LIMIT, poll

START = 60.0
"""Seconds until a broker accepts clients. On a busy machine, imports alone are slow when several brokers and their
I/O processes start."""


UNCHECKED = ssl.create_default_context()
"""TLS without a check of the certificate, as probes of Kubernetes have it."""
UNCHECKED.check_hostname = False
UNCHECKED.verify_mode = ssl.CERT_NONE


def broker_command(config: Path, *options: str) -> list[str]:
    """Return the command of `migratory broker`, with a free port of 127.0.0.1 for each listener that `options` do not
    name."""
    command = [sys.executable, "-m", "migratory_cli.main", "broker", "--config", str(config), *options]
    for option in ("--clients", "--peers", "--admin"):
        if option not in options:
            command += [option, "127.0.0.1:0"]
    return command


class Broker:
    """One broker process. Its log is `folder/NAME.log`; `name` stays across restarts. `admin_token` is sent to the
    administration, if it is not empty."""

    def __init__(self, folder: Path, config: Path, name: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.config = config
        has_tls = "administration" in json.loads(config.read_text()).get("tls", {})
        self.admin_scheme = "https" if has_tls else "http"
        self.admin_token = ""
        self._from = 0  # offset of the current process's log lines
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start the process, with more options of the command line. Do not wait until it is ready."""
        self._from = self.log.stat().st_size if self.log.exists() else 0
        command = broker_command(self.config, "--name", self.name, *options)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON log lines that the process wrote since the last start."""
        if not self.log.exists():
            return []
        found = []
        with self.log.open("rb") as log:
            log.seek(self._from)
            for line in log:
                if line.startswith(b"{") and line.endswith(b"}\n"):
                    found.append(json.loads(line))
        return found

    def event(self, name: str, limit: float = LIMIT) -> dict[str, Any]:
        """Return the first log line of this name since the last start. Raise AssertionError after `limit` seconds, or
        when the process ended without it."""

        def find() -> dict[str, Any] | None:
            found = next((line for line in self.lines() if line["event"] == name), None)
            if found is None and self.process is not None and self.process.poll() is not None:
                said = self.log.read_text()[-3000:]
                raise AssertionError(f"{self.name} ended with {self.process.returncode}: {said}")
            return found

        found = poll(find, f"{name} of {self.name}", limit)
        assert found is not None
        return found

    @property
    def url(self) -> str:
        """The URL for clients. Wait until the broker listens."""
        return str(self.event("listening")["url"])

    def address(self, listener: str) -> tuple[str, int]:
        """Return host and port of a listener ("clients", "peers" or "admin"). Wait until the broker listens."""
        host, _, port = str(self.event("listening")[listener]).rpartition(":")
        return host, int(port)

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page of the administration; status 0 when it does not answer."""
        host, port = self.address("admin")
        request = urllib.request.Request(f"{self.admin_scheme}://{host}:{port}{path}")
        if self.admin_token:
            request.add_header("Authorization", f"Bearer {self.admin_token}")
        try:
            with urllib.request.urlopen(request, timeout=5, context=UNCHECKED) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> dict[str, Any]:
        """Return the status page. Raise AssertionError if the broker does not return it."""
        code, body = self.get("/v1/status")
        assert code == 200, f"{self.name} returns no status: {code}"
        found: dict[str, Any] = json.loads(body)
        return found

    def metric(self, name: str, default: float | None = None) -> float:
        """Return the sum over the samples of a metric with labels. If it has none yet, return `default`, or raise
        AssertionError without one."""
        lines = self.get("/metrics")[1].splitlines()
        values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{")]
        if not values and default is not None:
            return default
        assert values, f"{self.name} has no metric {name}"
        return sum(values)

    def ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def wait_ready(self, limit: float = START) -> None:
        """Wait until the broker accepts clients. Raise AssertionError when it has ended, or after `limit` seconds for
        each of listening and being ready."""
        self.event("listening", limit)
        poll(self.ready, f"{self.name} accepts clients", limit)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, limit: float = LIMIT) -> int:
        """Wait for the end of the process and return its exit code. Raise subprocess.TimeoutExpired after `limit`
        seconds."""
        assert self.process is not None
        return self.process.wait(limit)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()


class Brokers:
    """The brokers of one cluster, `b0`, `b1` and so on, which are killed at the end of `with`. `settings` are merged
    into the configuration file."""

    def __init__(self, folder: Path, zookeeper: str, size: int = 3, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"b{number}" for number in range(size)]
        self.settings: dict[str, Any] = {
            "cluster": "test",
            "brokers": names,
            "zookeeper": {"servers": zookeeper},
            "topics": {"groups": 8},
            "drain": {"period": 5.0},
            **settings,
        }
        self._config = folder / "cluster.json"
        self.configure()
        self._brokers = {name: Broker(folder, self._config, name) for name in names}

    def __getitem__(self, name: str) -> Broker:
        return self._brokers[name]

    def all(self) -> list[Broker]:
        return list(self._brokers.values())

    def configure(self, **settings: Any) -> None:
        """Merge `settings` into the configuration file, which brokers read when they start."""
        self.settings |= settings
        self._config.write_text(json.dumps(self.settings))

    def start_all(self) -> None:
        """Start all brokers, and wait until each accepts clients."""
        for broker in self.all():
            broker.start()
        for broker in self.all():
            broker.wait_ready()

    def coordinator(self, topic: str, asked: str) -> Broker:
        """Return the coordinator of the topic's group, as the broker `asked` reports it. Wait until `asked` reports
        one."""
        from migratory_protocol.topics import topic_group

        number = topic_group(topic, self.settings["topics"]["groups"])

        def find() -> str:
            groups = self[asked].status()["logic"]["groups"]
            return str(next(group for group in groups if group["group"] == number)["coordinator"] or "")

        return self[poll(find, f"{topic} has a coordinator")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.all():
            if broker.process is not None and broker.process.poll() is None:
                broker.process.kill()
                broker.process.wait(10)


def descendants(pid: int) -> list[psutil.Process]:
    """Return all processes that a process has started, directly or not."""
    return psutil.Process(pid).children(recursive=True)


def runs(process: psutil.Process, text: str) -> bool:
    """Return whether the process's command line contains the text. Return False for a process that has ended."""
    try:
        return text in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # also for a zombie
        return False
