"""Moves that a broker asks of its clients for balance, their order with drains, and the changes of broker that the
client counts and reports with `connect`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from migratory_client.core import events as ev
from migratory_client.core.failover import ReconnectCounter
from migratory_client.core.settings import Settings
from migratory_protocol import messages as wire
from migratory_protocol.messages import Server
from migratory_protocol.positions import Position
from migratory_testing.clientcore import CoreDriver, complete, message, welcome

HERE, THERE = "ws://a/ws", "ws://b/ws"


def served(seed: int = 1, *topics: str) -> tuple[CoreDriver, int]:
    """Return a client that is connected to `HERE` and subscribed to the topics, and the number of its link."""
    driver = CoreDriver([HERE], seed=seed)
    for topic in topics:
        driver.step(ev.SubscribeTopic(topic))
    link = driver.open(welcome(Server(HERE), Server(THERE), Server("ws://c/ws")))
    if topics:
        driver.answer(link, *(complete(topic, 1, 0) for topic in topics))
    return driver, link


def asked(driver: CoreDriver, link: int, *urls: str, period: float = 5.0, closes: bool = False) -> list[ev.Effect]:
    return driver.receive(link, wire.Drain(period, [Server(url) for url in urls], closes))


def connects(driver: CoreDriver, link: int) -> list[wire.Connect]:
    return [item for item in driver.sent(link) if isinstance(item, wire.Connect)]


def test_move_is_make_before_break() -> None:
    driver, old = served(1, "t")
    asked(driver, old, THERE)
    dial = driver.next_dial(within=5.0)
    assert dial.url == THERE
    new = driver.accept(dial)
    driver.receive(old, message("t", 1, 1))
    assert driver.of(ev.Disconnect) == []
    driver.answer(new, complete("t", 1, 1))
    assert driver.effects[1:] == [
        ev.Send(old, [wire.Bye()]),
        ev.Disconnect(old),
        ev.LinkDown(old, 1000, "moved away", "moved", True),
        ev.Ready(new, 0.0),
    ]
    assert driver.delivered() == [(1, 1)]
    assert driver.core.reconnect_counter.by_cause() == {"broken": 0, "drained": 0, "moved": 1}
    assert driver.core.reconnects == 1


def test_clients_move_at_random_times_of_the_period() -> None:
    moments = []
    for seed in range(100):
        driver, old = served(seed)
        at = driver.now
        asked(driver, old, THERE, period=20.0)
        driver.next_dial(within=20.0)
        moments.append(driver.now - at)
    assert min(moments) < 2
    assert 16 < max(moments) <= 18


def test_refused_client_stays_with_its_broker() -> None:
    driver, old = served(1, "t")
    asked(driver, old, THERE)
    driver.step(ev.Disconnected(driver.next_dial(within=5.0).link, 1013, "no room"))
    assert [item.code for item in driver.of(ev.Problem)] == ["connect_failed"]
    for _ in range(40):
        driver.receive(old, wire.Pong())
        driver.wait(7.0)
        assert driver.of(ev.Dial) == []
    driver.receive(old, message("t", 1, 1))
    assert driver.delivered() == [(1, 1)]
    assert driver.core.reconnects == 0
    asked(driver, old, "ws://c/ws")  # and may be asked again
    assert driver.next_dial(within=5.0).url == "ws://c/ws"


def test_each_proposed_server_is_tried_once() -> None:
    driver, old = served()
    asked(driver, old, THERE, "ws://c/ws")
    tried = set()
    for _ in range(2):
        dial = driver.next_dial(within=5.0)
        tried.add(dial.url)
        driver.step(ev.Disconnected(dial.link))
    assert tried == {THERE, "ws://c/ws"}
    driver.receive(old, wire.Pong())
    driver.wait(14.0)
    assert driver.of(ev.Dial) == []


@pytest.mark.parametrize("servers", [(), (HERE,), ("nonsense",)])
def test_move_without_a_usable_server_is_ignored(servers: tuple[str, ...]) -> None:
    driver, old = served()
    asked(driver, old, *servers)
    assert [item.code for item in driver.of(ev.Problem)] == ["bad_server"] * ("nonsense" in servers)
    driver.receive(old, wire.Pong())
    driver.wait(10.0)
    assert driver.of(ev.Dial) == []


def test_proposed_server_is_tried_although_blacklisted() -> None:
    """A client that is asked to move to a server on its blacklist tries that server next: the broker there was
    drained and has returned."""
    driver, old = served()
    asked(driver, old, THERE, closes=True)
    new = driver.accept(driver.next_dial(within=5.0))
    assert driver.core.servers.pick(driver.now, lambda: 0.0, THERE) != HERE  # for a minute it is
    asked(driver, new, HERE)
    assert driver.next_dial(within=5.0).url == HERE


def test_proposed_servers_do_not_change_the_server_list() -> None:
    driver, old = served()
    before = driver.core.servers.learned
    asked(driver, old, "ws://elsewhere/ws")
    asked(driver, old, "ws://elsewhere/ws", closes=True)
    assert driver.core.servers.learned == before


def test_drain_prefers_proposed_servers_by_weight() -> None:
    chosen = []
    for seed in range(300):
        driver, old = served(seed)
        driver.receive(old, wire.Drain(5.0, [Server(THERE, 30), Server("ws://c/ws", 10), Server("ws://d/ws", 0)]))
        chosen.append(driver.next_dial(within=5.0).url)
    assert 180 < chosen.count(THERE) < 270
    assert set(chosen) == {THERE, "ws://c/ws"}


def test_drain_tries_other_servers_when_proposed_ones_fail() -> None:
    driver, old = served()
    asked(driver, old, THERE, closes=True, period=10.0)
    driver.step(ev.Disconnected(driver.next_dial(within=10.0).link, 1013))
    again = driver.next_dial(within=5.0)
    assert again.url == "ws://c/ws"
    assert driver.core.connected
    driver.step(ev.Disconnected(old, 1001, "its time is over"))
    assert driver.of(ev.LinkDown) == [ev.LinkDown(old, 1001, "its time is over", "drained")]


def test_drain_has_precedence_over_a_move() -> None:
    driver, old = served()
    asked(driver, old, "ws://c/ws", period=100.0)
    asked(driver, old, THERE, period=1.0, closes=True)
    asked(driver, old, "ws://c/ws", period=0.0)
    dial = driver.next_dial(within=1.0)
    assert dial.url == THERE
    driver.accept(dial)
    assert driver.core.reconnect_counter.by_cause() == {"broken": 0, "drained": 1, "moved": 0}


def test_move_becomes_a_drain_while_connecting() -> None:
    """When a drain comes while the client connects for a move, the attempt continues; after its failure the client
    tries the server of the drain."""
    driver, old = served()
    asked(driver, old, THERE)
    dial = driver.next_dial(within=5.0)
    asked(driver, old, "ws://c/ws", closes=True)
    assert driver.of(ev.Dial) == []
    driver.step(ev.Disconnected(dial.link))
    assert driver.next_dial(within=5.0).url == "ws://c/ws"


def test_link_lost_before_a_move_counts_as_broken() -> None:
    driver, old = served()
    asked(driver, old, THERE, period=60.0)
    driver.step(ev.Disconnected(old, 1006, "reset"))
    assert driver.of(ev.LinkDown) == [ev.LinkDown(old, 1006, "reset", "broken")]
    driver.accept(driver.next_dial())
    for _ in range(12):
        driver.wait(5.0)
        assert driver.of(ev.Dial) == []
        driver.receive(driver.core._current_number(), wire.Pong())


def test_pending_publication_is_resent_once_after_a_move() -> None:
    driver, old = served(1, "t")
    for ticket in range(5):
        driver.step(ev.Submit(ticket, "t", b"x"))
    asked(driver, old, THERE, period=1.5)
    dial = driver.next_dial(within=1.5)  # before they are sent again for want of an answer
    new = driver.accept(dial)
    assert [item.id for item in driver.published()] == [1, 2, 3, 4, 5]
    driver.step(ev.Submit(5, "t", b"x"))
    assert [effect.link for effect in driver.of(ev.Send)] == [new]
    for number in range(1, 7):
        for link in (old, new):
            driver.receive(link, wire.Ack("t", "p", number, Position(1, number)))
    assert [item.ticket for item in driver.history if isinstance(item, ev.Acknowledged)] == [0, 1, 2, 3, 4, 5]


def test_connect_reports_recent_changes_of_broker() -> None:
    driver = CoreDriver([HERE, THERE], settings=Settings(recent_changes=100.0))
    link = driver.open()
    reported = [connects(driver, link)[0].moves]
    driver.step(ev.Disconnected(link))
    link = driver.accept(driver.next_dial())  # a broken link counts,
    reported.append(connects(driver, link)[0].moves)
    asked(driver, link, HERE, THERE, "ws://c/ws")
    link = driver.accept(driver.next_dial(within=5.0))  # and so does the move that the link is for
    reported.append(connects(driver, link)[0].moves)
    driver.receive(link, wire.Pong())
    for _ in range(12):
        driver.wait(10.0)
        driver.receive(link, wire.Pong())
    driver.step(ev.Disconnected(link))
    link = driver.accept(driver.next_dial())  # those before are too long ago
    reported.append(connects(driver, link)[0].moves)
    assert reported == [0, 1, 2, 1]


def test_reconnect_counter_stores_a_bounded_number_of_times() -> None:
    changes = ReconnectCounter()
    for moment in range(100):
        changes.add("broken", float(moment))
    assert (changes.total, changes.count_since(0.0), changes.count_since(97.0)) == (100, 16, 3)


def test_every_link_up_has_one_link_down() -> None:
    """Each link that came up and ended is reported down exactly once, in the order of the links' ends: after a move,
    after one that the next move overtakes, and after a loss in the middle of a move."""
    driver, link = served(1, "t")
    driver.receive(link, wire.Drain(1.0, [Server(THERE)]))
    second = driver.accept(driver.next_dial(within=1.0))
    driver.receive(second, wire.Drain(1.0, [Server(HERE)]))  # moves on before the move before is finished
    third = driver.accept(driver.next_dial(within=1.0))
    driver.answer(third, complete("t", 1, 0))
    driver.receive(third, wire.Drain(1.0, [Server(THERE)]))
    fourth = driver.accept(driver.next_dial(within=1.0))
    driver.step(ev.Disconnected(fourth))  # half moved
    fifth = driver.accept(driver.next_dial())
    driver.answer(fifth, complete("t", 1, 0))
    ends = [item.link for item in driver.history if isinstance(item, ev.LinkDown)]
    assert sorted(ends) == [link, second, third, fourth]
    assert driver.core.reconnect_counter.by_cause() == {"broken": 1, "drained": 3, "moved": 0}
    assert all(end <= next_end for end, next_end in pairwise(ends))
