"""Delivery: publications are encoded and written once per fan-out; queues of slow clients are limited."""

from __future__ import annotations

import json

from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import Multicast, Send
from migratory_broker.core.logic.events import ServerList
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import Bye, Message, Ping, Pong, Server, Servers
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, Reader, publication, publications


def followers(bench: Bench, count: int, topic: str = "t") -> list[Reader]:
    readers = [bench.client(f"reader-{number}") for number in range(count)]
    for reader in readers:
        reader.subscribe_live(topic)
        reader.received.clear()
    return readers


class TestFanout:
    def test_fanout_is_one_multicast_per_format(self) -> None:
        bench = Bench()
        formats = [("json", False), ("json", True), ("msgpack", False), ("msgpack", True)]
        readers = [bench.client(wire=wire, deflate=deflate) for wire, deflate in formats * 2]  # type: ignore[arg-type]
        for reader in readers:
            reader.subscribe_live("t")
            reader.writes.clear()
        big = publication(3, b"abc" * 100)
        effects = bench.fanout("t", *publications(1, 2), big)
        assert [type(effect) for effect in effects] == [Multicast] * 4
        for reader in readers:
            assert len(reader.writes) == 1
            assert reader.sequences("t") == [1, 2, 3]
            assert [m for m in reader.received if isinstance(m, Message)][2].payload == b"abc" * 100
        sizes = {effect.data for effect in effects if isinstance(effect, Multicast)}
        assert len(sizes) == 4
        assert bench.edge.delivered == 3 * 8
        plain, packed = (len(effects[n].data) for n in (2, 3))  # type: ignore[union-attr]
        assert packed < plain

    def test_the_recipients_of_an_effect_never_change(self) -> None:
        bench = Bench()
        first, second = followers(bench, 2)
        (effect,) = bench.fanout("t", publication(1))
        assert isinstance(effect, Multicast)
        numbers = effect.recipients.connections
        (again,) = bench.fanout("t", publication(2))
        assert isinstance(again, Multicast)
        assert again.recipients is effect.recipients  # the tuple is reused while subscribers do not change
        first.lose_socket()
        followers(bench, 1)
        assert effect.recipients.connections == numbers
        bench.fanout("t", publication(3))
        assert (first.sequences("t"), second.sequences("t")) == ([1, 2], [1, 2, 3])

    def test_fanout_writes_nothing_without_writable_subscribers(self) -> None:
        bench = Bench()
        first, second = followers(bench, 2)
        first.pause()
        second.pause()
        assert bench.fanout("t", publication(1)) == []
        assert bench.edge.delivered == 0
        first.resume()
        assert bench.edge.delivered == 1

    def test_metrics_count_written_and_queued_bytes(self) -> None:
        bench = Bench()
        readers = followers(bench, 3)
        before = bench.edge.sent_bytes
        bench.fanout("t", publication(1))
        readers[0].pause()
        bench.fanout("t", publication(2))
        size = len(readers[1].writes[-1])
        assert bench.edge.sent_bytes - before == 5 * size
        assert bench.edge.queue_bytes == size
        readers[0].resume()
        assert bench.edge.sent_bytes - before == 6 * size
        assert (bench.edge.delivered, bench.edge.queue_bytes) == (6, 0)
        assert (bench.edge.clients, bench.edge.subscriptions, bench.edge.topics) == (3, 3, 1)


class TestQueue:
    def test_queue_is_one_write_before_new_publications(self) -> None:
        bench = Bench()
        (reader,) = followers(bench, 1)
        bench.fanout("t", publication(1))
        reader.pause()
        bench.fanout("t", publication(2))
        reader.send(Ping())
        bench.fanout("t", *publications(3, 4))
        assert reader.sequences("t") == [1]
        writes = len(reader.writes)
        reader.resume()
        bench.fanout("t", publication(5))
        assert len(reader.writes) == writes + 2
        assert reader.sequences("t") == [1, 2, 3, 4, 5]
        assert [type(m) for m in reader.received] == [Message, Message, Pong, Message, Message, Message]

    def test_queues_share_their_bytes(self) -> None:
        bench = Bench()
        readers = followers(bench, 3)
        for reader in readers[:2]:
            reader.pause()
        bench.fanout("t", publication(1))
        queues = [connection.queue for connection in bench.edge._delivery.paused]
        assert len({id(queue.chunks[0]) for queue in queues if queue is not None}) == 1

    def test_broadcast_is_queued_while_paused(self) -> None:
        bench = Bench()
        paused, quick = followers(bench, 2)
        paused.pause()
        servers = (Server("ws://a", 1),)
        bench.step(ServerList(servers))
        assert quick.take(Servers) == [Servers(list(servers))]
        assert paused.received == []
        paused.resume()
        assert paused.take(Servers) == [Servers(list(servers))]

    def test_pause_before_connect_is_harmless(self) -> None:
        bench = Bench()
        reader = bench.open()
        reader.pause()
        reader.resume()
        assert reader.received == []
        assert [effect for effect in bench.step(ServerList(())) if isinstance(effect, Send)] == []


class TestSlowConsumer:
    def test_slow_consumer_is_closed_with_a_reason_and_can_resume(self) -> None:
        bench = Bench(EdgeConfig(queue_per_client=1000, closing=2.0))
        slow, quick = followers(bench, 2)
        slow.pause()
        bench.wait(2.5)
        for sequence in range(1, 21):
            bench.fanout("t", publication(sequence, b"x" * 100))
        assert quick.sequences("t") == list(range(1, 21))
        assert slow.close_code == CloseCode.SLOW_CONSUMER
        assert slow.sequences("t") == []
        (note,) = bench.notes
        assert (note.level, note.event, note.connection) == ("warning", "slow_consumer", 1)
        queued = note.fields["queued_bytes"]
        assert isinstance(queued, int)
        assert 800 < queued <= 1000
        assert note.fields == {
            "client": "reader-0",
            "connection": 1,
            "queued_bytes": queued,
            "queued_publications": 8,
            "lag_seconds": 2.5,
            "subscriptions": 1,
            "reason": "over 1000 bytes, the limit of one client",
        }
        assert f"{queued} bytes waited for 2.5 s" in slow.close_reason
        assert bench.edge.closed == {"slow_consumer": 1}
        assert (bench.edge.queue_bytes, bench.edge.clients, bench.edge.subscriptions) == (0, 1, 1)
        bench.wait(2.2)
        assert slow.socket == "aborted"
        again = bench.client("reader-0")
        attach = again.subscribe("t", (1, 0))
        bench.attached(
            attach, Position(1, 20), publications=publications(11, 20), receipt="truncated", first=1, last=10
        )
        assert again.sequences("t") == list(range(11, 21))

    def test_first_write_always_fits_the_queue(self) -> None:
        bench = Bench(EdgeConfig(queue_per_client=100))
        (reader,) = followers(bench, 1)
        reader.pause()
        bench.fanout("t", publication(1, b"x" * 5000))
        assert reader.close_code is None
        reader.resume()
        assert reader.sequences("t") == [1]
        reader.pause()
        bench.fanout("t", publication(2, b"x" * 5000))
        bench.fanout("t", publication(3))
        assert reader.close_code == CloseCode.SLOW_CONSUMER

    def test_unread_replies_count_for_the_queue_limit(self) -> None:
        bench = Bench(EdgeConfig(queue_per_client=100, messages_per_read=250))
        reader = bench.client()
        reader.pause()
        reader.send(*[Ping()] * 200)
        assert reader.close_code == CloseCode.SLOW_CONSUMER

    def test_bye_in_the_same_turn_is_not_a_slow_consumer(self) -> None:
        bench = Bench(EdgeConfig(queue_per_client=100, messages_per_read=250))
        reader = bench.client()
        reader.pause()
        reader.send(*[Ping()] * 100, Bye())
        assert (reader.close_code, bench.edge.closed, bench.notes) == (1000, {"bye": 1}, [])

    def test_write_over_the_total_limit_closes(self) -> None:
        bench = Bench(EdgeConfig(queue_total=100))
        (reader,) = followers(bench, 1)
        reader.pause()
        bench.fanout("t", publication(1, b"x" * 200))
        assert reader.close_code == CloseCode.SLOW_CONSUMER
        assert bench.edge.queue_bytes == 0

    def test_longest_queue_is_closed_at_the_total_limit(self) -> None:
        bench = Bench(EdgeConfig(queue_total=5000))
        long, short, quick = followers(bench, 3)
        long.pause()
        for sequence in range(1, 16):
            bench.fanout("t", publication(sequence, b"x" * 100))
        short.pause()
        assert bench.edge.queue_bytes < 2500
        for sequence in range(16, 50):
            bench.fanout("t", publication(sequence, b"x" * 100))
            assert bench.edge.queue_bytes <= 5000
        assert (long.close_code, short.close_code, quick.close_code) == (CloseCode.SLOW_CONSUMER, None, None)
        assert bench.notes[0].fields["reason"] == "the longest queue when all together were over 5000 bytes"
        short.resume()
        assert short.sequences("t") == list(range(1, 50))

    def test_stalled_readers_hold_no_more_than_the_total_limit(self) -> None:
        bench = Bench(EdgeConfig(queue_total=100_000))
        readers = followers(bench, 1000)
        for reader in readers:
            reader.pause()
        for sequence in range(1, 11):
            bench.fanout("t", publication(sequence, b"x" * 200))
            assert bench.edge.queue_bytes <= 100_000
        assert bench.edge.clients < 100
        assert bench.edge.closed["slow_consumer"] == 1000 - bench.edge.clients

    def test_both_queue_limits_apply_in_one_step(self) -> None:
        bench = Bench(EdgeConfig(queue_per_client=600, queue_total=1000))
        first, second, third = followers(bench, 3)
        first.pause()
        bench.fanout("t", publication(1, b"x" * 500))
        second.pause()
        third.pause()
        bench.fanout("t", publication(2, b"x" * 480))
        assert first.close_code == CloseCode.SLOW_CONSUMER
        assert [r.close_code for r in (second, third)].count(None) >= 1
        assert bench.edge.queue_bytes <= 1000
        assert bench.edge.closed["slow_consumer"] == len(bench.notes)

    def test_status_names_the_slowest_clients(self) -> None:
        bench = Bench()
        readers = followers(bench, 25)
        for sequence, reader in enumerate(readers[:22], 1):
            reader.pause()
            bench.fanout("t", publication(sequence))
        bench.wait(1.0)
        status = bench.edge.status()
        slow = status["slow"]
        assert isinstance(slow, list)
        assert status["paused"] == 22
        assert len(slow) == 20
        assert slow[0]["client"] == "reader-0"
        assert slow[0]["lag_seconds"] == 1.0
        assert [entry["queued_publications"] for entry in slow] == list(range(22, 2, -1))
        assert json.loads(json.dumps(status)) == status
