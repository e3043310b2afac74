"""Clients of a cluster's brokers, evened out by the brokers themselves (docs/decisions/0004-balance-of-clients.md)."""

from __future__ import annotations

import json
import time

from migratory_node.kubectl import Kubectl, Object
from migratory_node.load import PUBLISHERS, SUBSCRIBERS

BROKERS = "app.kubernetes.io/component=broker"
CLIENTS = SUBSCRIBERS + PUBLISHERS
PROMISED = 1.15
"""The most clients of a broker over the mean, behind a change of size."""
REST = 1.1
"""From here on brokers leave it at that."""
QUIET = 10.0
"""Seconds in which nobody is asked to move: a pass takes 7."""


def balance(kube: Kubectl) -> list[Object]:
    """What each broker says of its clients: how many, and how many it asked to move so far."""
    at = f"/api/v1/namespaces/{kube.namespace}/pods"
    names = [pod["metadata"]["name"] for pod in kube.list("pods", BROKERS)]
    return [json.loads(kube("get", "--raw", f"{at}/{name}:8082/proxy/v1/status"))["logic"]["balance"] for name in names]


def evens_out(kube: Kubectl) -> None:
    """The clients of all brokers come out even, and a second pass moves nobody."""

    def even() -> list[Object]:
        found = balance(kube)
        counts = [one["clients"] for one in found]
        there = sum(counts) == CLIENTS and not any(one["waits_for"] for one in found)
        return found if there and max(counts) <= REST * CLIENTS / len(counts) else []

    first = kube.until(even, "as many clients on each broker", 180)
    end = time.monotonic() + QUIET
    while time.monotonic() < end:
        now = balance(kube)
        assert [one["asked"] for one in now] == [one["asked"] for one in first], "they were even: nobody is to move"
        assert max(one["clients"] for one in now) <= PROMISED * CLIENTS / len(now), now
        time.sleep(1.0)
