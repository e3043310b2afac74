"""Faults that clients of similar systems had, repeated with this client: resuming at zero, resubscribing in a
handler, an exhausted server list, memory that failed rounds use."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from migratory_client.core import events as ev
from migratory_protocol import messages as wire
from migratory_protocol.messages import Server
from migratory_protocol.positions import Position
from migratory_testing.clientcore import CoreDriver, complete, message


@pytest.mark.parametrize("start", [Position(1, 0), Position(4, 17)])
def test_client_lost_before_its_first_message_resumes_at_the_receipt(start: Position) -> None:
    """A client whose link is lost before its first message subscribes again after the position of the receipt, also
    at sequence number 0, and delivers what follows (case socket.io#5538)."""
    driver = CoreDriver()
    driver.step(ev.SubscribeTopic("t"))
    link = driver.open()
    driver.answer(link, wire.TopicReceipt("t", "complete", start))
    driver.step(ev.Disconnected(link, 1006))
    link = driver.accept(driver.next_dial())
    assert driver.request(link).topics == [wire.TopicRequest("t", start)]
    epoch, sequence = start
    driver.answer(link, complete("t", epoch, sequence + 3))
    driver.receive(link, *(message("t", epoch, sequence + step) for step in (1, 2, 3)))
    assert driver.delivered() == [(epoch, sequence + step) for step in (1, 2, 3)]
    assert {kind for kind, *_ in driver.receipts()} == {"complete"}


@pytest.mark.parametrize("reopen", [False, True])
def test_resubscribing_in_a_handler_neither_repeats_nor_skips(reopen: bool) -> None:
    """A topic that a handler unsubscribes and subscribes again, at once or after the client was closed, resumes
    after the handled message: nothing is delivered twice or left out (case centrifuge-js#425)."""
    driver = CoreDriver()
    driver.step(ev.SubscribeTopic("t"))
    link = driver.open()
    driver.answer(link, complete("t", 1, 0))
    for effect in driver.receive(link, *(message("t", 1, number) for number in range(1, 6))):
        if isinstance(effect, ev.Deliver) and effect.message.position == (1, 5):
            if reopen:
                driver.step(ev.Close())
                driver.step(ev.SubscribeTopic("t"))
                link = driver.open()
            else:
                driver.step(ev.UnsubscribeTopic("t"))
                driver.step(ev.SubscribeTopic("t"))
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(1, 5))]
    driver.receive(link, message("t", 1, 6))  # on its way from before
    driver.answer(link, complete("t", 1, 6))
    driver.receive(link, message("t", 1, 6))
    assert driver.delivered() == [(1, number) for number in range(1, 7)]


@pytest.mark.parametrize("seed", range(2))
def test_long_list_with_one_live_server_is_searched_to_its_end(seed: int) -> None:
    """A client with a list of 2000 entries, of which one server accepts connections, tries no server twice before it
    has found that one, and never one of weight 0 or without a host (case nats.rb#87)."""
    chance = random.Random(seed)
    live = f"ws://host-{chance.randrange(1997)}:8800/ws"
    entries: list[str | Server] = [f"ws://host-{number}:8800/ws" for number in range(1997)]
    entries += [" wss://[::1]:8443/ws ", Server("ws://idle:8800/ws", 0), "ws://:0"]
    assert len(entries) == 2000
    entries += [f"ws://host-{number}:8800/ws/" for number in range(100)]  # the same again
    chance.shuffle(entries)
    driver = CoreDriver(entries, seed=seed)
    assert len(driver.malformed) == 1
    driver.step(ev.Open())
    while True:
        dial = driver.next_dial()
        if dial.url == live:
            driver.accept(dial)
            break
        driver.step(ev.Disconnected(dial.link, 1006, "connection refused"))
    urls = [url for _, url in driver.dials]
    assert driver.core.connected
    assert len(urls) == len(set(urls))  # none twice before each was tried
    assert "ws://idle:8800/ws" not in urls
    assert not any(url.startswith("ws://:") for url in urls)


@pytest.mark.parametrize("seed", range(50))
def test_client_retries_without_end_and_resumes(seed: int) -> None:
    """A client retries its whole list in every round without end, and connects within the longest backoff once a
    server has started; it resumes at its position (case nats.rb#87)."""
    driver = CoreDriver(seed=seed)
    driver.step(ev.SubscribeTopic("t"))
    link = driver.open()
    driver.answer(link, complete("t", 3, 8))
    driver.wait(10)
    driver.step(ev.Disconnected(link))
    driver.dials.clear()
    for _ in range(10 * 3 + seed % 3):
        driver.step(ev.Disconnected(driver.next_dial().link, 1006))
    for start in range(2, 29, 3):  # from the second round on: each once a round
        assert {url for _, url in driver.dials[start : start + 3]} == {"ws://a/ws", "ws://b/ws", "ws://c/ws"}
    up = driver.now
    while (dial := driver.next_dial()).url != "ws://b/ws":
        driver.step(ev.Disconnected(dial.link, 1006))
    assert driver.now - up <= 30 + 1
    link = driver.accept(dial)
    assert driver.request(link).topics == [wire.TopicRequest("t", Position(3, 8))]
    assert not driver.core.closed


def test_failed_rounds_do_not_use_memory() -> None:
    driver = CoreDriver()
    driver.step(ev.Open())

    def rounds(count: int) -> None:
        for _ in range(3 * count):
            driver.step(ev.Disconnected(driver.next_dial().link, 1006))
            driver.history.clear()
            driver.dials.clear()

    tracemalloc.start()
    try:
        rounds(1000)  # fills the interpreter's free lists, which count as memory in use
        before, _ = tracemalloc.get_traced_memory()
        rounds(300)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
