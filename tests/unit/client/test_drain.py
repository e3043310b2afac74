"""A broker drains, and its clients move make-before-break, whatever happens during the move."""

from __future__ import annotations

from math import inf

from migratory_client.core import events as ev
from migratory_protocol import messages as wire
from migratory_protocol.messages import Server
from migratory_protocol.positions import Position
from migratory_testing.clientcore import CoreDriver, complete, message, welcome


def following() -> tuple[CoreDriver, int]:
    """Return a client that is subscribed to the topic `t`, and the number of its link."""
    driver = CoreDriver()
    driver.step(ev.SubscribeTopic("t"))
    link = driver.open()
    driver.answer(link, complete("t", 1, 0))
    return driver, link


def drained(driver: CoreDriver, link: int, *servers: str, period: float = 10.0) -> ev.Dial:
    driver.receive(link, wire.Drain(period, [Server(url) for url in servers]))
    return driver.next_dial(within=period)


def test_drain_is_make_before_break() -> None:
    driver, old = following()
    first_link = driver.dials[-1][1]
    dial = drained(driver, old, "ws://b/ws", "ws://c/ws", "ws://a/ws")
    assert dial.url != first_link
    driver.receive(old, message("t", 1, 1))  # the old one serves until the new one does
    new = driver.accept(dial, welcome(broker="broker-1"))
    assert driver.request(new).topics == [wire.TopicRequest("t", Position(1, 1))]
    assert driver.of(ev.Disconnect) == []
    driver.receive(old, message("t", 1, 2))
    assert driver.delivered() == [(1, 1), (1, 2)]
    driver.receive(new, message("t", 1, 2))  # before its receipt nothing counts from the new one
    driver.answer(new, complete("t", 1, 2))
    assert driver.effects == [
        ev.Receipt("t", "complete", Position(1, 2), Position(1, 2), resumed=True),
        ev.Send(old, [wire.Bye()]),
        ev.Disconnect(old),
        ev.LinkDown(old, 1001, "moved away", "drained", True),
        ev.Ready(new, 0.0),
    ]
    driver.receive(old, message("t", 1, 3))
    driver.receive(new, message("t", 1, 2), message("t", 1, 3))
    assert driver.delivered() == [(1, 1), (1, 2), (1, 3)]
    assert driver.core.reconnects == 1


def test_publishing_moves_at_the_welcome_and_accepts_answers_of_both_links() -> None:
    driver, old = following()
    for ticket in "ab":
        driver.step(ev.Submit(ticket, "t", b"x"))
    new = driver.accept(drained(driver, old, "ws://b/ws", "ws://c/ws", "ws://a/ws"))
    assert [(item.id, item.mark) for item in driver.published()] == [(1, 1), (2, 1)]
    driver.receive(old, wire.Ack("t", "p", 1, Position(1, 1)))
    driver.receive(new, wire.Ack("t", "p", 1, Position(1, 1)), wire.Ack("t", "p", 2, Position(1, 2)))
    assert [item.ticket for item in driver.history if isinstance(item, ev.Acknowledged)] == ["a", "b"]


def test_drained_clients_leave_at_random_times_of_the_period() -> None:
    moments = []
    for seed in range(100):
        driver = CoreDriver(seed=seed)
        old = driver.open()
        at = driver.now
        drained(driver, old, period=20.0)
        moments.append(driver.now - at)
    assert min(moments) < 2
    assert 16 < max(moments) <= 18


def test_failed_move_is_retried_while_the_old_link_serves() -> None:
    driver = CoreDriver()
    old = driver.open()
    dial = drained(driver, old)
    driver.step(ev.Disconnected(dial.link, 1013, "busy"))
    assert [item.code for item in driver.of(ev.Problem)] == ["connect_failed"]
    assert driver.of(ev.LinkDown) == []
    again = driver.next_dial()
    assert again.url not in (dial.url, driver.dials[0][1])


def test_drain_without_another_server_waits_for_one() -> None:
    driver = CoreDriver(["ws://a"])
    old = driver.open()
    driver.receive(old, wire.Drain(1.0, [Server("ws://a")]))
    driver.wait(5)
    assert driver.of(ev.Problem) == []  # nothing is wrong yet
    driver.step(ev.Disconnected(old, 1001))
    assert driver.next_dial().url == "ws://a"


def test_old_link_ends_before_the_new_one_is_welcome() -> None:
    driver, old = following()
    dial = drained(driver, old)
    at = driver.now
    driver.step(ev.Disconnected(old, 1001, "drained"))  # while dialling: the attempt goes on, no second one
    assert driver.of(ev.LinkDown) != []
    driver.wait(0.5)
    assert driver.of(ev.Dial) == []
    new = driver.accept(dial)
    driver.answer(new, complete("t", 1, 0))
    assert driver.of(ev.Ready) == [ev.Ready(new, driver.now - at)]


def test_old_link_ends_after_the_welcome_of_the_new_one() -> None:
    driver, old = following()
    new = driver.accept(drained(driver, old))
    assert driver.step(ev.Disconnected(old, 1001)) == [ev.LinkDown(old, 1001, "moved away", "drained", True)]
    driver.answer(new, complete("t", 1, 0))
    assert [type(item) for item in driver.effects] == [ev.Receipt, ev.Ready]


def test_losing_the_new_link_during_a_move_resumes_from_the_positions() -> None:
    driver = CoreDriver()
    for topic in ("t", "u"):
        driver.step(ev.SubscribeTopic(topic))
    old = driver.open()
    driver.answer(old, complete("t", 1, 0), complete("u", 1, 0))
    new = driver.accept(drained(driver, old))
    driver.answer(new, complete("t", 1, 0))
    driver.receive(new, message("t", 1, 1))
    driver.receive(old, message("u", 1, 1), message("t", 1, 1))
    driver.step(ev.Disconnected(new))
    assert ev.Disconnect(old) in driver.effects
    last = driver.accept(driver.next_dial())
    assert [item.after for item in driver.request(last).topics] == [Position(1, 1), Position(1, 1)]
    assert driver.delivered() == [(1, 1), (1, 1)]


def test_second_drain_during_a_move_is_one_move() -> None:
    driver = CoreDriver()
    old = driver.open()
    dial = drained(driver, old)
    driver.receive(old, wire.Drain(0.0, []))
    assert driver.wait(5) == []
    new = driver.accept(dial)
    assert driver.receive(new, wire.Pong()) == []


def test_new_broker_drains_during_a_move() -> None:
    driver = CoreDriver()
    driver.step(ev.SubscribeTopic("t"))
    first = driver.open()
    driver.answer(first, complete("t", 1, 0))
    second = driver.accept(drained(driver, first))
    driver.receive(first, wire.Drain(1.0, []))  # of the one that is left: known
    third = driver.accept(drained(driver, second))
    assert ev.Disconnect(first) in driver.effects
    driver.answer(third, complete("t", 1, 0))
    assert ev.Disconnect(second) in driver.effects
    assert driver.core.reconnect_counter.by_cause() == {"broken": 0, "drained": 2, "moved": 0}


def test_messages_after_a_disconnect_are_ignored() -> None:
    driver, old = following()
    new = driver.accept(drained(driver, old))
    refusal = wire.TopicReceipt("t", None, code="not_allowed", text="no longer")
    driver.receive(old, wire.Subscribed(0, [refusal]), wire.Servers([Server("ws://late")]))
    assert [type(item) for item in driver.effects] == [
        ev.SubscribeRefused,
        ev.Send,
        ev.Disconnect,
        ev.LinkDown,
        ev.Ready,
    ]
    assert driver.of(ev.Ready) == [ev.Ready(new, 0.0)]
    assert driver.core.servers.learned == ()


def test_close_disconnects_every_link() -> None:
    driver, old = following()
    new = driver.accept(drained(driver, old))
    third = drained(driver, new)
    driver.step(ev.Close())
    assert {item.link for item in driver.of(ev.Disconnect)} == {old, new, third.link}
    assert {item.link for item in driver.of(ev.Send)} == {old, new}
    assert driver.core.deadline == inf
    assert driver.step(ev.Tick()) == []
    assert driver.step(ev.Disconnected(new)) == []
