"""A load in a pod whose generator accounts for every delivery, while tests do things to the cluster."""

from __future__ import annotations

import json

from migratory_node.kubectl import Kubectl, Object
from migratory_node.pods import RESULT, Pods, urls

SUBSCRIBERS, PUBLISHERS = 60, 4
_LONGEST = 1800.0
# In the pod: until the file `cease` is there, or for so long. What is in the file `mark` becomes a mark, and it goes.
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


def load(kube: Kubectl, run: str, seconds: float = _LONGEST, cluster: str = "quotes") -> None:
    """Publishers and subscribers that verify every delivery, for so long or until `flawless` ends it. It runs then."""
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
    # a file, because the generator's workers are processes that load the main module anew
    start = 'printf "%s" "$0" >/tmp/load.py && exec python3 /tmp/load.py "$1"'
    Pods(kube).start(run, "-c", start, _SCRIPT, json.dumps(scenario), command=["/bin/sh"])

    def clients() -> int:
        return sum(one.get("clients", 0) for one in (kube.get("mgc", cluster) or {})["status"]["brokers"])

    kube.until(lambda: clients() >= SUBSCRIBERS, "the load", 180)


def mark(kube: Kubectl, run: str, name: str) -> None:
    """From here to the next mark the account has an entry of its own in `marks`."""
    write = f"printf {name} >/tmp/next && mv /tmp/next /tmp/mark && while [ -e /tmp/mark ]; do sleep 0.1; done"
    kube("exec", run, "--", "sh", "-c", write)


def flawless(kube: Kubectl, run: str, *, cease: bool = False, limit: float = 240.0) -> Object:
    """What the load counted: everything that was published was acknowledged, and delivered once and in order.

    :param cease: whether it ends now.
    """
    if cease:
        kube("exec", run, "--", "touch", "/tmp/cease")
    account = Pods(kube).account(run, limit)
    wrong = ("lost", "duplicates", "reordered", "unexpected", "conflicts", "unanswered", "failed")
    assert not any(account[key] for key in wrong), account["problems"]
    assert account["delivered"] == account["expected"] > 0
    assert account["acknowledged"] == account["published"] > 0
    return account
