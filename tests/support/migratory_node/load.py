"""A load in a pod, which accounts for every delivery while tests change the cluster; also checks that its clients
are balanced."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from migratory_loadtest import LoadEvent

from migratory_node import load_program
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.pods import Pods, urls

SUBSCRIBERS, PUBLISHERS = 60, 4
CLIENTS = SUBSCRIBERS + PUBLISHERS
BROKERS = "app.kubernetes.io/component=broker"
MAX_RATIO = 1.15
"""The promised maximum of a broker's clients, as a multiple of the mean, after a change of size (decision 4, balance
of clients)."""
BALANCED_RATIO = 1.1
"""The ratio of a broker's clients to the mean below which brokers move no clients."""
STABLE_SECONDS = 10.0
"""Seconds in which no client may be asked to move. A pass of balancing takes 7 s."""
MAX_SECONDS = 24 * 3600.0
"""Seconds after which a load ends if its test does not end it."""
METRICS_PORT = 9100
SCRAPE_SECONDS = 15.0
"""The longest scrape interval of a Prometheus that still gets the final counts: the pages stay up for two intervals."""
_STATUS_SECONDS = 10.0


class LoadFailed(Exception):
    """An error: the load ended early. Nothing is known about the run then."""


class LoadPod:
    """A pod with publishers and subscribers that verify every delivery (`load_program.py`).

    :param cluster: the cluster that gets the load.
    """

    def __init__(self, kube: Kubectl, name: str, cluster: str = "quotes") -> None:
        self.kube = kube
        self.name = name
        self.cluster = cluster

    def start(self, trusted: str = "", **scenario: Any) -> None:
        """Create the pod, and wait until all clients are connected and publications are acknowledged.

        :param trusted: the Secret whose `ca.crt` has the authorities that the clients trust; "" for the system's.
        :param scenario: fields of the load generator's `Scenario`.
        """
        # One worker: a page has all metrics.
        listen = {"metrics": True, "metrics_listen": f"0.0.0.0:{METRICS_PORT}", "scrape_interval": SCRAPE_SECONDS}
        servers = urls(self.kube, self.cluster).split(",")
        scenario = {"servers": servers, "duration": MAX_SECONDS, "warmup": 2.0, "workers": 1, **listen, **scenario}
        labels = {
            "app.kubernetes.io/name": "migratory-load",
            "app.kubernetes.io/instance": self.cluster,
            "app.kubernetes.io/component": "load",
            "migratory.dev/metrics": "clients",
        }
        # In a file, because the generator's workers are processes that import the main module again.
        start = 'printf "%s" "$0" >/tmp/load.py && exec python3 /tmp/load.py "$1"'
        Pods(self.kube).start(
            *(self.name, "-c", start, Path(load_program.__file__).read_text(), json.dumps(scenario)),
            command=["/bin/sh"],
            labels=labels,
            trusted=trusted,
            ports=[{"name": "metrics", "containerPort": METRICS_PORT}],
            resources={"requests": {"cpu": "50m", "memory": "128Mi"}},
        )
        self._until(lambda status: status.get("acknowledged", 0) > 0, "the load", 180.0)

    def status(self) -> Object:
        """Return the load's progress, or {} while the pod does not answer. :raises LoadFailed: the load ended early"""
        try:
            found: Object = json.loads(self._request("/status", limit=_STATUS_SECONDS))
        except KubectlError:
            return {}
        if found["failure"]:
            raise LoadFailed(f"the load ended: {found['failure']}")
        return found

    def mark(self, name: str, broker: str | None = None) -> None:
        """Begin a new entry of the result's `marks`. With `broker` the load generator notes that broker's clients,
        and whether all resume."""
        self._request("/mark", {"name": name, "broker": broker})

    def cease(self) -> None:
        """Stop publishing."""
        self._request("/cease", {})

    def result(self, limit: float = 240.0) -> Object:
        """Wait until the load has ended, and return the load generator's result. Its own verdict also considers whether
        the machine was too busy to send in time, which says nothing about losses."""
        self._until(lambda status: status.get("done", False), f"the end of {self.name}", limit)
        found: Object = json.loads(self._request("/result"))
        return found

    def account(self) -> str:
        return self._request("/account", limit=300.0)

    def timeline(self) -> list[LoadEvent]:
        return msgspec.json.decode(self._request("/timeline"), type=list[LoadEvent])

    def began(self) -> datetime:
        """Return the moment at which the load's process began. A report that starts there counts from zero."""
        (container,) = (self.kube.get("pod", self.name) or {})["status"]["containerStatuses"]
        return datetime.fromisoformat(container["state"]["running"]["startedAt"])

    def remove(self) -> None:
        self.kube("delete", "pod", self.name, "--ignore-not-found", "--wait=true", limit=90)

    def _request(self, path: str, body: Object | None = None, limit: float = 60.0) -> str:
        return self.kube.request_pod(self.name, load_program.PORT, path, body, limit)

    def _until(self, condition: Callable[[Object], bool], what: str, limit: float) -> None:
        self.kube.until(lambda: condition(self.status()), what, limit)


def load(kube: Kubectl, run: str, seconds: float = MAX_SECONDS, cluster: str = "quotes") -> None:
    """Create the pod `run` with a load, and wait until its publications are acknowledged. The load lasts for `seconds`,
    or until `assert_nothing_lost` with `cease` ends it."""
    LoadPod(kube, run, cluster).start(
        subscribers=SUBSCRIBERS, topics=20, rate=2.0, publishers=PUBLISHERS, duration=seconds, patience=40.0
    )


def mark(kube: Kubectl, run: str, name: str) -> None:
    """Begin a new entry of the account's `marks`."""
    LoadPod(kube, run).mark(name)


def assert_nothing_lost(kube: Kubectl, run: str, *, cease: bool = False, limit: float = 240.0) -> Object:
    """Wait for the end of the load, and assert that everything published was acknowledged, and delivered once and in
    order. Delete its pod and return the result.

    :param cease: end the load now.
    """
    pod = LoadPod(kube, run)
    if cease:
        pod.cease()
    account = pod.result(limit)
    wrong = ("lost", "duplicates", "reordered", "unexpected", "conflicts", "unanswered", "failed")
    assert not any(account[key] for key in wrong), account["problems"]
    assert account["delivered"] == account["expected"] > 0
    assert account["acknowledged"] == account["published"] > 0
    pod.remove()
    return account


def balance_status(kube: Kubectl) -> list[Object]:
    """Return each broker's report on its clients: their number, and the moves that it asked for so far."""
    names = [pod["metadata"]["name"] for pod in kube.list("pods", BROKERS)]
    return [json.loads(kube.request_pod(name, 8082, "/v1/status"))["logic"]["balance"] for name in names]


def assert_clients_balance(kube: Kubectl) -> None:
    """Assert that within 180 s all brokers have about equally many clients, and that balancing moves none for
    `STABLE_SECONDS` after that."""

    def balanced() -> list[Object]:
        found = balance_status(kube)
        counts = [one["clients"] for one in found]
        all_connected = sum(counts) == CLIENTS and not any(one["waits_for"] for one in found)
        return found if all_connected and max(counts) <= BALANCED_RATIO * CLIENTS / len(counts) else []

    first = kube.until(balanced, "as many clients on each broker", 180)
    end = time.monotonic() + STABLE_SECONDS
    while time.monotonic() < end:
        now = balance_status(kube)
        assert [one["moves_asked"] for one in now] == [one["moves_asked"] for one in first], (
            "clients are balanced: none may be asked to move"
        )
        assert max(one["clients"] for one in now) <= MAX_RATIO * CLIENTS / len(now), now
        time.sleep(1.0)
