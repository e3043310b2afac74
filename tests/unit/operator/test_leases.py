"""Leases: one operator serves a namespace, the others wait and say so, and take over when it is gone."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from migratory_operator import leases as leases_module
from migratory_operator.api.kubernetes import ApiError, KubernetesApi
from migratory_operator.leases import HOLD_SECONDS, LEASE_SECONDS, RETRY_SECONDS, Leases
from migratory_operator.names import Object
from migratory_operator.reconcile.queue import WorkQueue
from migratory_operator.reports.controller import ReportController
from migratory_operator.resync import ResyncLoop
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_operator.telemetry.server import TelemetryServer
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import SETTINGS, cluster
from migratory_testing.waiting import until

LEASE = "namespaces/market/leases/migratory-operator"
MINE, REPLICA, OTHER = "system/migratory/a", "system/migratory/b", "market/helm/c"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


Make = Callable[[str], Leases]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def operator(kube: FakeKube, clock: Clock) -> AsyncIterator[Make]:
    """Yield a function that returns the Leases of an operator of this identity."""
    api = KubernetesApi((), kube.config)
    yield lambda identity: Leases(api, identity, OperatorMetrics(), clock)
    await api.close()


def held_by(kube: FakeKube) -> str:
    return str(kube.objects[LEASE]["spec"]["holderIdentity"])


async def test_the_first_operator_serves_and_the_second_waits_and_says_so(
    kube: FakeKube, operator: Make, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = operator(MINE), operator(OTHER)
    assert await first.acquire("market")
    assert (await second.acquire("market"), second.holder("market")) == (False, MINE)
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"waiting: another operator, {MINE}, serves namespace market; uninstall one of them, or give them namespaces "
        "of their own"
    ]
    assert await second.acquire("elsewhere"), "a namespace has a Lease of its own"
    clock.now += RETRY_SECONDS
    assert not await second.acquire("market")
    assert len(caplog.records) == 1, "said once"
    assert await second.keep({"elsewhere"}) == {"elsewhere"}
    assert second.holder("market") == "", "nothing is remembered of a namespace that is no longer wanted"
    assert held_by(kube) == MINE


async def test_a_replica_stands_by_without_a_warning(operator: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, leases_module.__name__)
    await operator(MINE).acquire("market")
    assert not await operator(REPLICA).acquire("market")
    assert [(record.levelname, record.message) for record in caplog.records][-1] == (
        "INFO",
        f"standing by: {MINE} serves namespace market",
    )


async def test_a_lease_without_renewals_is_taken_over_and_the_old_holder_has_stopped_before(
    kube: FakeKube, operator: Make, clock: Clock
) -> None:
    first, second = operator(MINE), operator(OTHER)
    await first.acquire("market")
    assert not await second.acquire("market")
    clock.now += HOLD_SECONDS
    assert not first.holds("market")
    clock.now += LEASE_SECONDS - HOLD_SECONDS - 0.1
    assert not await second.acquire("market")
    clock.now += RETRY_SECONDS
    assert await second.acquire("market")
    assert (held_by(kube), kube.objects[LEASE]["spec"]["leaseTransitions"]) == (OTHER, 2)
    assert not await first.acquire("market")


async def test_a_renewed_lease_is_not_taken_over(operator: Make, clock: Clock) -> None:
    first, second = operator(MINE), operator(OTHER)
    await first.acquire("market")
    for _ in range(10):
        clock.now += LEASE_SECONDS / 2
        assert await first.acquire("market")
        assert not await second.acquire("market")


async def test_of_two_that_take_a_free_lease_at_once_one_gets_it(kube: FakeKube, operator: Make, clock: Clock) -> None:
    await operator("gone/gone/gone").acquire("market")
    both = operator(MINE), operator(OTHER)
    for one in both:
        await one.acquire("market")
    clock.now += LEASE_SECONDS
    taken = await asyncio.gather(*(one.acquire("market") for one in both))
    assert sorted(taken) == [False, True]
    assert held_by(kube) == (MINE, OTHER)[taken.index(True)]


async def test_leases_of_namespaces_without_clusters_and_of_an_operator_that_ends_are_given_up(
    kube: FakeKube, operator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = operator(MINE)
    assert await first.keep({"market", "elsewhere"}) == {"market", "elsewhere"}
    assert await first.keep({"market"}) == {"market"}
    assert [path for path in kube.objects if "/leases/" in path] == [LEASE]
    monkeypatch.setattr(leases_module, "RENEW_SECONDS", 0.05)
    running = asyncio.create_task(first.run())
    version = kube.objects[LEASE]["metadata"]["resourceVersion"]
    await until(lambda: kube.objects[LEASE]["metadata"]["resourceVersion"] != version, "a renewal")
    running.cancel()
    await asyncio.wait([running])
    assert LEASE not in kube.objects


async def test_requests_about_one_lease_take_turns_and_leave_nothing_behind(
    kube: FakeKube, operator: Make, clock: Clock
) -> None:
    def locks() -> int:
        return sum(isinstance(one, asyncio.Lock) for one in gc.get_objects())

    first, before = operator(MINE), locks()
    assert await asyncio.gather(*(first.acquire("market") for _ in range(5))) == [True] * 5
    assert kube.objects[LEASE]["spec"]["leaseTransitions"] == 1
    writes = [request for request in kube.requests if "/leases" in request[1] and request[0] != "GET"]
    assert len(writes) == 1, "the others saw that it was held"
    namespaces = {f"team-{number}" for number in range(50)}
    assert await first.keep(namespaces) == namespaces
    clock.now += RETRY_SECONDS
    assert await first.keep(()) == frozenset()
    assert locks() == before, "a namespace that is gone leaves no lock"


class Reads:
    """The reads of objects from now on. The first one waits for `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.first, self.go_on = 0, asyncio.Event(), asyncio.Event()
        read = KubernetesApi.get

        async def get(api: KubernetesApi, *arguments: Any) -> Any:
            self.count += 1
            self.first.set()
            if self.count == 1:
                await self.go_on.wait()
            return await read(api, *arguments)

        monkeypatch.setattr(KubernetesApi, "get", get)


async def until_all_wait() -> None:
    """Let each task go on to its first wait for another task or for an answer."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_lease_is_given_up_after_the_renewal_that_has_begun(
    kube: FakeKube, operator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the Lease was deleted before the renewal read it, and the renewal then created it again."""
    first = operator(MINE)
    assert await first.acquire("market")
    reads = Reads(monkeypatch)
    monkeypatch.setattr(leases_module, "RENEW_SECONDS", 0.0)
    running = asyncio.create_task(first.run())
    await reads.first.wait()
    given_up = asyncio.create_task(first.keep(()))
    await until_all_wait()
    assert reads.count == 1, "the release waits for the renewal"
    reads.go_on.set()
    await given_up
    await until_all_wait()
    assert (LEASE in kube.objects, first.holds("market"), reads.count) == (False, False, 2)
    running.cancel()
    await asyncio.wait([running])


async def test_a_renewal_that_waits_for_a_release_does_not_take_the_lease_again(
    kube: FakeKube, operator: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acquisition has its turn, then a release waits, then a renewal."""
    first = operator(MINE)
    assert await first.acquire("market")
    reads = Reads(monkeypatch)
    clock.now += HOLD_SECONDS
    acquired = asyncio.create_task(first.acquire("market"))
    await reads.first.wait()
    given_up = asyncio.create_task(first.keep(()))
    await until_all_wait()
    monkeypatch.setattr(leases_module, "RENEW_SECONDS", 0.0)
    running = asyncio.create_task(first.run())
    await until_all_wait()
    reads.go_on.set()
    assert await acquired
    await given_up
    await until_all_wait()
    assert (LEASE in kube.objects, first.holds("market"), reads.count) == (False, False, 2)
    running.cancel()
    await asyncio.wait([running])


async def test_a_failure_with_one_namespace_blocks_no_other(kube: FakeKube, operator: Make) -> None:
    kube.refuse["namespaces/market/leases"] = 403
    first = operator(MINE)
    assert await first.keep({"market", "elsewhere"}) == {"elsewhere"}
    with pytest.raises(ApiError):
        await first.acquire("market")


async def test_a_cluster_of_another_operator_gets_an_event_and_is_not_reconciled(
    kube: FakeKube, operator: Make
) -> None:
    kube.put("namespaces/market/migratoryclusters/quotes", cluster())
    await operator(OTHER).acquire("market")
    api, metrics, reconciled = KubernetesApi((), kube.config), OperatorMetrics(), []

    async def reconcile(*key: str) -> float:
        reconciled.append(key)
        return 0.0

    leases = Leases(api, MINE, metrics)
    queue = WorkQueue(leases.guarded(reconcile), metrics)
    reports = ReportController(api, SETTINGS, metrics, leases)
    server = TelemetryServer(0, metrics)
    loop = asyncio.create_task(ResyncLoop(api, queue, reports, leases, server, metrics, 0.2).run())

    def events() -> list[Object]:
        return [item for path, item in kube.objects.items() if "/events/" in path]

    try:
        await until(events, "an Event")
        queue.wake("market", "quotes")
        lists = len(kube.requests)
        await until(lambda: len(kube.requests) > lists + 20, "more resyncs")
        assert reconciled == []
        (event,) = events()
        assert (event["type"], event["reason"]) == ("Warning", "TwoOperators")
        assert f"the operator {MINE} waits, because {OTHER} serves namespace market" in event["message"]
        held = metrics.registry.get_sample_value("migratory_operator_lease_held", {"namespace": "market"})
        assert held == 0
        del kube.objects[LEASE]
        await until(lambda: reconciled, "a reconciliation")
    finally:
        loop.cancel()
        await asyncio.wait([loop], timeout=5)
        await queue.close()
        await api.close()
