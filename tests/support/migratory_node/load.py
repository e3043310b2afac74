"""A load in a pod, which accounts for every delivery while tests change the cluster, and the balance of its clients."""

from __future__ import annotations

import json
import time

from migratory_node.kubectl import Kubectl, Object
from migratory_node.pods import RESULT, Pods, urls

SUBSCRIBERS, PUBLISHERS = 60, 4
CLIENTS = SUBSCRIBERS + PUBLISHERS
BROKERS = "app.kubernetes.io/component=broker"
MAX_RATIO = 1.15
"""The promised maximum of a broker's clients over the mean after a change of size: decision 4, balance of clients."""
BALANCED_RATIO = 1.1
"""Below this ratio brokers move no clients."""
STABLE_SECONDS = 10.0
"""In which no client may be asked to move. A pass of balancing takes 7 s."""
_MAX_SECONDS = 1800.0
# Runs in the pod until the file `cease` exists or the duration is over. A file `mark` is removed, and its text marks.
_SCRIPT = f"""\
import asyncio, json, pathlib, sys
from migratory_loadtest import Load, Scenario

async def main():
    async with Load(Scenario(**json.loads(sys.argv[1]))) as load:
        result = asyncio.create_task(load.result())
        mark = pathlib.Path("/tmp/mark")
        while not result.done() and not pathlib.Path("/tmp/cease").exists():
            if mark.exists():
                await load.mark(mark.read_text())
                mark.unlink()
            await asyncio.sleep(0.2)
        load.stop_publishing()
        found = await result
    print("{RESULT}", found.to_json().decode(), sep="\\n")

if __name__ == "__main__":
    asyncio.run(main())
"""


def load(kube: Kubectl, run: str, seconds: float = _MAX_SECONDS, cluster: str = "quotes") -> None:
    """Start publishers and subscribers that verify every delivery, for `seconds` or until `assert_nothing_lost` ends
    them. Return when they are connected."""
    scenario = {
        "servers": urls(kube, cluster).split(","),
        "subscribers": SUBSCRIBERS,
        "topics": 20,
        "rate": 2.0,
        "publishers": PUBLISHERS,
        "duration": seconds,
        "warmup": 2.0,
        "workers": 1,
        "patience": 40.0,
    }
    # in a file, because the generator's workers are processes that import the main module again
    start = 'printf "%s" "$0" >/tmp/load.py && exec python3 /tmp/load.py "$1"'
    Pods(kube).start(run, "-c", start, _SCRIPT, json.dumps(scenario), command=["/bin/sh"])

    def clients() -> int:
        return sum(one.get("clients", 0) for one in (kube.get("mgc", cluster) or {})["status"]["brokers"])

    kube.until(lambda: clients() >= SUBSCRIBERS, "the load", 180)


def mark(kube: Kubectl, run: str, name: str) -> None:
    """Begin a new entry of the account's `marks`."""
    write = f"printf {name} >/tmp/next && mv /tmp/next /tmp/mark && while [ -e /tmp/mark ]; do sleep 0.1; done"
    kube("exec", run, "--", "sh", "-c", write)


def assert_nothing_lost(kube: Kubectl, run: str, *, cease: bool = False, limit: float = 240.0) -> Object:
    """Assert that everything published was acknowledged, and delivered once and in order. Return the account.

    :param cease: end the load now.
    """
    if cease:
        kube("exec", run, "--", "touch", "/tmp/cease")
    account = Pods(kube).account(run, limit)
    wrong = ("lost", "duplicates", "reordered", "unexpected", "conflicts", "unanswered", "failed")
    assert not any(account[key] for key in wrong), account["problems"]
    assert account["delivered"] == account["expected"] > 0
    assert account["acknowledged"] == account["published"] > 0
    return account


def balance_status(kube: Kubectl) -> list[Object]:
    """Return what each broker says about its clients: their number, and how many it asked to move so far."""
    at = f"/api/v1/namespaces/{kube.namespace}/pods"
    names = [pod["metadata"]["name"] for pod in kube.list("pods", BROKERS)]
    return [json.loads(kube("get", "--raw", f"{at}/{name}:8082/proxy/v1/status"))["logic"]["balance"] for name in names]


def assert_clients_balance(kube: Kubectl) -> None:
    """Assert that all brokers come to have about as many clients, and that a second pass of balancing moves none."""

    def balanced() -> list[Object]:
        found = balance_status(kube)
        counts = [one["clients"] for one in found]
        all_connected = sum(counts) == CLIENTS and not any(one["waits_for"] for one in found)
        return found if all_connected and max(counts) <= BALANCED_RATIO * CLIENTS / len(counts) else []

    first = kube.until(balanced, "as many clients on each broker", 180)
    end = time.monotonic() + STABLE_SECONDS
    while time.monotonic() < end:
        now = balance_status(kube)
        assert [one["asked"] for one in now] == [one["asked"] for one in first], (
            "clients are balanced: none may be asked to move"
        )
        assert max(one["clients"] for one in now) <= MAX_RATIO * CLIENTS / len(now), now
        time.sleep(1.0)
