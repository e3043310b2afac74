"""Links of the client core: how they connect, use tokens, send heartbeats, are lost and replaced, and how the broker's
server list is used."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from migratory_client.core import events as ev
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import Settings
from migratory_protocol import messages as wire
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import Server
from migratory_testing.clientcore import CoreDriver, complete, message, welcome


def test_nothing_happens_before_open() -> None:
    driver = CoreDriver()
    assert driver.core.deadline == inf
    assert driver.step(ev.Tick()) == []
    assert driver.step(ev.SubscribeTopic("t")) == []
    assert driver.core.closed
    assert not driver.core.connected


def test_first_attempt_is_immediate_and_sends_connect() -> None:
    driver = CoreDriver(token="secret")
    driver.step(ev.Open())
    (dial,) = driver.of(ev.Dial)
    assert driver.step(ev.Open()) == []
    driver.step(ev.Connected(dial.link))
    assert driver.effects == [ev.Send(dial.link, [wire.Connect(1, "c", "secret")])]
    driver.receive(dial.link, welcome())
    assert driver.effects == [
        ev.LinkUp(dial.link, dial.url, "quotes", "broker-0", 1),
        ev.Ready(dial.link, None),
    ]
    assert driver.core.connected


def test_client_requires_a_usable_server() -> None:
    with pytest.raises(ValueError, match="no usable server"):
        ClientCore((Server("ws://a", 0),), lambda: 0.5)


def test_events_of_unknown_links_are_ignored() -> None:
    driver = CoreDriver()
    link = driver.open()
    for event in (
        ev.Connected(99), ev.Token(99, "x"), ev.TokenFailed(99, "x"), ev.Disconnected(99),
        ev.Received(99, [message("t", 1, 1)]), ev.Connected(link), ev.TokenFailed(link, "x"), ev.Token(link, "x"),
    ):  # fmt: skip
        assert driver.step(event) == []
    assert driver.receive(link, welcome()) == []  # a second one says nothing new


def test_token_is_requested_before_every_connect() -> None:
    driver = CoreDriver(settings=Settings(request_token=True))
    driver.step(ev.Open())
    link = driver.next_dial().link
    driver.step(ev.Connected(link))
    assert driver.effects == [ev.RequestToken(link)]
    driver.step(ev.Token(link, "fresh"))
    assert driver.effects == [ev.Send(link, [wire.Connect(1, "c", "fresh")])]
    driver.receive(link, welcome())
    driver.step(ev.Disconnected(link, CloseCode.TOKEN_EXPIRED, "expired"))
    link = driver.next_dial().link
    driver.step(ev.Connected(link))
    assert driver.effects == [ev.RequestToken(link)]
    driver.step(ev.TokenFailed(link, "no network"))
    assert driver.effects == [ev.Problem("no_token", "no network"), ev.Disconnect(link)]
    assert driver.next_dial().link > link


def renewing(**settings: Any) -> tuple[CoreDriver, int]:
    driver = CoreDriver(settings=Settings(**settings), token="fixed")
    driver.step(ev.Open())
    link = driver.next_dial().link
    driver.step(ev.Connected(link))
    driver.step(ev.Token(link, "first"))
    driver.receive(link, welcome())
    return driver, link


def test_token_is_renewed_on_the_same_link_before_it_expires() -> None:
    driver, link = renewing(request_token=True)
    driver.receive(link, wire.TokenExpiring(60.0))
    assert driver.effects == [ev.RequestToken(link)]
    assert driver.step(ev.Token(link, "second")) == [ev.Send(link, [wire.Connect(1, "c", "second")])]
    assert driver.step(ev.Token(link, "third")) == []
    assert driver.receive(link, welcome()) == []
    driver.receive(link, wire.TokenExpiring(60.0))
    driver.step(ev.TokenFailed(link, "no network"))
    assert driver.effects == [ev.Problem("no_token", "no network")]
    driver.step(ev.Disconnected(link, CloseCode.TOKEN_EXPIRED, "expired"))
    assert not driver.core.closed
    assert driver.next_dial().link > link


def test_fixed_token_that_expires_is_reported() -> None:
    driver, link = renewing()
    driver.receive(link, wire.TokenExpiring(60.0))
    text = "the token expires in 60 s; a function as `token` would renew it"
    assert driver.effects == [ev.Problem("token_expiring", text)]


@pytest.mark.parametrize("served", [False, True])
def test_refused_identity_ends_the_client(served: bool) -> None:
    driver = CoreDriver()
    driver.step(ev.Open())
    link = driver.next_dial().link
    driver.step(ev.Connected(link))
    driver.step(ev.SubscribeTopic("t"))
    driver.step(ev.Submit("ticket", "t", b"x", 1, 0.0))
    if served:
        driver.receive(link, welcome())
    driver.receive(link, wire.Error("unauthenticated", "the token was revoked", closes=True))
    driver.step(ev.Disconnected(link, CloseCode.UNAUTHENTICATED, ""))
    assert driver.core.closed
    assert driver.core.deadline == inf
    assert [problem.code for problem in driver.of(ev.Problem) if problem.fatal][-1] == "unauthenticated"
    assert [refused.code for refused in driver.of(ev.SubscribeRefused)] == ["unauthenticated"]
    assert [failed.code for failed in driver.of(ev.PublishFailed)] == ["unauthenticated"]


def test_refusal_by_another_broker_does_not_end_a_client_that_is_served() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.receive(link, wire.Drain(0.0, [Server("ws://b")]))
    moving = driver.next_dial().link
    driver.step(ev.Connected(moving))
    driver.step(ev.Disconnected(moving, CloseCode.UNAUTHENTICATED, "wrong keys"))
    assert not driver.core.closed
    assert driver.core.connected


def test_lost_link_is_replaced_within_a_random_second() -> None:
    waits = []
    for seed in range(200):
        driver = CoreDriver(seed=seed)
        link = driver.open()
        first_link = driver.dials[-1][1]
        driver.wait(10)
        at = driver.now
        driver.step(ev.Disconnected(link, 1006, "reset by peer"))
        assert driver.of(ev.LinkDown) == [ev.LinkDown(link, 1006, "reset by peer")]
        dial = driver.next_dial()
        waits.append(driver.now - at)
        assert dial.url != first_link
    assert 0 <= min(waits) < 0.05
    assert 0.95 < max(waits) <= 1
    assert 0.4 < sum(waits) / len(waits) < 0.6  # spread, no herd


def test_attempt_times_out() -> None:
    driver = CoreDriver(chance=lambda: 0.5)
    driver.step(ev.Open())
    first = driver.next_dial()
    driver.wait(9.9)
    assert driver.effects == []
    driver.wait(0.2)
    assert driver.of(ev.Disconnect) == [ev.Disconnect(first.link, True)]
    assert "no welcome within 10 s" in driver.of(ev.Problem)[0].text
    assert driver.next_dial().url != first.url


def test_ready_reports_the_resume_time() -> None:
    driver = CoreDriver()
    driver.step(ev.SubscribeTopic("t"))
    link = driver.open()
    assert driver.of(ev.Ready) == []
    driver.answer(link, complete("t", 1, 0))
    assert driver.of(ev.Ready) == [ev.Ready(link, None)]
    lost_at = driver.now
    driver.step(ev.Disconnected(link))
    driver.step(ev.Disconnected(driver.next_dial().link, 1006))  # a failed attempt counts into it
    link = driver.accept(driver.next_dial())
    driver.wait(0.25)
    driver.answer(link, complete("t", 1, 0))
    assert driver.of(ev.Ready) == [ev.Ready(link, driver.now - lost_at)]
    assert driver.core.reconnects == 1


def test_silent_link_is_dropped_after_two_heartbeats() -> None:
    """Pitfall 11: a client drops a link on which nothing has come for two heartbeats (30 s); before, any message
    counts as a sign of life."""
    driver = CoreDriver()
    link = driver.open()
    for _ in range(20):  # alive: whatever comes is a sign of life
        driver.wait(7.5)
        driver.receive(link, wire.Pong())
    died = driver.now
    while not driver.of(ev.LinkDown):
        driver.until(driver.core.deadline)
    assert driver.now - died <= 30
    assert driver.of(ev.Disconnect) == [ev.Disconnect(link, True)]
    assert driver.sent(link).count(wire.Ping()) >= 9


def test_ping_every_interval_keeps_a_quiet_link() -> None:
    driver = CoreDriver()
    link = driver.open()
    for _ in range(1000):
        driver.wait(0.5)
        if wire.Ping() in [item for effect in driver.of(ev.Send) for item in effect.messages]:
            driver.receive(link, wire.Pong())
        assert driver.of(ev.LinkDown) == []
    assert 32 <= driver.sent(link).count(wire.Ping()) <= 34


def test_unanswered_subscribe_is_retried_at_another_broker() -> None:
    driver = CoreDriver(chance=lambda: 0.9)
    link = driver.open()
    driver.step(ev.SubscribeTopic("t"))
    driver.step(ev.SubscribeTopic("u"))
    driver.wait(9)
    driver.answer(link, complete("u", 1, 0))  # progress
    driver.wait(9)
    assert driver.core.connected
    driver.wait(1.5)
    assert driver.of(ev.LinkDown)[0].reason == "a subscribe request was not answered"
    assert [item.topic for item in driver.request(driver.accept(driver.next_dial())).topics] == ["t", "u"]


def test_unsubscribing_the_last_unanswered_topic_clears_the_deadline() -> None:
    driver = CoreDriver(chance=lambda: 0.9)
    driver.step(ev.SubscribeTopic("t"))
    link = driver.open()
    driver.step(ev.UnsubscribeTopic("t"))
    assert driver.of(ev.Ready) == [ev.Ready(link, None)]
    driver.wait(12)
    assert driver.core.connected


def test_error_before_the_close_is_the_reason() -> None:
    driver = CoreDriver()
    link = driver.open()
    driver.receive(link, wire.Error("slow_consumer", "2 MiB waited", closes=True))
    assert driver.of(ev.Problem) == [ev.Problem("slow_consumer", "2 MiB waited", True)]
    driver.step(ev.Disconnected(link, CloseCode.SLOW_CONSUMER, ""))
    assert driver.of(ev.LinkDown)[0].reason == "slow_consumer: 2 MiB waited"


def test_close_caused_by_the_client_does_not_blacklist_the_broker() -> None:
    driver = CoreDriver(["ws://a"])
    link = driver.open()
    driver.step(ev.Disconnected(link, CloseCode.SLOW_CONSUMER))
    assert driver.core.servers._blacklist == {}
    driver.accept(driver.next_dial())
    driver.step(ev.Disconnected(driver.core._current.number, 1006))  # type: ignore[union-attr]
    assert list(driver.core.servers._blacklist) == ["ws://a"]


def test_links_closed_for_client_faults_are_retried_with_growing_waits() -> None:
    driver = CoreDriver(["ws://a"], chance=lambda: 0.5)
    link = driver.open()
    waits = []
    for _ in range(9):
        at = driver.now
        driver.step(ev.Disconnected(link, CloseCode.NOT_ALLOWED))
        dial = driver.next_dial()
        waits.append(driver.now - at)
        link = driver.accept(dial)
    assert waits[0] == 1
    assert waits == sorted(waits)
    assert waits[-1] == 15  # half of the cap
    driver.wait(6)  # a link that stood
    driver.step(ev.Disconnected(link, CloseCode.NOT_ALLOWED))
    at = driver.now
    driver.next_dial()
    assert driver.now - at == 0.5


def test_server_list_is_updated_by_the_broker() -> None:
    driver = CoreDriver(["ws://a"])
    link = driver.open(welcome(Server("ws://x"), Server("ws://:0")))
    assert [item.code for item in driver.of(ev.Problem)] == ["bad_server"]
    driver.receive(link, wire.Servers([Server("ws://y"), Server("ws://:0")]))
    assert driver.of(ev.Problem) == []
    driver.step(ev.Disconnected(link))
    assert driver.next_dial().url == "ws://y"


def test_list_of_weight_zero_is_reported_and_retried() -> None:
    driver = CoreDriver(["ws://a"])
    link = driver.open(welcome(Server("ws://a", 0)))
    driver.step(ev.Disconnected(link))
    for _ in range(3):
        driver.until(driver.core.deadline)
        assert driver.of(ev.Problem)[0].code == "no_servers"
    assert driver.core.deadline <= driver.now + 30
