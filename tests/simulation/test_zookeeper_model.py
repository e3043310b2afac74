"""The ZooKeeper model guarantees what the real one guarantees, and no more."""

from __future__ import annotations

from random import Random

import pytest
from migratory_broker.core.logic.events import (
    ZkChanged,
    ZkCheck,
    ZkChildren,
    ZkCommit,
    ZkCreate,
    ZkDelete,
    ZkGet,
    ZkReply,
    ZkSession,
    ZkWrite,
)
from migratory_simulation.scheduler import Scheduler
from migratory_simulation.zookeeper import Answer, Ensemble, ZkClient


class Broker:
    """A client of the ZooKeeper model, with the answers and events that it received."""

    def __init__(self, ensemble: Ensemble, seed: int = 1) -> None:
        self.told: list[Answer] = []
        self.alive = True
        self.client = ZkClient(ensemble, self.told.append, lambda: self.alive, Random(seed))
        self.requests = 0

    def ask(self, kind: type, *arguments: object) -> int:
        self.requests += 1
        self.client.request(kind(self.requests, *arguments))
        return self.requests

    def reply(self, request: int) -> ZkReply:
        return next(event for event in self.told if isinstance(event, ZkReply) and event.request == request)

    def states(self) -> list[str]:
        return [event.state for event in self.told if isinstance(event, ZkSession)]


class Setting:
    def __init__(self, seed: int = 7) -> None:
        self.scheduler = Scheduler()
        self.ensemble = Ensemble(self.scheduler, Random(seed), 4.0)
        self.one = Broker(self.ensemble, seed)
        self.other = Broker(self.ensemble, seed + 1)
        self.run(1.0)

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_session_connects(setting: Setting) -> None:
    assert setting.one.states() == ["connected"]
    assert setting.one.told[0].session != setting.other.told[0].session  # type: ignore[union-attr]


def test_transactions_are_all_or_nothing(setting: Setting) -> None:
    client = setting.one
    first = client.ask(
        ZkCommit, (ZkCreate("/a", b"1"), ZkCreate("/a/b", b"2", True), ZkWrite("/a", b"3", 0), ZkCheck("/a/b", 0))
    )
    second = client.ask(ZkCommit, (ZkWrite("/a", b"4", 1), ZkCreate("/a/b", b"again")))
    third = client.ask(ZkCommit, (ZkWrite("/a", b"5", 0),))
    orphan = client.ask(ZkCommit, (ZkCreate("/no/parent", b""),))
    busy = client.ask(ZkCommit, (ZkDelete("/a"),))
    under = client.ask(ZkCommit, (ZkCreate("/a/b/c", b""),))
    get = client.ask(ZkGet, "/a")
    setting.run(1.0)
    assert client.reply(first).outcome == "ok"
    assert client.reply(first).versions == (0, 0, 1, -1)
    assert [client.reply(request).outcome for request in (second, third, orphan, busy, under)] == ["refused"] * 5
    node = client.reply(get).node
    assert node is not None
    assert (node.data, node.version, node.owner) == (b"3", 1, 0)


def test_reads_of_missing_nodes_succeed_and_set_no_watch(setting: Setting) -> None:
    get = setting.one.ask(ZkGet, "/a", True)
    children = setting.one.ask(ZkChildren, "/a", True)
    setting.run(0.5)
    assert setting.one.reply(get).node is None
    assert setting.one.reply(children).children is None
    setting.other.ask(ZkCommit, (ZkCreate("/a", b""), ZkCreate("/a/b", b"")))
    setting.run(0.5)
    assert not [event for event in setting.one.told if isinstance(event, ZkChanged)]


def test_watch_fires_once_before_the_answer_with_the_change(setting: Setting) -> None:
    client, second = setting.one, setting.other
    client.ask(ZkCommit, (ZkCreate("/a", b"1"),))
    client.ask(ZkGet, "/a", True)
    client.ask(ZkChildren, "/a", True)
    setting.run(0.5)
    second.ask(ZkCommit, (ZkWrite("/a", b"2", -1), ZkCreate("/a/x", b"")))
    second.ask(ZkCommit, (ZkWrite("/a", b"3", -1), ZkCreate("/a/y", b"")))
    setting.run(0.002)
    get = client.ask(ZkGet, "/a")
    setting.run(0.5)
    changes = [event for event in client.told if isinstance(event, ZkChanged)]
    assert changes == [ZkChanged("/a"), ZkChanged("/a")]  # the data watch and the children watch, once each
    assert client.told.index(changes[0]) < client.told.index(client.reply(get))


def test_ephemerals_end_with_their_session_in_whole_ticks(setting: Setting) -> None:
    client, second = setting.one, setting.other
    client.ask(ZkCommit, (ZkCreate("/a", b""), ZkCreate("/a/one", b"", True)))
    setting.run(0.5)
    children = second.ask(ZkChildren, "/a", True)
    setting.run(0.5)
    assert second.reply(children).children == ("one",)
    client.alive = False
    setting.run(3.5)
    assert "/a/one" in setting.ensemble.nodes
    setting.run(1.5)
    assert "/a/one" not in setting.ensemble.nodes
    assert ZkChanged("/a") in second.told
    client.alive = True
    setting.run(2.0)
    assert client.states() == ["connected", "suspended", "lost", "connected"]
    sessions = [event.session for event in client.told if isinstance(event, ZkSession) and event.state == "connected"]
    assert sessions[0] != sessions[1]


def test_sessions_survive_an_outage_and_get_their_whole_time_again(setting: Setting) -> None:
    client = setting.one
    client.ask(ZkCommit, (ZkCreate("/one", b"", True),))
    setting.run(0.5)
    setting.ensemble.set_available(False)
    client.client.cut = True
    setting.run(60.0)
    assert "/one" in setting.ensemble.nodes
    setting.ensemble.set_available(True)
    setting.run(3.9)
    assert "/one" in setting.ensemble.nodes
    client.client.set_cut(False)
    setting.run(2.0)
    assert client.states() == ["connected", "suspended", "connected"]
    assert "/one" in setting.ensemble.nodes


def test_requests_without_a_connection_end_as_unknown(setting: Setting) -> None:
    setting.ensemble.set_available(False)
    get = setting.one.ask(ZkGet, "/")
    setting.run(0.1)
    assert setting.one.reply(get).outcome == "unknown"


def test_broken_connection_executes_a_prefix_and_reports_all_as_unknown() -> None:
    """When a connection breaks, the model executes none, some or all of the pending requests, always without leaving
    one out before another, and reports all unanswered ones as unknown."""
    applied = set()
    late = 0
    for seed in range(200):
        setting = Setting(seed)
        client = setting.one
        client.client.delay = 0.02
        requests = [client.ask(ZkCommit, (ZkCreate(f"/n{number}", b""),)) for number in range(4)]
        setting.run(Random(seed).uniform(0.0, 0.05))
        client.client.lose_connection()
        at_break = sum(f"/n{number}" in setting.ensemble.nodes for number in range(4))
        answered = [event.request for event in client.told if isinstance(event, ZkReply) and event.outcome == "ok"]
        assert answered == requests[: len(answered)]
        assert [client.reply(request).outcome for request in requests[len(answered) :]] == ["unknown"] * (
            4 - len(answered)
        )
        setting.run(2.0)
        there = [f"/n{number}" in setting.ensemble.nodes for number in range(4)]
        assert there == sorted(there, reverse=True), f"seed {seed}: a suffix without its prefix"
        assert sum(there) >= len(answered)
        applied.add(sum(there) - len(answered))
        late += sum(there) > at_break
        assert client.states()[-1] == "connected"
    assert applied == {0, 1, 2, 3, 4}
    assert late > 10  # some are applied only after the process has heard "unknown"


def test_old_connection_executes_nothing_after_a_new_one() -> None:
    for seed in range(100):
        setting = Setting(seed)
        client = setting.one
        client.client.delay = 0.3
        client.ask(ZkCommit, (ZkCreate("/late", b""),))
        client.client.lose_connection()
        while client.states()[-1] != "connected":
            setting.run(0.01)
        there = "/late" in setting.ensemble.nodes
        setting.run(3.0)
        assert ("/late" in setting.ensemble.nodes) == there


def test_expiry_is_reported_at_the_next_connection(setting: Setting) -> None:
    client = setting.one
    client.ask(ZkCommit, (ZkCreate("/one", b"", True),))
    setting.run(0.5)
    assert client.client.session is not None
    setting.ensemble.expire(client.client.session.number)
    assert "/one" not in setting.ensemble.nodes
    setting.run(1.0)
    assert client.states() == ["connected", "suspended", "lost", "connected"]


def test_reads_are_never_older_than_the_clients_own_writes() -> None:
    stale = 0
    for seed in range(60):
        setting = Setting(seed)
        client, other_client = setting.one, setting.other
        client.ask(ZkCommit, (ZkCreate("/a", b"0"),))
        setting.run(0.5)
        other_client.client.lag = 0.4
        for number in range(1, 4):
            client.ask(ZkCommit, (ZkWrite("/a", str(number).encode(), -1),))
        setting.run(Random(seed).uniform(0.05, 0.3))
        first = other_client.ask(ZkGet, "/a", True)
        setting.run(0.05)
        if setting.ensemble.nodes["/a"].data != read(other_client, first):
            stale += 1
            setting.run(1.0)
            assert ZkChanged("/a") in other_client.told
        other_client.ask(ZkCommit, (ZkCreate("/b", b""),))
        second = other_client.ask(ZkGet, "/a")
        setting.run(0.5)
        assert read(other_client, second) == b"3"
    assert stale > 10


def read(broker: Broker, request: int) -> bytes:
    node = broker.reply(request).node
    assert node is not None
    return node.data
