"""How a pod is made to go: by an eviction or a deletion of this very pod; and who leads the ensemble, asked of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from migratory_operator import members, names
from migratory_operator.api import POD, Api, ApiError
from migratory_operator.brokers import Brokers
from migratory_operator.metrics import Metrics
from migratory_operator.names import Object
from migratory_operator.observe import BrokerPage
from migratory_operator.reconcile import Reconciler
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import OLD, SETTINGS, cluster, pages_of, pod, settled

AT = "namespaces/market"
ONE = {"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}}
BROKER = f"{AT}/pods/quotes-broker-0"


class Told(Brokers):
    """Answers for brokers that are not there."""

    def __init__(self) -> None:
        """Without a session: nobody is asked."""

    async def pages(self, pods: Iterable[Object]) -> dict[str, BrokerPage]:
        return pages_of(1) if list(pods) else {}


Look = Callable[[], Any]


@pytest.fixture
async def look(kube: FakeKube) -> AsyncIterator[Look]:
    """One look at a cluster of one broker, whose objects are there and whose broker's pod is old."""
    api = Api((), kube.config)
    reconciler = Reconciler(api, Told(), SETTINGS, Metrics())
    kube.put(f"{AT}/migratoryclusters/quotes", cluster(ONE))
    await reconciler.cluster("market", "quotes")
    for path, thing in list(kube.objects.items()):
        if "/statefulsets/" in path:
            kube.put(path, settled(thing))
    kube.put(f"{AT}/pods/quotes-zookeeper-0", pod("quotes-zookeeper-0", names.ZOOKEEPER))
    kube.put(BROKER, pod("quotes-broker-0", names.BROKER, revision=OLD))
    yield lambda: reconciler.cluster("market", "quotes")
    await api.close()


def asked(kube: FakeKube) -> list[tuple[str, str]]:
    return [(method, path) for method, path in kube.requests if "/pods/" in path and method != "GET"]


async def test_a_pod_that_runs_is_evicted_and_the_next_look_is_soon(kube: FakeKube, look: Look) -> None:
    assert 0 < await look() < 5
    assert asked(kube) == [("POST", f"{BROKER}/eviction")]
    assert BROKER not in kube.objects


async def test_one_that_the_budget_protects_is_asked_for_again(
    kube: FakeKube, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    kube.protected.add(BROKER)
    with caplog.at_level(logging.INFO):
        assert await look() > 0
    assert "quotes-broker-0 was not let go" in caplog.text
    assert BROKER in kube.objects
    conditions = kube.objects[f"{AT}/migratoryclusters/quotes"]["status"]["conditions"]
    (why,) = [one["message"] for one in conditions if one["type"] == "Progressing"]
    assert why.startswith("quotes-broker-0 was not let go: Cannot evict pod as it would violate")
    kube.protected.clear()
    await look()
    assert BROKER not in kube.objects


async def test_a_refusal_of_the_api_server_is_told_and_tried_again(kube: FakeKube, look: Look) -> None:
    kube.refuse["/eviction"] = 500
    with pytest.raises(ApiError, match="is refused"):
        await look()
    conditions = kube.objects[f"{AT}/migratoryclusters/quotes"]["status"]["conditions"]
    (why,) = [one["message"] for one in conditions if one["type"] == "Progressing"]
    assert "quotes-broker-0 was not let go" in why
    kube.refuse.clear()
    await look()
    assert BROKER not in kube.objects


async def test_one_that_runs_nothing_is_deleted_whatever_the_budget_says(kube: FakeKube, look: Look) -> None:
    kube.protected.add(BROKER)
    kube.put(BROKER, pod("quotes-broker-0", names.BROKER, ready=False, revision=OLD, phase="Pending"))
    await look()
    assert asked(kube) == [("DELETE", BROKER)]
    assert BROKER not in kube.objects


async def test_another_pod_of_the_same_name_is_left_alone(kube: FakeKube) -> None:
    api = Api((), kube.config)
    seen = pod("quotes-broker-0", names.BROKER)
    kube.put(BROKER, {**seen, "metadata": {**seen["metadata"], "uid": "of another one"}})
    try:
        await api.delete(POD, seen)
        assert await api.evict(seen) == ""
        assert kube.objects[BROKER]["metadata"]["uid"] == "of another one"
        del kube.objects[BROKER]
        await api.delete(POD, seen)
        assert await api.evict(seen) == "", "gone already is well, too"
    finally:
        await api.close()


async def answering(answer: bytes) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"srvr"
        writer.write(answer)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("answer", "mode"),
    [
        (b"Zookeeper version: 3.9\nLatency min/avg/max: 0/0/0\nMode: leader\nNode count: 5\n", "leader"),
        (b"Mode: follower\n", "follower"),
        (b"This ZooKeeper instance is not currently serving requests\n", None),
        (b"", None),
    ],
)
async def test_a_member_says_whether_it_leads(answer: bytes, mode: str | None) -> None:
    async with await answering(answer) as server:
        port = server.sockets[0].getsockname()[1]
        member = pod("quotes-zookeeper-0", names.ZOOKEEPER, podIP="127.0.0.1")
        elsewhere = pod("quotes-zookeeper-1", names.ZOOKEEPER, podIP="127.0.0.2")
        nowhere = pod("quotes-zookeeper-2", names.ZOOKEEPER, podIP="")
        found = await members.modes([member, elsewhere, nowhere], port)
    assert found == ({} if mode is None else {"quotes-zookeeper-0": mode})
